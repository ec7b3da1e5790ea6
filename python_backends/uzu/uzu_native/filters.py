"""Which tokens may be drawn after `top_k`, `top_p`, `min_p` and `typical_p`, and with what weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from uzu_contract.sampling import SamplingParams
from uzu_native.ranking import descending, highest

LIKELIEST_REACH = 8.0
"""How far below the likeliest token, in nats, most of the probability is looked for first."""

TYPICAL_REACH = 1.0
"""Likewise, around the expected information."""

_NO_WEIGHT = np.float32(-200)
"""A scaled logit so far below the highest has the weight 0 in float32."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that may be drawn.

    Args:
        weights: in proportion to their probabilities; the likeliest token of the row has 1.
        scaled: their logarithms, which go on where the weights have become 0.
        places: their places in the row; None when they are the whole row.
    """

    weights: NDArray[np.float32]
    scaled: NDArray[np.float32]
    places: NDArray[np.int64] | None = None

    def place(self, index: int) -> int:
        """Where in the row a candidate stands."""
        return index if self.places is None else int(self.places[index])

    def keep(self, indices: NDArray[np.int64]) -> Candidates:
        """Those at these indices."""
        places = indices if self.places is None else self.places[indices]
        return Candidates(self.weights[indices], self.scaled[indices], places)


def candidates(row: NDArray[np.float32], sampling: SamplingParams, top: np.float32) -> Candidates:
    """What is left of a row after the temperature and the filters, which follow each other.

    Each filter takes what the one before it has left for the whole. Ties at a border are kept by the smaller
    place.

    Args:
        row: logits.
        sampling: with a temperature above 0.
        top: the highest logit, finite.
    """
    places = highest(row, sampling.top_k) if 0 < sampling.top_k < len(row) else None
    scaled = (row if places is None else row[places]) - top
    if sampling.temperature != 1:
        scaled /= np.float32(sampling.temperature)
    kept = Candidates(np.exp(scaled), scaled, places)
    if sampling.top_p < 1:
        kept = kept.keep(_likeliest(kept.weights, sampling.top_p))
    if sampling.min_p > 0:
        kept = kept.keep((kept.weights >= np.float32(sampling.min_p)).nonzero()[0])
    if sampling.typical_p < 1:
        kept = kept.keep(_most_typical(kept, sampling.typical_p))
    return kept


def _likeliest(weights: NDArray[np.float32], share: float) -> NDArray[np.int64]:
    """The fewest of the highest weights, in descending order, that are `share` of all."""
    return _first(
        weights,
        share * float(weights.sum()),
        lambda reach: (weights >= np.float32(math.exp(-reach))).nonzero()[0],
        lambda near: descending(weights[near]),
        LIKELIEST_REACH,
    )


def _most_typical(kept: Candidates, share: float) -> NDArray[np.int64]:
    """The fewest tokens, those nearest to the expected information first, that are `share` of all.

    Locally typical sampling, by C. Meister et al. (arXiv:2202.00666). That a token's probability is its
    weight over their total adds the same to its own information and to the expected one, the entropy.
    """
    weights = kept.weights
    total = float(weights.sum())
    parts = weights * np.maximum(kept.scaled, _NO_WEIGHT)
    distances = np.abs(kept.scaled - np.float32(float(parts.sum()) / total))
    return _first(
        weights,
        share * total,
        lambda reach: (distances <= np.float32(reach)).nonzero()[0],
        lambda near: descending(-distances[near]),
        TYPICAL_REACH,
    )


def _first(
    weights: NDArray[np.float32],
    needed: float,
    within: Callable[[float], NDArray[np.int64]],
    order: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    reach: float,
) -> NDArray[np.int64]:
    """As many places as it takes for the weight `needed`, in an order that only those near enough are put in.

    Args:
        weights: of all places.
        needed: at most about their total: where rounding leaves it out of reach, all places are enough.
        within: places within a reach in nats; all for an infinite one.
        order: how to order them, those within a shorter reach first.
        reach: where to begin; it grows as long as it does not hold enough.
    """
    while True:
        near = within(reach)
        near = near[order(near)]
        sums = weights[near].cumsum(dtype=np.float64)
        count = int(sums.searchsorted(needed, side="left")) + 1
        if count <= len(near):
            return near[:count]
        if reach == math.inf:
            return near
        reach = 2 * reach if reach < 100 else math.inf
