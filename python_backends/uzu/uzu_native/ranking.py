"""Finds the highest of many values in order, without sorting them all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LONGEST_SEGMENT = 512
SHORTEST_SEGMENT = 16
"""Below, looking for the highest of each segment costs more than sorting."""

FEW = 256


def descending(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Places of the values from the highest to the lowest; of equal ones the smaller place goes first.

    When they are many, value and place are packed into one integer each, since numpy sorts integers several
    times as fast as it sorts places by their values.
    """
    if len(values) <= FEW:
        return np.argsort(-values, kind="stable")
    # Adding zero makes one zero of two; the order of other floats is that of their bits, negatives reversed.
    bits = (values + np.float32(0)).view(np.int32)
    rising = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    keys = (~rising).astype(np.int64) << 32 | np.arange(len(values))
    keys.sort()
    places: NDArray[np.int64] = keys & 0xFFFFFFFF
    return places


def highest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Places of the `count` highest values, as `descending` orders them; all places when there are fewer.

    The values are cut into more than `count` segments. The `count` highest of the segments' maxima are that
    many values, so none of the wanted ones is lower than the last of them.
    """
    if count < 1:
        return np.empty(0, np.int64)
    length = min(LONGEST_SEGMENT, len(values) // (2 * count))
    if length >= SHORTEST_SEGMENT:
        whole = len(values) // length * length
        peaks = values[:whole].reshape(-1, length).max(axis=1)
        border = np.partition(peaks, len(peaks) - count)[len(peaks) - count]
        places = (values >= border).nonzero()[0]
        # Fewer are found only among values that are no numbers.
        if len(places) >= count:
            best: NDArray[np.int64] = places[descending(values[places])[:count]]
            return best
    return descending(values)[:count]
