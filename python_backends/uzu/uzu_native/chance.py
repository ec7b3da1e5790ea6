"""Draws by chance from weights, with one counted random number for each token.

The number is the first that Philox gives for the seed as key and the position as counter, so it depends on
nothing else, and is turned into a token by inverting the cumulative distribution.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEGMENT = 256


class CountedNumbers:
    """Random numbers that are looked up and not drawn. It only saves making a generator for each of them."""

    def __init__(self) -> None:
        self._generator = np.random.Philox(key=0)
        self._state = self._generator.state

    def uniform(self, seed: int, position: int) -> float:
        """A number in [0, 1), a multiple of 2^-53.

        Args:
            seed: of 64 bits.
            position: from 0.
        """
        self._state["state"]["counter"][1] = position
        self._state["state"]["key"][0] = seed
        self._generator.state = self._state
        return float(int(self._generator.random_raw()) >> 11) * 2.0**-53


def pick(weights: NDArray[np.float32], fraction: float) -> int:
    """The place at which the running sum of the weights passes `fraction` of their total.

    First the segment is found by the segments' sums, then the place inside it; so the running sums are short,
    and in float64. A place of no weight is never picked.

    Args:
        weights: not negative.
        fraction: in [0, 1).

    Raises:
        ValueError: the weights have no total that is a positive number.
    """
    if len(weights) <= 2 * SEGMENT:
        return _locate(weights, fraction)[0]
    segment, fraction = _locate(_segment_sums(weights), fraction)
    begin = segment * SEGMENT
    return begin + _locate(weights[begin : begin + SEGMENT], fraction)[0]


def _segment_sums(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums of consecutive segments; the last may be shorter.

    The order of every addition follows from the number of weights alone.
    """
    whole = len(weights) // SEGMENT * SEGMENT
    sums: NDArray[np.float32] = weights[:whole].reshape(-1, SEGMENT).sum(axis=1)
    return sums if whole == len(weights) else np.append(sums, weights[whole:].sum())


def _locate(weights: NDArray[np.float32], fraction: float) -> tuple[int, float]:
    """The place, and how far inside it the point lies, in [0, 1)."""
    sums = weights.cumsum(dtype=np.float64)
    whole = float(sums[-1]) if len(sums) else 0.0
    if not 0 < whole < np.inf:
        raise ValueError(f"nothing can be drawn from weights whose total is {whole}")
    target = fraction * whole
    place = int(sums.searchsorted(target, side="right"))
    if place >= len(sums) - 1:
        # Rounding may lift the target to the total: then it is the last place with a weight.
        place = min(place, int(sums.searchsorted(whole, side="left")))
    before = float(sums[place - 1]) if place else 0.0
    inside = (target - before) / (float(sums[place]) - before)
    return place, min(inside, 1 - 2.0**-53)
