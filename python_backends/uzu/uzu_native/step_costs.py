"""How long a step takes, by its rows and what they attend to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

DEAREST_ROW = 0.25
"""Highest cost of a row that is believed, as a share of a step with one row.

A step reads all weights whatever its rows, so a row costs little beside it. More than that was measured on a
busy machine.
"""


@dataclass(frozen=True, slots=True)
class CostSample:
    """A step that was timed: `rows` rows of one token, each after `context_tokens` tokens."""

    rows: int
    context_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Durations in seconds; only their ratios are used.

    Args:
        base_s: of a step, whatever its rows.
        row_s: of each row of one token.
        context_token_s: of each token that a row attends to.
        prompt_token_s: of each token of a prompt's chunk.
    """

    base_s: float
    row_s: float
    context_token_s: float = 0.0
    prompt_token_s: float = 0.0

    def row_seconds(self, context_tokens: int) -> float:
        """What one more row costs, that attends to so many tokens."""
        return self.row_s + context_tokens * self.context_token_s

    @classmethod
    def fitted(cls, samples: Sequence[CostSample], prompt_token_s: float = 0.0) -> StepCosts:
        """Costs that explain the samples, in which nothing gets faster by more work.

        A line through the samples of the shortest context gives the rows' cost, and how much steeper the one
        through those of the longest is gives the context's.
        """
        shortest = min(s.context_tokens for s in samples)
        longest = max(s.context_tokens for s in samples)
        base_s, near_s = _line([s for s in samples if s.context_tokens == shortest])
        _, far_s = _line([s for s in samples if s.context_tokens == longest])
        context_token_s = max(0.0, far_s - near_s) / max(1, longest - shortest)
        return cls(base_s, max(0.0, near_s - shortest * context_token_s), context_token_s, prompt_token_s)


def _line(samples: Sequence[CostSample]) -> tuple[float, float]:
    """The least-squares line through (rows, seconds): where it begins, and a slope that can be believed."""
    mean_rows = statistics.fmean(s.rows for s in samples)
    mean_s = statistics.fmean(s.seconds for s in samples)
    spread = sum((s.rows - mean_rows) ** 2 for s in samples)
    slope = sum((s.rows - mean_rows) * (s.seconds - mean_s) for s in samples) / spread if spread else 0.0
    fewest = min(samples, key=lambda s: s.rows)
    slope = min(max(slope, 0.0), DEAREST_ROW * fewest.seconds / fewest.rows, mean_s / mean_rows)
    return mean_s - slope * mean_rows, slope
