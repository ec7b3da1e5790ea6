"""Names of the metrics that an LLM backend reports through Triton's `/metrics`, labelled by model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family.

    Args:
        name: Prometheus name, with its unit.
        kind: Prometheus type.
        description: the HELP text.
        labels: label names beside `model`.

    """

    name: str
    kind: Literal["counter", "gauge"]
    description: str
    labels: tuple[str, ...] = ()


REQUESTS_RUNNING = MetricSpec("uzu_requests_running", "gauge", "Requests that own KV blocks")
REQUESTS_WAITING = MetricSpec("uzu_requests_waiting", "gauge", "Requests waiting for KV blocks")
KV_BLOCKS_USED = MetricSpec("uzu_kv_blocks_used", "gauge", "KV blocks owned by requests")
KV_BLOCKS_TOTAL = MetricSpec("uzu_kv_blocks_total", "gauge", "KV blocks in the pool")
PROMPT_TOKENS = MetricSpec("uzu_prompt_tokens_total", "counter", "Prompt tokens of admitted requests")
GENERATED_TOKENS = MetricSpec("uzu_generated_tokens_total", "counter", "Tokens generated")
PREEMPTIONS = MetricSpec("uzu_preemptions_total", "counter", "Requests that gave their KV blocks back")
RECOMPUTED_TOKENS = MetricSpec(
    "uzu_recomputed_tokens_total", "counter", "Tokens computed again after their blocks were taken away"
)
CACHED_TOKENS = MetricSpec("uzu_cached_tokens_total", "counter", "Prompt tokens taken from the prefix cache")
DRAFTED_TOKENS = MetricSpec("uzu_drafted_tokens_total", "counter", "Tokens guessed and verified")
ACCEPTED_TOKENS = MetricSpec("uzu_accepted_tokens_total", "counter", "Guesses that were right")
STEPS = MetricSpec("uzu_steps_total", "counter", "Model steps run")
STEP_SECONDS = MetricSpec("uzu_step_seconds_total", "counter", "Time spent in model steps, over all streams")
REQUESTS_FINISHED = MetricSpec(
    "uzu_requests_finished_total", "counter", "Requests that ended, by reason", ("reason",)
)

METRICS = (
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    KV_BLOCKS_USED,
    KV_BLOCKS_TOTAL,
    PROMPT_TOKENS,
    GENERATED_TOKENS,
    PREEMPTIONS,
    RECOMPUTED_TOKENS,
    CACHED_TOKENS,
    DRAFTED_TOKENS,
    ACCEPTED_TOKENS,
    STEPS,
    STEP_SECONDS,
    REQUESTS_FINISHED,
)
