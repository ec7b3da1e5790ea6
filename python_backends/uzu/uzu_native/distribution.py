"""Draws a token from a row of logits: filters, and the inverse of the cumulative distribution.

A draw is a function of the logits, the parameters and one uniform number. Over a whole vocabulary the sums
are taken by segments: one says which segment the number falls into, and only there are the tokens added up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from uzu_contract.sampling import SamplingParams

_SEGMENT = 256
_FIRST_REACH = 8.0
"""How far below the highest, in nats, the likeliest tokens are looked for first."""
_LAST_REACH = 1e9
"""What is further down has no weight at all."""


def draw_index(row: NDArray[np.float32], sampling: SamplingParams, uniform: float) -> int:
    """Index of the chosen logit.

    The filters apply in the order top-k, top-p, min-p, typical. Of ties at a border the smaller index stays.

    Args:
        row: logits, of which the highest is finite.
        sampling: a temperature above 0, and the filters.
        uniform: in [0, 1).
    """
    temperature = np.float32(sampling.temperature)
    top = row.max()
    if sampling.top_k == 0 and sampling.top_p >= 1 and sampling.min_p == 0 and sampling.typical_p >= 1:
        return _draw_from_all(np.exp((row - top) / temperature), uniform)
    ids, weights = _likely(row, top, sampling, temperature)
    if sampling.min_p > 0:
        likely = weights >= sampling.min_p
        ids, weights = ids[likely], weights[likely]
    if sampling.typical_p < 1:
        typical = _typical(weights, sampling.typical_p)
        ids, weights = ids[typical], weights[typical]
    return int(ids[_draw(weights, uniform)])


def _draw_from_all(weights: NDArray[np.float32], uniform: float) -> int:
    begins = np.arange(0, len(weights), _SEGMENT)
    sums = np.add.reduceat(weights, begins).astype(np.float64)
    ends = np.cumsum(sums)
    target = uniform * ends[-1]
    segment = int(np.searchsorted(ends, target, side="right"))
    if segment == len(ends):
        segment = int(np.flatnonzero(sums)[-1])
    begin = int(begins[segment])
    inside = weights[begin : begin + _SEGMENT].astype(np.float64)
    # Within the segment the number is what is left of it, as a share of the segment.
    rest = (target - (ends[segment] - sums[segment])) / sums[segment]
    return begin + _draw(inside, min(max(float(rest), 0.0), 1.0))


def _draw(weights: NDArray[np.float64], uniform: float) -> int:
    """Index in proportion to the weights; never one whose weight is 0."""
    ends = np.cumsum(weights)
    index = int(np.searchsorted(ends, uniform * ends[-1], side="right"))
    return index if index < len(weights) else int(np.flatnonzero(weights)[-1])


def _likely(
    row: NDArray[np.float32], top: np.float32, sampling: SamplingParams, temperature: np.float32
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """What top-k and top-p leave, by ascending id, with weights of which the highest is 1."""
    if sampling.top_k == 0 and sampling.top_p >= 1:
        weights = np.exp((row - top) / temperature).astype(np.float64)
        ids = np.flatnonzero(weights >= sampling.min_p) if sampling.min_p > 0 else np.flatnonzero(weights > 0)
        return ids, weights[ids]
    total = None
    if sampling.top_k == 0:
        total = float(np.exp((row - top) / temperature).sum(dtype=np.float64))
    ids = _leading(row, top, sampling, temperature, total)
    logits = row[ids]
    # The border is found among the sorted values alone: to sort which is which takes ten times as long.
    descending = np.sort(logits)[::-1]
    if sampling.top_k:
        descending = descending[: sampling.top_k]
    if sampling.top_p < 1:
        sums = np.cumsum(np.exp((descending - top) / temperature), dtype=np.float64)
        reached = sums >= sampling.top_p * (sums[-1] if total is None else total)
        descending = descending[: int(reached.argmax()) + 1] if reached.any() else descending
    border = descending[-1]
    kept = logits > border
    ties = np.flatnonzero(logits == border)[: len(descending) - int(kept.sum())]
    kept[ties] = True
    return ids[kept], np.exp((logits[kept] - top) / temperature).astype(np.float64)


def _leading(
    row: NDArray[np.float32],
    top: np.float32,
    sampling: SamplingParams,
    temperature: np.float32,
    total: float | None,
) -> NDArray[np.int64]:
    """The likeliest tokens, at least as many as top-k or top-p needs, from a wider and wider slice."""
    reach = np.float32(_FIRST_REACH)
    scale = np.float32(1) if sampling.top_k else temperature
    while True:
        ids = np.flatnonzero(row >= top - reach * scale)
        if len(ids) == len(row) or reach > _LAST_REACH:
            break
        if total is None:
            if len(ids) >= sampling.top_k:
                break
        elif np.exp((row[ids] - top) / temperature).sum(dtype=np.float64) >= sampling.top_p * total:
            break
        reach *= np.float32(2)
    return ids


def _typical(weights: NDArray[np.float64], mass: float) -> NDArray[np.int64]:
    """Indices of the tokens whose information is nearest to the expected one, with so much mass together.

    Locally typical sampling (Meister and others, 2022).
    """
    # No weight is 0 here but by rounding, and such a token is as unexpected as can be.
    shares = weights / weights.sum()
    information = -np.log(np.maximum(shares, np.finfo(np.float64).tiny))
    distance = np.abs(information - float((shares * information).sum()))
    reach = 0.5
    while True:
        near = np.flatnonzero(distance <= reach)
        if len(near) == len(distance) or shares[near].sum() >= mass:
            break
        reach *= 2
    order = near[np.argsort(distance[near], kind="stable")]
    reached = np.cumsum(shares[order]) >= mass
    keep = int(reached.argmax()) + 1 if reached.any() else len(order)
    return np.sort(order[:keep])
