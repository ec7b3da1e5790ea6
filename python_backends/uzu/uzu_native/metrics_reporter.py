"""Copies the engine's counts to the server's metrics from a slow thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from uzu_native.metrics import EngineMetrics, samples

INTERVAL_S = 0.2


class ServerMetric(Protocol):
    """One time series in the server. Its calls may wait for the server with Python's lock held."""

    def increment(self, value: float) -> None:
        """Add to a counter."""

    def set(self, value: float) -> None:
        """Change a gauge."""


MakeSeries = Callable[[Mapping[str, str]], ServerMetric]
MakeFamily = Callable[[str, str, str], MakeSeries]
"""Makes a metric family, by name, description and kind; what it returns makes series of it, by labels."""


class MetricsReporter:
    """Reports until it is stopped.

    Args:
        metrics: what is reported.
        labels: of every series.
        make_family: registers a family.
        on_fault: told when a report fails; the next one is tried.
    """

    def __init__(
        self,
        metrics: EngineMetrics,
        labels: Mapping[str, str],
        make_family: MakeFamily,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self._metrics = metrics
        self._labels = dict(labels)
        self._make_family = make_family
        self._on_fault = on_fault
        self._families: dict[str, MakeSeries] = {}
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], ServerMetric] = {}
        self._reported: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="uzu-metrics", daemon=True)

    def start(self) -> None:
        """Report once, so that every series is there, and then regularly."""
        self.report()
        self._thread.start()

    def stop(self) -> None:
        """End; what was reported last stays until the server forgets it."""
        self._stop.set()
        self._thread.join()
        # Their destructors talk to the server, and crash Triton's stub when that happens after finalize().
        self._series.clear()
        self._families.clear()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            try:
                self.report()
            except Exception as error:  # metrics must not end with one failed call
                self._on_fault(error)

    def report(self) -> None:
        """Report what has changed."""
        for sample in samples(self._metrics):
            key = (sample.family, sample.labels)
            reported = self._reported.get(key)
            if sample.value == reported:
                continue
            series = self._series.get(key)
            if series is None:
                family = self._families.get(sample.family)
                if family is None:
                    family = self._make_family(sample.family, sample.description, sample.kind)
                    self._families[sample.family] = family
                series = self._series[key] = family({**self._labels, **dict(sample.labels)})
            if sample.kind == "gauge":
                series.set(float(sample.value))
            else:
                series.increment(float(sample.value - (reported or 0)))
            self._reported[key] = sample.value
