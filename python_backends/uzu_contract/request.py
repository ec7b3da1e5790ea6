"""A valid request, and its two-way translation to tensors and request parameters.

Parse, don't validate: whatever passes `decode_request` can be served as far as its form goes; what depends
on the model (context length, tokenization, chat template) is the backend's to check.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uzu_contract.errors import ErrorCode, RequestError, invalid, unsupported
from uzu_contract.priority import DEFAULT_PRIORITY
from uzu_contract.response import select_outputs
from uzu_contract.sampling import SamplingParams, parse_sampling
from uzu_contract.tensors import (
    ALWAYS_SENT,
    INPUTS,
    PROMPT_INPUTS,
    RETURN_FLAGS,
    TensorSpec,
)

MAX_PRIORITY = 1000
MAX_DEADLINE_MS = 7 * 24 * 3600 * 1000
Tensors = Mapping[str, NDArray[Any]]
_ANSWERS = ("token_ids", "finish_reason", "num_input_tokens", "details")
"""What every operation but `generate` sends."""


class Operation(StrEnum):
    """What a request asks a model to do."""

    GENERATE = "generate"
    """Continue the prompt."""
    TOKENIZE = "tokenize"
    """Say what tokens a text or messages are: `token_ids`, and `tokens` in the details."""
    DETOKENIZE = "detokenize"
    """Say what text tokens are, special ones included: `text_output`."""
    DESCRIBE = "describe"
    """Say what the model is, without a prompt: the details alone."""


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Text that is tokenized as it is; special tokens in it are read as special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Token ids, used as they are."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages to render with the model's chat template. What users wrote in them stays plain text.

    Args:
        messages: dicts with `role` and `content` (a string, null, or text parts), as in OpenAI's chat API.
        tools: tool definitions for the template.
        chat_template_kwargs: extra variables for the template.
        add_generation_prompt: end with the header of the assistant's turn.
        continue_final_message: leave the last message open, so that the model goes on with it.

    """

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continue_final_message: bool = False


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Everything a client can say about one generation.

    Args:
        prompt: what to continue.
        sampling: how.
        stream: one response per piece of text, or one in all.
        echo_prompt: put the prompt's text before the output.
        outputs: names of the output tensors to send.
        priority: lower is sooner.
        deadline_ms: from arrival, after which the answer is worthless.
        cache_salt: cached prefixes are shared only within one salt.
        traceparent: W3C trace context.
        operation: what to do; all but `GENERATE` answer at once, and use the prompt alone.
        add_special_tokens: `TOKENIZE` begins as the model's texts begin.

    """

    prompt: Prompt
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stream: bool = False
    echo_prompt: bool = False
    outputs: frozenset[str] = frozenset({ALWAYS_SENT})
    priority: int = DEFAULT_PRIORITY
    deadline_ms: int | None = None
    cache_salt: str = ""
    traceparent: str | None = None
    operation: Operation = Operation.GENERATE
    add_special_tokens: bool = True

    @property
    def logprob_count(self) -> int | None:
        """How many of the likeliest tokens to report at each place; None reports no log-probabilities."""
        if self.sampling.logprobs is None and "logprobs" in self.outputs:
            return 0
        return self.sampling.logprobs

    @property
    def prompt_logprob_count(self) -> int | None:
        """Likewise for the prompt's tokens."""
        if self.sampling.prompt_logprobs is None and "prompt_logprobs" in self.outputs:
            return 0
        return self.sampling.prompt_logprobs


_PROMPTS_OF = {
    Operation.TOKENIZE: ("text_input", "messages"),
    Operation.DETOKENIZE: ("input_ids",),
    Operation.DESCRIBE: (),
}


def decode_request(
    tensors: Tensors, parameters: Mapping[str, object], requested_outputs: Collection[str]
) -> GenerateRequest:
    """Decode what arrived at a backend.

    Args:
        tensors: input arrays by name; BYTES arrive as object arrays of bytes.
        parameters: Triton's custom request parameters; those that are not ours are ignored.
        requested_outputs: what Triton says the client asked for (everything, when it named none).

    Raises:
        RequestError: with the name of the tensor, JSON key or parameter to blame.

    """
    known = {spec.name: spec for spec in INPUTS}
    for name, array in tensors.items():
        if name not in known:
            raise invalid(name, "is not an input of this model")
        _check_shape(known[name], array)
    operation = _operation(tensors)
    if operation is not Operation.GENERATE:
        return _decode_question(operation, tensors, parameters, requested_outputs)
    given = [name for name in PROMPT_INPUTS if name in tensors]
    if len(given) != 1:
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"give exactly one of {', '.join(PROMPT_INPUTS)} (got {' and '.join(given) or 'none'})",
        )
    stream = _flag(tensors, "stream", False)
    prompt = _prompt(tensors, given[0])
    exclude = _flag(tensors, "exclude_input_in_output", stream or not isinstance(prompt, TextPrompt))
    if stream and not exclude:
        raise invalid("exclude_input_in_output", "must be true when streaming")
    if not exclude and isinstance(prompt, ChatPrompt):
        raise invalid("exclude_input_in_output", "must be true for messages, which have no text of their own")
    sampling = parse_sampling(_json_object(tensors, "sampling_parameters"))
    flagged = {output for flag, output in RETURN_FLAGS.items() if _flag(tensors, flag, False)}
    if sampling.logprobs is not None:
        flagged.add("logprobs")
    if sampling.prompt_logprobs is not None:
        flagged.add("prompt_logprobs")
    return GenerateRequest(
        prompt=prompt,
        sampling=sampling,
        stream=stream,
        echo_prompt=not exclude,
        outputs=select_outputs(requested_outputs, flagged),
        **_decode_parameters(parameters),
    )


def encode_request(request: GenerateRequest) -> tuple[dict[str, NDArray[Any]], dict[str, str | int | bool]]:
    """Tensors and request parameters that `decode_request` turns back into the same request.

    The outputs are to be named in the inference request; they are not part of the tensors.
    """
    tensors: dict[str, NDArray[Any]] = {}
    if request.operation is Operation.GENERATE:
        tensors["stream"] = np.array([request.stream])
        tensors["exclude_input_in_output"] = np.array([not request.echo_prompt])
    else:
        tensors["operation"] = _bytes(request.operation)
    if not request.add_special_tokens:
        tensors["add_special_tokens"] = np.array([False])
    match request.prompt:
        case _ if request.operation is Operation.DESCRIBE:
            pass
        case TextPrompt(text):
            tensors["text_input"] = _bytes(text)
        case TokenPrompt(token_ids):
            tensors["input_ids"] = np.array(token_ids, np.int32)
        case ChatPrompt() as chat:
            tensors["messages"] = _bytes(
                json.dumps(
                    {
                        "messages": chat.messages,
                        "tools": chat.tools,
                        "chat_template_kwargs": chat.chat_template_kwargs,
                        "add_generation_prompt": chat.add_generation_prompt,
                        "continue_final_message": chat.continue_final_message,
                    }
                )
            )
    sampling = request.sampling.to_json_object()
    if sampling:
        tensors["sampling_parameters"] = _bytes(json.dumps(sampling))
    parameters: dict[str, str | int | bool] = {}
    if request.priority != DEFAULT_PRIORITY:
        parameters["uzu_priority"] = request.priority
    if request.deadline_ms is not None:
        parameters["uzu_deadline_ms"] = request.deadline_ms
    if request.cache_salt:
        parameters["uzu_cache_salt"] = request.cache_salt
    if request.traceparent is not None:
        parameters["traceparent"] = request.traceparent
    return tensors, parameters


def parse_chat(raw: Mapping[str, object]) -> ChatPrompt:
    """A chat prompt out of the JSON object of `messages`.

    Raises:
        RequestError: unknown keys, no messages, a role or content of a wrong type, parts that are not text.

    """
    known = {f.name for f in ChatPrompt.__dataclass_fields__.values()} | {"tool_choice"}
    for name in raw:
        if name not in known:
            raise invalid(name, "is not a key of messages")
    messages = raw.get("messages")
    if not isinstance(messages, list | tuple) or not messages:
        raise invalid("messages", "must be a non-empty list")
    tools = raw.get("tools") or ()
    if not isinstance(tools, list | tuple) or not all(isinstance(t, Mapping) for t in tools):
        raise invalid("tools", "must be a list of objects")
    kwargs = raw.get("chat_template_kwargs") or {}
    if not isinstance(kwargs, Mapping):
        raise invalid("chat_template_kwargs", "must be an object")
    add = raw.get("add_generation_prompt", True)
    resume = raw.get("continue_final_message", False)
    for name, value in (("add_generation_prompt", add), ("continue_final_message", resume)):
        if not isinstance(value, bool):
            raise invalid(name, "must be true or false")
    if add and resume:
        raise invalid("continue_final_message", "needs add_generation_prompt to be false")
    return ChatPrompt(
        messages=tuple(_message(i, m) for i, m in enumerate(messages)),
        tools=tuple(tools),
        chat_template_kwargs=dict(kwargs),
        add_generation_prompt=bool(add),
        continue_final_message=bool(resume),
    )


def _message(index: int, message: object) -> Mapping[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise invalid(where, "must be an object with role and content")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise invalid(f"{where}.role", "must be a non-empty string")
    if content is None and role == "assistant":
        content = ""
    if isinstance(content, Sequence) and not isinstance(content, str):
        content = "".join(_text_part(f"{where}.content[{j}]", part) for j, part in enumerate(content))
    if not isinstance(content, str):
        raise invalid(f"{where}.content", "must be a string or a list of text parts")
    return {**message, "content": content}


def _text_part(where: str, part: object) -> str:
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise invalid(where, "must be an object with a type")
    if part["type"] != "text":
        raise unsupported(where, f"parts of type {part['type']!r:.40} are not supported by this model")
    if not isinstance(part.get("text"), str):
        raise invalid(f"{where}.text", "must be a string")
    return str(part["text"])


def _operation(tensors: Tensors) -> Operation:
    name = _text(tensors, "operation") or Operation.GENERATE.value
    try:
        return Operation(name)
    except ValueError:
        raise invalid("operation", f"must be one of {', '.join(Operation)}, not {name!r:.40}") from None


def _decode_question(
    operation: Operation, tensors: Tensors, parameters: Mapping[str, object], requested: Collection[str]
) -> GenerateRequest:
    """A request that generates nothing."""
    takes = _PROMPTS_OF[operation]
    given = [name for name in PROMPT_INPUTS if name in tensors]
    if len(given) != min(1, len(takes)) or not set(given) <= set(takes):
        raise RequestError(
            ErrorCode.INVALID_REQUEST,
            f"operation: {operation} takes {' or '.join(takes) or 'no prompt'} "
            f"(got {' and '.join(given) or 'none'})",
            "operation",
        )
    if _flag(tensors, "stream", False):
        raise invalid("stream", f"must be false for {operation}")
    return GenerateRequest(
        prompt=_prompt(tensors, given[0]) if given else TextPrompt(""),
        outputs=select_outputs(requested, _ANSWERS),
        operation=operation,
        add_special_tokens=_flag(tensors, "add_special_tokens", True),
        **_decode_parameters(parameters),
    )


def _prompt(tensors: Tensors, name: str) -> Prompt:
    if name == "text_input":
        return TextPrompt(_text(tensors, name))
    if name == "messages":
        return parse_chat(_json_object(tensors, name))
    return TokenPrompt(tuple(int(t) for t in tensors[name]))


def _decode_parameters(parameters: Mapping[str, object]) -> dict[str, Any]:
    decoded: dict[str, Any] = {}
    for name, key, low, high in (
        ("uzu_priority", "priority", -MAX_PRIORITY, MAX_PRIORITY),
        ("uzu_deadline_ms", "deadline_ms", 0, MAX_DEADLINE_MS),
    ):
        value = parameters.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise invalid(name, f"must be an integer between {low} and {high}, not {value!r:.40}")
        decoded[key] = value
    for name, key in (("uzu_cache_salt", "cache_salt"), ("traceparent", "traceparent")):
        value = parameters.get(name)
        if value is None:
            continue
        if not isinstance(value, str) or len(value) > 256:
            raise invalid(name, "must be a string of at most 256 characters")
        decoded[key] = value
    return decoded


def _check_shape(spec: TensorSpec, array: NDArray[Any]) -> None:
    expected = "".join(f"[{d if d > 0 else 'n'}]" for d in spec.dims)
    if array.ndim != len(spec.dims) or any(
        w > 0 and w != g for w, g in zip(spec.dims, array.shape, strict=True)
    ):
        raise invalid(spec.name, f"must have the shape {expected}, not {list(array.shape)}")


def _text(tensors: Tensors, name: str) -> str:
    if name not in tensors:
        return ""
    value = tensors[name][0]
    if isinstance(value, str):
        return value
    try:
        return bytes(value).decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(name, f"is not valid UTF-8 (byte {error.start})") from None


def _flag(tensors: Tensors, name: str, default: bool) -> bool:
    return bool(tensors[name][0]) if name in tensors else default


def _json_object(tensors: Tensors, name: str) -> dict[str, object]:
    text = _text(tensors, name)
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be parsed"
        raise invalid(name, f"must be a JSON object: {reason}") from None
    if not isinstance(value, dict):
        raise invalid(name, "must be a JSON object")
    return value


def _bytes(text: str) -> NDArray[np.object_]:
    return np.array([text.encode("utf-8", "surrogatepass")], dtype=np.object_)
