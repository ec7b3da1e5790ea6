"""Chooses the next tokens of each sequence from its logits.

A row's choice depends on its logits, its parameters, its seed and its position alone: chance is one number
for each token, counted and not drawn (`uzu_native.chance`). So a request makes the same choices in any batch,
after a preemption and when its tokens are verified several at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from uzu_contract.sampling import SamplingParams
from uzu_native.chance import CountedNumbers, pick
from uzu_native.filters import candidates
from uzu_native.penalties import LogitAdjustment


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
        seed: what chance is keyed by.
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
    numbers = CountedNumbers()
    chosen: list[list[int] | Exception] = []
    row = 0
    for draw, greedy in zip(draws, is_greedy, strict=True):
        try:
            chosen.append(_verify(logits[row:], highest[row:] if greedy else None, draw, numbers))
        except Exception as error:
            chosen.append(error)
        row += 1 + len(draw.draft)
    return chosen


def _verify(
    logits: NDArray[np.float32], highest: list[int] | None, draw: Draw, numbers: CountedNumbers
) -> list[int]:
    """Tokens from consecutive rows, up to the first that differs from the guess."""
    tokens: list[int] = []
    for index, guess in enumerate((*draw.draft, None)):
        if highest is None:
            token = _sample_row(logits[index], draw, tokens, numbers)
        else:
            token = highest[index]
            _checked(logits[index, token])
        tokens.append(token)
        if draw.guide is not None:
            draw.guide.advance(token)
            if draw.guide.is_complete:
                break
        if token != guess:
            break
    return tokens


def _sample_row(row: NDArray[np.float32], draw: Draw, following: list[int], numbers: CountedNumbers) -> int:
    """One token, after those that this step has sampled already."""
    position = draw.position + len(following)
    adjusted = row if draw.adjustment is None else draw.adjustment.apply(row, following)
    banned = draw.banned if position < draw.banned_until else ()
    if draw.guide is not None:
        allowed = _without(draw.guide.allowed(), banned)
        # Words that are banned may leave nothing of what the form allows; then the form goes first.
        left = adjusted[allowed]
        return int(allowed[_choose(left if left.max() > -np.inf else row[allowed], draw, position, numbers)])
    if banned:
        adjusted = adjusted.copy()
        adjusted[list(banned)] = -np.inf
    return _choose(adjusted, draw, position, numbers)


def _choose(row: NDArray[np.float32], draw: Draw, position: int, numbers: CountedNumbers) -> int:
    place = int(row.argmax())
    top = _checked(row[place])
    if draw.sampling.temperature != 0 and draw.sampling.top_k != 1:
        kept = candidates(row, draw.sampling, top)
        place = kept.place(pick(kept.weights, numbers.uniform(draw.seed, position)))
    return place


def _checked(top: np.float32) -> np.float32:
    """The highest logit of a row; among broken ones it is not finite."""
    if not math.isfinite(top):
        raise ValueError(f"the highest logit is {top}")
    return top


def _without(allowed: NDArray[np.int64], banned: tuple[int, ...]) -> NDArray[np.int64]:
    """What is allowed and not banned; all that is allowed when all of it is banned."""
    if not banned:
        return allowed
    left = np.setdiff1d(allowed, banned, assume_unique=False)
    return left if len(left) else allowed
