"""One response of a generation, and its two-way translation to output tensors."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uzu_contract.logprobs import (
    PromptLogprobs,
    TokenLogprobs,
    decode_logprobs,
    decode_prompt_logprobs,
    encode_logprobs,
    encode_prompt_logprobs,
)
from uzu_contract.tensors import ALWAYS_SENT, OUTPUT_NAMES

UNFINISHED = "None"
"""`finish_reason` on the wire before the end, as the official vllm_backend sends it."""


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDetails:
    """What an operation other than `generate` says beside its answer.

    Args:
        context_tokens: longest prompt plus output.
        operations: what the model can do.
        has_chat_template: whether it takes `messages`.
        tokens: of `tokenize`: how the vocabulary writes each token.

    """

    context_tokens: int
    operations: tuple[str, ...]
    has_chat_template: bool
    tokens: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateChunk:
    """What one response says about one choice.

    Args:
        text: new text; the concatenation over a stream is the whole text, and no character is ever split.
        token_ids: new tokens (they may be ahead of the text, which waits for whole characters).
        choice_index: which choice.
        finish_reason: set in the choice's last response.
        stop_reason: the stop string, or the stop token's id, that ended it.
        num_input_tokens: tokens of the prompt.
        num_cached_tokens: of these, how many came from the prefix cache.
        logprobs: one for each of the tokens; None when nobody asked.
        prompt_logprobs: in the first response, when they were asked for.
        perf_metrics: in the last response; the keys are those of `uzu_contract.metrics.PERF_METRICS`.
        details: of an operation other than `generate`; see `ModelDetails`.

    """

    text: str
    token_ids: tuple[int, ...] = ()
    choice_index: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | None = None
    num_input_tokens: int = 0
    num_cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    perf_metrics: Mapping[str, float] = field(default_factory=dict)
    details: ModelDetails | None = None


def select_outputs(requested: Collection[str], flagged: Collection[str]) -> frozenset[str]:
    """Which outputs to send.

    Triton reports all outputs as requested when the client named none, so naming all of them means the same
    as naming none: the text, and what `return_…` flags ask for.
    """
    named = set(requested) & set(OUTPUT_NAMES)
    if len(named) == len(OUTPUT_NAMES):
        named = set()
    return frozenset({ALWAYS_SENT, *named, *flagged})


def encode_chunk(chunk: GenerateChunk, outputs: Collection[str]) -> dict[str, NDArray[Any]]:
    """Output arrays of a response, in the order of the table. BYTES are object arrays of bytes."""
    encoded: dict[str, NDArray[Any]] = {}
    for name in OUTPUT_NAMES:
        if name in outputs:
            value = _encode(chunk, name)
            if value is not None:
                encoded[name] = value
    return encoded


def decode_chunk(arrays: Mapping[str, NDArray[Any]]) -> GenerateChunk:
    """The chunk that `encode_chunk` wrote; outputs that were not sent keep their defaults."""
    finish = _read_text(arrays, "finish_reason", UNFINISHED)
    return GenerateChunk(
        text=_read_text(arrays, "text_output", ""),
        token_ids=tuple(int(t) for t in arrays.get("token_ids", ())),
        choice_index=int(arrays["choice_index"][0]) if "choice_index" in arrays else 0,
        finish_reason=None if finish == UNFINISHED else FinishReason(finish),
        stop_reason=_read_text(arrays, "stop_reason", "") or None,
        num_input_tokens=int(arrays["num_input_tokens"][0]) if "num_input_tokens" in arrays else 0,
        num_cached_tokens=int(arrays["num_cached_tokens"][0]) if "num_cached_tokens" in arrays else 0,
        logprobs=decode_logprobs(_read_text(arrays, "logprobs", "[]")) if "logprobs" in arrays else None,
        prompt_logprobs=(
            decode_prompt_logprobs(_read_text(arrays, "prompt_logprobs", ""))
            if "prompt_logprobs" in arrays
            else None
        ),
        perf_metrics=json.loads(_read_text(arrays, "perf_metrics", "") or "{}"),
        details=_read_details(_read_text(arrays, "details", "")),
    )


def _encode(chunk: GenerateChunk, name: str) -> NDArray[Any] | None:
    match name:
        case "text_output":
            return _bytes(chunk.text)
        case "token_ids":
            return np.array(chunk.token_ids, np.int32)
        case "choice_index":
            return np.array([chunk.choice_index], np.int32)
        case "finish_reason":
            return _bytes(chunk.finish_reason or UNFINISHED)
        case "stop_reason":
            return _bytes(chunk.stop_reason or "")
        case "logprobs":
            return None if chunk.logprobs is None else _bytes(encode_logprobs(chunk.logprobs))
        case "prompt_logprobs":
            prompt = chunk.prompt_logprobs
            return None if prompt is None else _bytes(encode_prompt_logprobs(prompt))
        case "num_input_tokens":
            return np.array([chunk.num_input_tokens], np.uint32)
        case "num_output_tokens":
            return np.array([len(chunk.token_ids)], np.uint32)
        case "num_cached_tokens":
            return np.array([chunk.num_cached_tokens], np.uint32)
        case "perf_metrics":
            return _bytes(json.dumps(dict(chunk.perf_metrics))) if chunk.perf_metrics else None
        case "details":
            return None if chunk.details is None else _bytes(json.dumps(asdict(chunk.details)))
    return None


def _read_details(text: str) -> ModelDetails | None:
    """The details; keys of a newer backend are passed over."""
    if not text:
        return None
    raw = json.loads(text)
    tokens = raw.get("tokens")
    return ModelDetails(
        context_tokens=int(raw["context_tokens"]),
        operations=tuple(map(str, raw["operations"])),
        has_chat_template=bool(raw["has_chat_template"]),
        tokens=None if tokens is None else tuple(map(str, tokens)),
    )


def _read_text(arrays: Mapping[str, NDArray[Any]], name: str, default: str) -> str:
    if name not in arrays:
        return default
    value = arrays[name][0]
    return value if isinstance(value, str) else bytes(value).decode("utf-8")


def _bytes(text: str) -> NDArray[np.object_]:
    return np.array([text.encode("utf-8")], dtype=np.object_)
