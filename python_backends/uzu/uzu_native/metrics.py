"""What the engine counts; the adapter reports it under the names of `uzu_contract.metrics`."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from uzu_contract import metrics as names
from uzu_native.speculation import GuessKind


class Histogram:
    """Observations counted by bucket. Written by one thread; a reader may see the last one in part.

    Args:
        bounds: upper bounds of the buckets, ascending; one more bucket takes what is above.
    """

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


def _by_kind() -> Counter[str]:
    return Counter(dict.fromkeys(map(str, GuessKind), 0))


@dataclass(slots=True)
class EngineMetrics:
    """Totals since the start and gauges of this moment. Written by the engine's thread only."""

    requests_running: int = 0
    requests_waiting: Counter[str] = field(default_factory=Counter)
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    kv_blocks_total: int = 0
    asleep: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    drafted_tokens: Counter[str] = field(default_factory=_by_kind)
    accepted_tokens: Counter[str] = field(default_factory=_by_kind)
    draft_failures: int = 0
    requests_finished: Counter[str] = field(default_factory=Counter)
    queue_seconds: Histogram = field(default_factory=partial(Histogram, names.QUEUE_SECONDS.buckets))
    time_to_first_token_seconds: Histogram = field(
        default_factory=partial(Histogram, names.TIME_TO_FIRST_TOKEN_SECONDS.buckets)
    )
    inter_token_seconds: Histogram = field(
        default_factory=partial(Histogram, names.INTER_TOKEN_SECONDS.buckets)
    )
    step_seconds: Histogram = field(default_factory=partial(Histogram, names.STEP_SECONDS.buckets))


@dataclass(frozen=True, slots=True)
class Sample:
    """One time series and its value.

    Args:
        family: name of its metric family.
        kind: "counter" or "gauge"; a histogram's series are counters.
        description: the family's HELP text.
        labels: what tells it from the family's others.
        value: now.
    """

    family: str
    kind: str
    description: str
    labels: tuple[tuple[str, str], ...]
    value: float


def samples(metrics: EngineMetrics) -> Iterator[Sample]:
    """All series of the metrics, in the order of the contract's table."""
    for spec in names.METRICS:
        value: Any = getattr(metrics, spec.name.removeprefix("uzu_").removesuffix(spec.unit_suffix))
        if isinstance(value, Histogram):
            yield from _histogram_samples(spec, value)
        elif isinstance(value, Counter):
            for label, count in value.copy().items():
                yield Sample(spec.name, spec.kind, spec.description, ((spec.labels[0], label),), count)
        else:
            yield Sample(spec.name, spec.kind, spec.description, (), value)


def _histogram_samples(spec: names.MetricSpec, histogram: Histogram) -> Iterator[Sample]:
    below = 0
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    for bound, count in zip(bounds, histogram.counts.copy(), strict=True):
        below += count
        yield Sample(f"{spec.name}_bucket", "counter", spec.description, (("le", bound),), below)
    yield Sample(f"{spec.name}_sum", "counter", spec.description, (), histogram.total)
    yield Sample(f"{spec.name}_count", "counter", spec.description, (), below)
