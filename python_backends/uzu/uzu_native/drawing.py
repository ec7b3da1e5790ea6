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
        tokens: its new tokens, at least one if the entry samples; or what went wrong with it.
        scores: their log-probabilities, where the request wants them.
        prompt_scores: those of the prompt's tokens that come next, likewise.
    """

    entry: Entry
    tokens: list[int] | Exception
    scores: list[Scores]
    prompt_scores: list[Scores]


def draw_step(logits: NDArray[np.float32], step: ScheduledStep, end_token_ids: frozenset[int]) -> list[Drawn]:
    """What the step brought the sequences that have logits in it, unless they have ended meanwhile.

    Those whose last known token was computed get new tokens.

    Args:
        logits: [rows, vocabulary], in the order of the step's rows.
        step: what was computed.
        end_token_ids: tokens that end a text.
    """
    parts = _parts(logits, step)
    draws = [_draw(entry, end_token_ids, logits.shape[1]) for entry, _ in parts if entry.samples]
    if any(entry.scored for entry, _ in parts):
        ends = [rows[-1 - len(entry.draft) :] for entry, rows in parts if entry.samples]
        logits = np.concatenate(ends) if ends else logits[:0]
    chosen = iter(sample(logits, draws) if draws else ())
    drawn = []
    for entry, rows in parts:
        tokens = next(chosen) if entry.samples else []
        if not entry.sequence.finished:
            count = entry.sequence.request.logprob_count
            scores: list[Scores] = []
            if count is not None and not isinstance(tokens, Exception):
                scores = score(rows[-1 - len(entry.draft) :], tokens, count)
            drawn.append(Drawn(entry, tokens, scores, _score_prompt(rows, entry)))
    return drawn


def _parts(logits: NDArray[np.float32], step: ScheduledStep) -> list[tuple[Entry, NDArray[np.float32]]]:
    """The entries that have logits, with their rows."""
    parts = []
    end = 0
    for entry in step.entries:
        begin, end = end, end + entry.logit_rows
        if end > begin:
            parts.append((entry, logits[begin:end]))
    return parts


def _score_prompt(rows: NDArray[np.float32], entry: Entry) -> list[Scores]:
    sequence = entry.sequence
    count = sequence.request.prompt_logprob_count
    if not entry.scored or count is None:
        return []
    known = max(0, len(sequence.prompt_places) + 1 - entry.scored.start)
    tokens = [sequence.token_ids[position] for position in entry.scored[known:]]
    return score(rows[known:], tokens, count)


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
