"""From a step's logits to each sequence's new tokens: what is drawn, how, and its scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from uzu_native.sampler import Draw, sample
from uzu_native.scheduler import Entry, ScheduledStep
from uzu_native.scores import Scores, score


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step brought one sequence.

    Args:
        entry: its part in the step.
        tokens: its new tokens, at least one; or what went wrong with it.
        scores: their log-probabilities, where the request wants them.
    """

    entry: Entry
    tokens: list[int] | Exception
    scores: list[Scores]


def draw_step(logits: NDArray[np.float32], step: ScheduledStep, end_token_ids: frozenset[int]) -> list[Drawn]:
    """New tokens of the sequences whose last known token was computed, unless they have ended meanwhile.

    Args:
        logits: [rows, vocabulary], in the order of the step's rows.
        step: what was computed.
        end_token_ids: tokens that end a text.
    """
    entries = [entry for entry in step.entries if entry.samples]
    if not entries:
        return []
    draws = [_draw(entry, end_token_ids, logits.shape[1]) for entry in entries]
    drawn = []
    row = 0
    for entry, tokens in zip(entries, sample(logits, draws), strict=True):
        rows = logits[row : row + 1 + len(entry.draft)]
        row += len(rows)
        if not entry.sequence.finished:
            count = entry.sequence.request.logprob_count
            scored = [] if count is None or isinstance(tokens, Exception) else score(rows, tokens, count)
            drawn.append(Drawn(entry, tokens, scored))
    return drawn


def _draw(entry: Entry, end_token_ids: frozenset[int], vocabulary: int) -> Draw:
    sequence = entry.sequence
    sampling = sequence.request.sampling
    banned: tuple[int, ...] = ()
    if sequence.generated < sampling.min_tokens:
        ends = () if sampling.ignore_eos else end_token_ids
        banned = tuple(token for token in (*ends, *sampling.stop_token_ids) if token < vocabulary)
    return Draw(
        sampling,
        sequence.seed,
        sequence.generated,
        entry.draft,
        banned,
        sampling.min_tokens,
        sequence.adjustment,
        sequence.guide,
    )
