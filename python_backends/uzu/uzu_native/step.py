"""What the scheduler tells the executor: one step of one lane, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Lane(IntEnum):
    """A stream of the executor. `ALL` runs alone; the other two run beside each other."""

    ALL = 0
    """All threads: any rows."""
    DECODES = 1
    """Half of the threads: sequences that decode."""
    PROMPTS = 2
    """The other half: sequences that do not."""


@dataclass(frozen=True, slots=True)
class Row:
    """A subsequence: consecutive tokens of one sequence, attending to all that comes before them.

    Args:
        token_ids: the tokens to compute.
        start: position of the first of them; that many tokens are already in the blocks (or are computed by
            earlier rows of the same step).
        block_table: blocks of the sequence, at least up to the last token.
        wants_logits: whether the logits after the last token are needed.
        wants_all_logits: whether those after each of the tokens are.
    """

    token_ids: list[int]
    start: int
    block_table: list[int]
    wants_logits: bool
    wants_all_logits: bool = False


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The rows that one lane computes together. Rows of one sequence are in ascending order."""

    lane: Lane
    rows: tuple[Row, ...]
