"""What the scheduler tells the executor: one step of one lane, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """A subsequence: consecutive tokens of one sequence, attending to all that comes before them.

    Args:
        token_ids: the tokens to compute.
        start: position of the first of them; that many tokens are already in the blocks (or are computed by
            earlier rows of the same step).
        block_table: blocks of the sequence, at least up to the last token.
        wants_logits: whether the logits after the last token are needed.
    """

    token_ids: list[int]
    start: int
    block_table: list[int]
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The rows that one lane computes together. Rows of one sequence are in ascending order."""

    lane: int
    rows: tuple[Row, ...]
