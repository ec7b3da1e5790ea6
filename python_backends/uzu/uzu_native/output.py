"""Turns a sequence's new tokens into what its listener is told."""

from __future__ import annotations

from dataclasses import dataclass

from uzu_contract.logprobs import TokenLogprobs
from uzu_contract.response import FinishReason, GenerateChunk
from uzu_native.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ends.

    Args:
        reason: as the client is told.
        detail: the stop string or the stop token's id, if one ended it.
        token_is_text: whether the last token belongs to the text; end and stop tokens do not.
    """

    reason: FinishReason
    detail: str | None = None
    token_is_text: bool = True


def ending_of(sequence: Sequence, end_token_ids: frozenset[int], completes: bool = False) -> Ending | None:
    """Whether the last token ends the sequence, as far as tokens can tell; stop strings show in the text.

    Args:
        sequence: whose last token it is.
        end_token_ids: tokens that end a text.
        completes: whether the sequence's guide allows nothing after it, whatever else was asked for.
    """
    token = sequence.token_ids[-1]
    sampling = sequence.request.sampling
    if token in sampling.stop_token_ids:
        return Ending(FinishReason.STOP, str(token), token_is_text=False)
    if token in end_token_ids and (completes or not sampling.ignore_eos):
        return Ending(FinishReason.STOP, token_is_text=False)
    if completes:
        return Ending(FinishReason.STOP)
    if len(sequence.token_ids) >= sequence.max_length:
        return Ending(FinishReason.LENGTH)
    return None


def write_output(
    sequence: Sequence,
    token: int,
    ending: Ending | None,
    logprobs: TokenLogprobs | None = None,
) -> Ending | None:
    """Pass on what a new token makes due, and say whether, and why, the sequence is over.

    Args:
        sequence: whose token it is.
        token: the token, already the sequence's last one or one before it.
        ending: what `ending_of` said of it. A stop string in the text goes before.
        logprobs: the token's, if the request wants them.
    """
    stream = sequence.text_stream
    sequence.unsent_tokens.append(token)
    if logprobs is not None:
        sequence.unsent_logprobs.append(logprobs)
    text = stream.push(token) if ending is None or ending.token_is_text else ""
    if ending is not None and stream.stop_reason is None:
        text += stream.finish()
    if stream.stop_reason is not None:
        ending = Ending(FinishReason.STOP, stream.stop_reason)
    if text:
        sequence.unsent_text.append(text)
    if ending is not None or (text and sequence.request.stream):
        _send(sequence, ending)
    return ending


def _send(sequence: Sequence, ending: Ending | None) -> None:
    chunk = GenerateChunk(
        text="".join(sequence.unsent_text),
        token_ids=tuple(sequence.unsent_tokens),
        finish_reason=ending.reason if ending else None,
        stop_reason=ending.detail if ending else None,
        num_input_tokens=sequence.prompt_length,
        num_cached_tokens=sequence.cached_tokens,
        logprobs=None if sequence.request.logprob_count is None else tuple(sequence.unsent_logprobs),
        prompt_logprobs=sequence.unsent_prompt,
        perf_metrics=_perf_metrics(sequence) if ending else {},
    )
    sequence.unsent_text.clear()
    sequence.unsent_tokens.clear()
    sequence.unsent_logprobs.clear()
    sequence.unsent_prompt = None
    sequence.listener.on_chunk(chunk)


def _perf_metrics(sequence: Sequence) -> dict[str, float]:
    admitted_s = sequence.arrival_s if sequence.admitted_s is None else sequence.admitted_s
    first_s = admitted_s if sequence.first_token_s is None else sequence.first_token_s
    return {
        "queue_ms": round(1000 * (admitted_s - sequence.arrival_s), 3),
        "prefill_ms": round(1000 * (first_s - admitted_s), 3),
        "ttft_ms": round(1000 * (first_s - sequence.arrival_s), 3),
        "decode_ms": round(1000 * (sequence.last_token_s - first_s), 3),
        "steps": sequence.steps,
        "cached": sequence.cached_tokens,
        "preemptions": sequence.preemptions,
        "drafted": sequence.drafts.drafted_total,
        "accepted": sequence.drafts.accepted_total,
    }
