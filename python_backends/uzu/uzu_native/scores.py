"""Log-probabilities of sampled tokens, by the model's own logits (vLLM's `raw_logprobs`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from uzu_contract.logprobs import ScoredToken, TokenLogprobs
from uzu_native.ranking import highest

LEAST_LOGPROB = -9999.0
"""Stands for what JSON has no number for."""


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
    peak = row.max()
    log_total = math.log(np.exp(row - peak).sum())

    def entry(of: int, rank: int) -> tuple[int, float, int]:
        value = float(row[of]) - float(peak) - log_total
        return of, value if value > LEAST_LOGPROB else LEAST_LOGPROB, rank

    likeliest = highest(row, count)
    # Of those in descending order, as many are likelier as come before the first equal one.
    ranks = np.searchsorted(-row[likeliest], -row[likeliest], side="left") + 1
    chosen = entry(token, int(np.count_nonzero(row > row[token])) + 1)
    return Scores(chosen, tuple(map(entry, likeliest.tolist(), ranks.tolist())))
