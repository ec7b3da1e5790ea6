"""Names of what an LLM backend reports: to Triton, labelled by model and instance, and to each request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family.

    Args:
        name: Prometheus name, with its unit.
        kind: Prometheus type. A histogram is reported as the counters that it is made of.
        description: the HELP text.
        labels: label names beside `model` and `instance`.
        buckets: a histogram's upper bounds, without infinity.

    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def unit_suffix(self) -> str:
        """What Prometheus wants at the end of a counter's name."""
        return "_total" if self.kind == "counter" else ""


_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_STEPS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
"""In seconds: from a small model's step to one that keeps people waiting."""


REQUESTS_RUNNING = MetricSpec("uzu_requests_running", "gauge", "Requests that own KV blocks")
REQUESTS_WAITING = MetricSpec(
    "uzu_requests_waiting", "gauge", "Requests waiting for KV blocks, by class of priority", ("class",)
)
KV_BLOCKS_USED = MetricSpec("uzu_kv_blocks_used", "gauge", "KV blocks owned by requests")
KV_BLOCKS_CACHED = MetricSpec(
    "uzu_kv_blocks_cached", "gauge", "KV blocks findable by their prefix, used or not"
)
KV_BLOCKS_TOTAL = MetricSpec("uzu_kv_blocks_total", "gauge", "KV blocks in the pool")
ASLEEP = MetricSpec(
    "uzu_asleep", "gauge", "1 while weights and KV memory are given back, until they are loaded again"
)
PROMPT_TOKENS = MetricSpec("uzu_prompt_tokens_total", "counter", "Prompt tokens of admitted requests")
GENERATED_TOKENS = MetricSpec("uzu_generated_tokens_total", "counter", "Tokens generated")
PREEMPTIONS = MetricSpec("uzu_preemptions_total", "counter", "Requests that gave their KV blocks back")
RECOMPUTED_TOKENS = MetricSpec(
    "uzu_recomputed_tokens_total", "counter", "Tokens computed again after their blocks were taken away"
)
CACHED_TOKENS = MetricSpec("uzu_cached_tokens_total", "counter", "Prompt tokens taken from the prefix cache")
DRAFTED_TOKENS = MetricSpec(
    "uzu_drafted_tokens_total", "counter", "Tokens guessed and verified, by who guessed", ("kind",)
)
ACCEPTED_TOKENS = MetricSpec(
    "uzu_accepted_tokens_total", "counter", "Guesses that were right, by who guessed", ("kind",)
)
DRAFT_FAILURES = MetricSpec(
    "uzu_draft_failures_total", "counter", "Requests that went on without the draft model after it failed"
)
QUEUE_SECONDS = MetricSpec(
    "uzu_queue_seconds", "histogram", "From a request's arrival to its first KV blocks", buckets=_WAITS
)
TIME_TO_FIRST_TOKEN_SECONDS = MetricSpec(
    "uzu_time_to_first_token_seconds",
    "histogram",
    "From a request's arrival to its first token",
    buckets=_WAITS,
)
INTER_TOKEN_SECONDS = MetricSpec(
    "uzu_inter_token_seconds",
    "histogram",
    "Between a request's tokens; those of one step share its time",
    buckets=_STEPS,
)
STEP_SECONDS = MetricSpec("uzu_step_seconds", "histogram", "Duration of model steps", buckets=_STEPS)
REQUESTS_FINISHED = MetricSpec(
    "uzu_requests_finished_total", "counter", "Requests that ended, by reason", ("reason",)
)

PERF_METRICS: Mapping[str, tuple[str, str]] = {
    "queue_ms": ("ms", "from arrival to the first KV blocks"),
    "prefill_ms": ("ms", "from there to the first token"),
    "ttft_ms": ("ms", "from arrival to the first token"),
    "decode_ms": ("ms", "from the first token to the last"),
    "steps": ("count", "model steps that computed tokens of the request"),
    "cached": ("count", "prompt tokens taken from the prefix cache"),
    "preemptions": ("count", "how often it lost its KV blocks"),
    "drafted": ("count", "tokens guessed and verified"),
    "accepted": ("count", "guesses that were right"),
}
"""What a request's own output `perf_metrics` holds: unit and meaning by key."""

METRICS = (
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    KV_BLOCKS_USED,
    KV_BLOCKS_CACHED,
    KV_BLOCKS_TOTAL,
    ASLEEP,
    PROMPT_TOKENS,
    GENERATED_TOKENS,
    PREEMPTIONS,
    RECOMPUTED_TOKENS,
    CACHED_TOKENS,
    DRAFTED_TOKENS,
    ACCEPTED_TOKENS,
    DRAFT_FAILURES,
    REQUESTS_FINISHED,
    QUEUE_SECONDS,
    TIME_TO_FIRST_TOKEN_SECONDS,
    INTER_TOKEN_SECONDS,
    STEP_SECONDS,
)
