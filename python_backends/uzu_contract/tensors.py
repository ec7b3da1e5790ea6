"""The table of tensors and request parameters of an LLM model. Everything else derives from it.

The names are a superset of those of the official vllm_backend, so that its clients, Triton's `generate`
endpoints and perf_analyzer work unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of the model's signature.

    Args:
        name: name on the wire.
        datatype: Triton's name of the element type, without the `TYPE_` prefix ("BYTES" is TYPE_STRING).
        dims: shape as in config.pbtxt; -1 is a length that varies.
        description: one line for the docs.

    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    description: str

    @property
    def config_datatype(self) -> str:
        """The element type as config.pbtxt spells it."""
        return "TYPE_STRING" if self.datatype == "BYTES" else f"TYPE_{self.datatype}"


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """One custom request parameter (they pass through Triton untouched, also through ensembles)."""

    name: str
    type: str
    description: str


OUTPUTS = (
    TensorSpec("text_output", "BYTES", (1,), "text since the last response (all of it when not streaming)"),
    TensorSpec("token_ids", "INT32", (-1,), "tokens since the last response"),
    TensorSpec("choice_index", "INT32", (1,), "which of the request's choices this response belongs to"),
    TensorSpec("finish_reason", "BYTES", (1,), '"stop", "length", "abort", "error"; "None" until the end'),
    TensorSpec("stop_reason", "BYTES", (1,), "the stop string or token id that ended the text, else empty"),
    TensorSpec("logprobs", "BYTES", (1,), "JSON: log-probabilities of the tokens in this response"),
    TensorSpec(
        "prompt_logprobs",
        "BYTES",
        (1,),
        "JSON, first response only: log-probabilities of the prompt's tokens",
    ),
    TensorSpec("num_input_tokens", "UINT32", (1,), "tokens of the prompt"),
    TensorSpec("num_output_tokens", "UINT32", (1,), "tokens in this response (sum them for the total)"),
    TensorSpec("num_cached_tokens", "UINT32", (1,), "tokens of the prompt that came from the prefix cache"),
    TensorSpec("perf_metrics", "BYTES", (1,), "JSON, last response only: times and counts of this request"),
    TensorSpec("details", "BYTES", (1,), "JSON: what an operation other than generate found out"),
)
"""Outputs. All but `text_output` are sent only when asked for: see `response.select_outputs`."""

ALWAYS_SENT = "text_output"

OUTPUT_NAMES = tuple(spec.name for spec in OUTPUTS)

PROMPT_INPUTS = ("text_input", "input_ids", "messages")
"""Exactly one of these is given."""

RETURN_FLAGS = {f"return_{spec.name}": spec.name for spec in OUTPUTS if spec.name != ALWAYS_SENT}
"""Boolean inputs that ask for one output each (the way of clients that cannot name outputs)."""

INPUTS = (
    TensorSpec("text_input", "BYTES", (1,), "prompt as text, tokenized as it is, without a chat template"),
    TensorSpec("input_ids", "INT32", (-1,), "prompt as token ids"),
    TensorSpec(
        "messages",
        "BYTES",
        (1,),
        "prompt as JSON: messages, tools, tool_choice, chat_template_kwargs, add_generation_prompt, "
        "continue_final_message",
    ),
    TensorSpec("sampling_parameters", "BYTES", (1,), "JSON object of sampling parameters"),
    TensorSpec("stream", "BOOL", (1,), "send a response for each new piece of text (default false)"),
    TensorSpec("operation", "BYTES", (1,), "generate (default), tokenize, detokenize or describe"),
    TensorSpec(
        "add_special_tokens",
        "BOOL",
        (1,),
        "tokenize: begin as this model's texts begin (default true)",
    ),
    TensorSpec(
        "exclude_input_in_output",
        "BOOL",
        (1,),
        "false puts the prompt's text before the output (default true for streams, tokens and messages)",
    ),
    *(
        TensorSpec(flag, "BOOL", (1,), f"send `{output}` with the responses (default false)")
        for flag, output in RETURN_FLAGS.items()
    ),
)

PARAMETERS = (
    ParameterSpec("uzu_priority", "int", "lower is sooner; 10 when absent"),
    ParameterSpec("uzu_deadline_ms", "int", "milliseconds from arrival after which the answer is worthless"),
    ParameterSpec("uzu_cache_salt", "string", "requests share cached prefixes only with the same salt"),
    ParameterSpec("traceparent", "string", "W3C trace context"),
)
PARAMETER_NAMES = tuple(spec.name for spec in PARAMETERS)
