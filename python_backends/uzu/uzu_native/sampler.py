"""Chooses the next tokens of each sequence from its logits.

A row's choice depends on its logits, its parameters, its seed and its position alone. The noise is
counter-based (Philox keyed by the seed, counted by the position) and added to the logits (the Gumbel-max
trick), so a request draws the same numbers in any batch, after a preemption and when its tokens are verified
several at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from uzu_contract.sampling import SamplingParams
from uzu_native.penalties import LogitAdjustment

_NOISE_RANGE = 21.0
"""Upper bound of the difference of two draws of the noise, in nats: the uniforms lie in [2^-25, 1 - 2^-25],
so the Gumbel draws lie in [-2.9, 17.4]."""


class Guide(Protocol):
    """Knows which tokens may come next in a sequence; `uzu_native.guidance.GrammarGuide` is the real one."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow."""

    def allowed(self) -> NDArray[np.int64]:
        """Ids of the tokens that may come next, ascending; at least one.

        Raises:
            RequestError: the sequence cannot go on.
        """

    def advance(self, token: int) -> None:
        """Take a token, one of those allowed, as the next one.

        Raises:
            RequestError: the sequence cannot go on.
        """

    def prepare(self) -> None:
        """Work ahead for `allowed`; raises nothing."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What to sample for one sequence: its next token, and one more after each guess that holds.

    Args:
        sampling: the request's parameters.
        seed: key of its noise.
        position: how many tokens it has generated before.
        draft: guesses of the next tokens, to be verified.
        banned: tokens that must not be chosen before `banned_until` tokens have been generated.
        banned_until: see `banned`.
        adjustment: its penalties and biases; None when it has none.
        guide: says which tokens it may choose from, and is told what it chose; None allows all.
    """

    sampling: SamplingParams
    seed: int
    position: int
    draft: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    banned_until: int = 0
    adjustment: LogitAdjustment | None = None
    guide: Guide | None = None

    @property
    def takes_highest(self) -> bool:
        """Whether the highest of the model's own logits is what it chooses."""
        free = self.adjustment is None and self.guide is None
        return free and self.sampling.temperature == 0 and self.position >= self.banned_until


def sample(logits: NDArray[np.float32], draws: list[Draw]) -> list[list[int] | Exception]:
    """The new tokens of each sequence, at least one; or what went wrong with it, which is no other's fault.

    A token is sampled from the model in any case; while it equals the guess, the next row holds the logits
    that follow it, and another is sampled from those. So guesses change how many tokens come, never which.

    Args:
        logits: [rows, vocabulary]; not changed. A draw has a row, and one more for each guess.
        draws: in the order of the rows.
    """
    is_greedy = [draw.takes_highest for draw in draws]
    highest = [int(token) for token in logits.argmax(axis=1)] if any(is_greedy) else []
    chosen: list[list[int] | Exception] = []
    row = 0
    for draw, greedy in zip(draws, is_greedy, strict=True):
        try:
            chosen.append(_verify(logits[row:], highest[row:] if greedy else None, draw))
        except Exception as error:
            chosen.append(error)
        row += 1 + len(draw.draft)
    return chosen


def _verify(logits: NDArray[np.float32], highest: list[int] | None, draw: Draw) -> list[int]:
    """Tokens from consecutive rows, up to the first that differs from the guess."""
    tokens: list[int] = []
    for index, guess in enumerate((*draw.draft, None)):
        token = highest[index] if highest is not None else _sample_row(logits[index], draw, tokens)
        tokens.append(token)
        if draw.guide is not None:
            draw.guide.advance(token)
            if draw.guide.is_complete:
                break
        if token != guess:
            break
    return tokens


def _sample_row(row: NDArray[np.float32], draw: Draw, following: list[int]) -> int:
    """One token, after those that this step has sampled already."""
    position = draw.position + len(following)
    vocabulary = len(row)
    if draw.adjustment is not None:
        row = draw.adjustment.apply(row, following)
    banned = draw.banned if position < draw.banned_until else ()
    allowed = None
    if draw.guide is not None:
        allowed = _without(draw.guide.allowed(), banned)
        row = row[allowed]
    elif banned:
        row = row.copy()
        row[list(banned)] = -np.inf
    sampling = draw.sampling
    if sampling.temperature == 0 or sampling.top_k == 1:
        best = int(row.argmax())
        return best if allowed is None else int(allowed[best])
    candidates = _candidates(row, sampling)
    scaled = row[candidates].astype(np.float64) / sampling.temperature
    ids = candidates if allowed is None else allowed[candidates]
    noise = _gumbel(draw.seed, position, vocabulary, ids)
    return int(ids[int((scaled + noise).argmax())])


def _without(allowed: NDArray[np.int64], banned: tuple[int, ...]) -> NDArray[np.int64]:
    """What is allowed and not banned; all that is allowed when all of it is banned."""
    if not banned:
        return allowed
    left = np.setdiff1d(allowed, banned, assume_unique=False)
    return left if len(left) else allowed


def _gumbel(seed: int, position: int, vocabulary: int, candidates: NDArray[np.int64]) -> NDArray[np.float64]:
    """Noise for these tokens. A token's noise depends on its id, not on which others are candidates.

    The uniforms are multiples of 2^-24. In float32 the greatest would be rounded to 1 here, whose noise is
    infinite.
    """
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, position, 0, 0]))
    uniform = generator.random(vocabulary, dtype=np.float32)[candidates].astype(np.float64)
    noise: NDArray[np.float64] = -np.log(-np.log(uniform + 2**-25))
    return noise


def _candidates(row: NDArray[np.float32], sampling: SamplingParams) -> NDArray[np.int64]:
    """Ids of the tokens that may be chosen, after top-k, top-p and min-p, in that order.

    Without a filter, tokens that no draw of the noise could lift to the top are left out, which changes
    nothing but the time. Ties at a border are kept by the smaller id.
    """
    temperature = np.float32(sampling.temperature)
    top = row.max()
    if sampling.top_k == 0 and sampling.top_p >= 1:
        reach = np.float32(_NOISE_RANGE)
        if sampling.min_p > 0:
            reach = min(reach, np.float32(-np.log(sampling.min_p)))
        return np.flatnonzero(row >= top - reach * temperature)
    ids = _leading(row, top, sampling, temperature)
    weights = np.exp((row[ids] - top) / temperature, dtype=np.float64)
    if sampling.top_k:
        ids, weights = ids[: sampling.top_k], weights[: sampling.top_k]
        total = weights.sum()
    else:
        total = np.exp((row - top) / temperature).sum(dtype=np.float64)
    if sampling.top_p < 1:
        reached = np.cumsum(weights) >= sampling.top_p * total
        keep = int(reached.argmax()) + 1 if reached.any() else len(ids)
        ids, weights = ids[:keep], weights[:keep]
    if sampling.min_p > 0:
        ids = ids[weights >= sampling.min_p]
    return ids


def _leading(
    row: NDArray[np.float32], top: np.float32, sampling: SamplingParams, temperature: np.float32
) -> NDArray[np.int64]:
    """The most likely tokens in order, as many as top-k or top-p needs, from a wider and wider slice."""
    reach = np.float32(8)
    scale = np.float32(1) if sampling.top_k else temperature
    total = None if sampling.top_k else np.exp((row - top) / temperature).sum(dtype=np.float64)
    while True:
        ids = np.flatnonzero(row >= top - reach * scale)
        if len(ids) == len(row):
            break
        if total is None:
            if len(ids) >= sampling.top_k:
                break
        elif np.exp((row[ids] - top) / temperature).sum(dtype=np.float64) >= sampling.top_p * total:
            break
        reach *= np.float32(2)
        if not np.isfinite(reach):
            break
    return ids[np.argsort(-row[ids], kind="stable")]
