"""From OpenAI's request bodies to requests of the LLM contract. `replies` is the way back."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from uzu_contract.errors import RequestError, invalid, unsupported
from uzu_contract.request import ChatPrompt, GenerateRequest, TextPrompt, parse_chat
from uzu_contract.sampling import SAMPLING_FIELDS, SamplingParams, parse_sampling
from uzu_gateway.engine.structured import wanted_form
from uzu_gateway.schemas.chat import ChatRequest
from uzu_gateway.schemas.completions import CompletionRequest
from uzu_gateway.schemas.fields import MAX_CHOICES, GenerationFields

OUTPUTS = frozenset({"text_output", "token_ids", "finish_reason", "num_input_tokens", "num_cached_tokens"})
"""What replies are made of."""

MAX_GENERATIONS = 1024
"""Most choices of one request with `n` over 1, over all its prompts."""

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class CompletionPlan:
    """What a completions body asks for.

    Args:
        requests: one per choice, in their order: all choices of the first prompt first.
        echoes: for each, the text that goes before the answer.
        choices_per_prompt: how many choices share a prompt.
        kept_per_prompt: how many of these, the likeliest, the client gets.

    """

    requests: tuple[GenerateRequest, ...]
    echoes: tuple[str, ...]
    choices_per_prompt: int = 1
    kept_per_prompt: int = 1


def completion_plan(
    body: CompletionRequest, *, max_prompts: int, traceparent: str | None = None
) -> CompletionPlan:
    """Requests for a completions body.

    Raises:
        RequestError: naming the field.

    """
    stream = _stream(body)
    if len(body.prompt) > max_prompts:
        raise invalid("prompt", f"takes at most {max_prompts} prompts, not {len(body.prompt)}")
    kept = choice_count(body)
    choices = candidate_count(body, kept)
    if choices > 1 and choices * len(body.prompt) > MAX_GENERATIONS:
        blamed = "n" if choices == kept else "best_of"
        raise invalid(blamed, f"times the prompts must be at most {MAX_GENERATIONS}")
    sampling = sampling_of(body)
    outputs = _outputs(sampling)
    if choices > kept:
        outputs |= {"logprobs"}
    if body.echo and sampling.logprobs is not None:
        # What is shown again of the prompt has its log-probabilities as well.
        count = max(sampling.logprobs, sampling.prompt_logprobs or 0)
        sampling = replace(sampling, prompt_logprobs=count)
        outputs |= {"prompt_logprobs"}
    requests: list[GenerateRequest] = []
    echoes: list[str] = []
    for prompt in body.prompt:
        is_text = isinstance(prompt, TextPrompt)
        if body.echo and stream and not is_text:
            raise unsupported("echo", "is not supported for streams of token id prompts")
        request = GenerateRequest(
            prompt=prompt,
            sampling=sampling,
            stream=stream,
            # The text of tokens is known to the backend alone.
            echo_prompt=bool(body.echo) and not is_text,
            outputs=outputs,
            cache_salt=body.cache_salt or "",
            traceparent=_traceparent(traceparent),
        )
        requests += _fan_out(request, choices)
        echoes += [prompt.text if body.echo and isinstance(prompt, TextPrompt) else ""] * choices
    return CompletionPlan(tuple(requests), tuple(echoes), choices, kept)


def chat_requests(body: ChatRequest, *, traceparent: str | None = None) -> tuple[GenerateRequest, ...]:
    """Requests for a chat body, one per choice.

    Raises:
        RequestError: naming the field.

    """
    count = choice_count(body)
    if body.best_of not in (None, count):
        raise unsupported("best_of", f"must be the same as n ({count}) or left out")
    return _fan_out(chat_request(body, traceparent=traceparent), count)


def choice_count(body: GenerationFields) -> int:
    """How many answers a body wants for each prompt.

    Raises:
        RequestError: a number out of range.

    """
    count = 1 if body.n is None else body.n
    if not 1 <= count <= MAX_CHOICES:
        raise invalid("n", f"must be between 1 and {MAX_CHOICES}, not {count}")
    return count


def candidate_count(body: CompletionRequest, kept: int) -> int:
    """How many answers are made of which the likeliest `kept` are given.

    Raises:
        RequestError: a number out of range, or choosing in a stream, where what is sent cannot be taken back.

    """
    if body.best_of is None:
        return kept
    if not kept <= body.best_of <= MAX_CHOICES:
        raise invalid("best_of", f"must be between n ({kept}) and {MAX_CHOICES}, not {body.best_of}")
    if body.best_of > kept and body.stream:
        raise unsupported("best_of", f"must be the same as n ({kept}) for streams")
    return body.best_of


def _fan_out(request: GenerateRequest, count: int) -> tuple[GenerateRequest, ...]:
    """The request once for each choice; choice i has the seed plus i.

    The first reports on the prompt for all, but not in streams, where another may come before it.
    """
    return tuple(_choice(request, i) for i in range(count))


def _choice(request: GenerateRequest, index: int) -> GenerateRequest:
    if index == 0:
        return request
    seed = request.sampling.seed
    seed = None if seed is None else (seed + index) % 2**64
    sampling = replace(request.sampling, seed=seed)
    if request.stream:
        return replace(request, sampling=sampling)
    return replace(
        request,
        sampling=replace(sampling, prompt_logprobs=None),
        outputs=request.outputs - {"prompt_logprobs"},
    )


def chat_request(body: ChatRequest, *, traceparent: str | None = None) -> GenerateRequest:
    """The request for one choice of a chat body.

    Raises:
        RequestError: naming the field.

    """
    sampling = sampling_of(body)
    return GenerateRequest(
        prompt=_chat_prompt(body),
        sampling=sampling,
        stream=_stream(body),
        outputs=_outputs(sampling),
        cache_salt=body.cache_salt or "",
        traceparent=_traceparent(traceparent),
    )


def sampling_of(body: GenerationFields) -> SamplingParams:
    """The sampling parameters of a body.

    Raises:
        RequestError: naming the field.

    """
    raw = {name: getattr(body, name) for name in SAMPLING_FIELDS}
    if isinstance(body, ChatRequest):
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs", "is allowed only with logprobs: true")
        raw["logprobs"] = body.top_logprobs or 0 if body.logprobs else None
    if body.prompt_logprobs is not None and body.stream:
        raise unsupported("prompt_logprobs", "is not supported for streams")
    form = wanted_form(body)
    raw["structured_outputs"] = form.raw
    renamed = body.max_completion_tokens is not None
    if renamed:
        if body.max_tokens not in (None, body.max_completion_tokens):
            raise invalid("max_completion_tokens", "differs from max_tokens; give one of them")
        raw["max_tokens"] = body.max_completion_tokens
    try:
        return parse_sampling(raw)
    except RequestError as error:
        if renamed and error.param == "max_tokens":
            raise invalid("max_completion_tokens", error.message.partition(": ")[2]) from None
        if error.param == "logprobs" and isinstance(body, ChatRequest):
            raise invalid("top_logprobs", error.message.partition(": ")[2]) from None
        raise form.blame(error) from None


def _outputs(sampling: SamplingParams) -> frozenset[str]:
    asked = {name for name in ("logprobs", "prompt_logprobs") if getattr(sampling, name) is not None}
    return OUTPUTS | asked


def _stream(body: GenerationFields) -> bool:
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "is allowed only with stream: true")
    return bool(body.stream)


def _chat_prompt(body: ChatRequest) -> ChatPrompt:
    resume = bool(body.continue_final_message)
    begin = body.add_generation_prompt
    return parse_chat(
        {
            "messages": body.messages,
            "chat_template_kwargs": body.chat_template_kwargs,
            "add_generation_prompt": not resume if begin is None else begin,
            "continue_final_message": resume,
        }
    )


def _traceparent(header: str | None) -> str | None:
    """The trace context, when it is one: a client cannot be blamed for what a proxy adds."""
    return header if header is not None and _TRACEPARENT.fullmatch(header) else None
