"""What the engine counts; the adapter reports it under the names of `uzu_contract.metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineMetrics:
    """Totals since the start and gauges of this moment. Written by the engine's thread only."""

    requests_running: int = 0
    requests_waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    steps: int = 0
    step_seconds: float = 0.0
    finished: Counter[str] = field(default_factory=Counter)
