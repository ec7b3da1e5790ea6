"""Log-probabilities of sampled tokens, by the model's own logits (vLLM's `raw_logprobs`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from uzu_contract.logprobs import ScoredToken, TokenLogprobs

LEAST_LOGPROB = -9999.0
"""Stands for what JSON has no number for."""

_SEGMENT = 256


@dataclass(frozen=True, slots=True)
class Scores:
    """Token ids with their log-probabilities and ranks: the chosen one, and the likeliest in order."""

    chosen: tuple[int, float, int]
    top: tuple[tuple[int, float, int], ...]

    def spelled(self, token_bytes: Callable[[int], bytes]) -> TokenLogprobs:
        """As the contract has it."""

        def scored(entry: tuple[int, float, int]) -> ScoredToken:
            token, logprob, rank = entry
            return ScoredToken(token, token_bytes(token), logprob, rank)

        return TokenLogprobs(scored(self.chosen), tuple(map(scored, self.top)))


def score(logits: NDArray[np.float32], tokens: Sequence[int], count: int) -> list[Scores]:
    """Scores of consecutive tokens.

    Args:
        logits: [rows, vocabulary]; row i is what token i was sampled from.
        tokens: what was sampled.
        count: how many of the likeliest tokens to list beside.
    """
    return [_score_row(row, token, count) for row, token in zip(logits, tokens, strict=False)]


def _score_row(row: NDArray[np.float32], token: int, count: int) -> Scores:
    highest = row.max()
    log_total = float(np.log(np.exp(row - highest).sum(dtype=np.float64)))

    def logprob(of: int) -> float:
        value = float(row[of]) - float(highest) - log_total
        return value if value > LEAST_LOGPROB else LEAST_LOGPROB

    top: list[tuple[int, float, int]] = []
    for place, of in enumerate(_likeliest(row, count), 1):
        is_tie = bool(top) and row[of] == row[top[-1][0]]
        top.append((of, logprob(of), top[-1][2] if is_tie else place))
    return Scores((token, logprob(token), int((row > row[token]).sum()) + 1), tuple(top))


def _likeliest(row: NDArray[np.float32], count: int) -> list[int]:
    """Ids of the highest logits in descending order; of equal ones the smaller id goes first."""
    if count == 0:
        return []
    count = min(count, len(row))
    # The highest of each segment are so many logits: no more than `count` segments hold one of the likeliest.
    highest = np.maximum.reduceat(row, np.arange(0, len(row), _SEGMENT))
    if len(highest) > count:
        border = np.partition(highest, len(highest) - count)[len(highest) - count]
    else:
        border = row.min()
    ids = np.flatnonzero(row >= border)
    return [int(token) for token in ids[np.argsort(-row[ids], kind="stable")][:count]]
