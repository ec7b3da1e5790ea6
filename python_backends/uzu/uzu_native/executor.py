"""The port through which the engine runs a model, and a fake behind it for tests and development."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from uzu_native.step import Lane, Row, StepPlan

OnDone = Callable[[Lane], None]


class ExecutionError(RuntimeError):
    """A step could not be computed; what it would have written to the KV memory is lost."""


class Executor(Protocol):
    """Runs steps, over one KV memory. Each lane runs one step at a time, `Lane.ALL` beside no other."""

    block_size: int
    block_count: int
    vocabulary_size: int

    def start(self, plan: StepPlan, on_done: OnDone) -> None:
        """Begin a step of an idle lane. `on_done(lane)` is called once it is over, on any thread."""

    def finish(self, lane: Lane) -> NDArray[np.float32]:
        """Logits of the step that is over, [tokens after which they are wanted, vocabulary].

        They are in the order of the rows and their tokens, and valid until the next start.

        Raises:
            ExecutionError: the step failed.
        """

    def release(self) -> None:
        """Free the weights and the KV memory, whose content is lost. No step may be running."""

    def restore(self) -> None:
        """Undo `release`, but for the content of the KV memory. May take seconds.

        Raises:
            ExecutionError: the model cannot be loaded; it stays released.
        """


class FakeExecutor:
    """A model made of hashing: the logits depend on every token before them, read back from its KV memory.

    It writes the step's token ids into the blocks and reads contexts out of them, so a wrong block table, a
    lost write or a stale block changes the output, as with a real model.

    Args:
        block_count: blocks in the pool.
        block_size: tokens in a block.
        vocabulary_size: width of the logits.
        fail_on: a token id whose computation raises.
        failing_restores: how many calls of `restore` raise, before those that do not.
        agreement: share of contexts after which its likeliest token is that of a model with 1.0.
    """

    def __init__(
        self,
        block_count: int = 64,
        block_size: int = 4,
        vocabulary_size: int = 64,
        fail_on: int | None = None,
        failing_restores: int = 0,
        agreement: float = 1.0,
    ) -> None:
        self.block_count = block_count
        self.block_size = block_size
        self.vocabulary_size = vocabulary_size
        self.plans: list[StepPlan] = []
        self.released = False
        self._fail_on = fail_on
        self._failing_restores = failing_restores
        self._agreement = agreement
        self._memory = np.full((block_count, block_size), -1, np.int64)
        self._results: dict[Lane, NDArray[np.float32] | None] = {}

    def start(self, plan: StepPlan, on_done: OnDone) -> None:
        """Run the step and report at once.

        Raises:
            ExecutionError: the model is released.
        """
        if self.released:
            raise ExecutionError("the model is released")
        self.plans.append(plan)
        if any(self._fail_on in row.token_ids for row in plan.rows):
            self._results[plan.lane] = None
            on_done(plan.lane)
            return
        for row in plan.rows:
            for position, token in enumerate(row.token_ids, row.start):
                block = row.block_table[position // self.block_size]
                self._memory[block, position % self.block_size] = token
        wanted = [self._row_logits(part) for row in plan.rows for part in _wanted_parts(row)]
        self._results[plan.lane] = np.array(wanted, np.float32).reshape(len(wanted), self.vocabulary_size)
        on_done(plan.lane)

    def _row_logits(self, row: Row) -> NDArray[np.float32]:
        length = row.start + len(row.token_ids)
        context = self._memory[row.block_table].reshape(-1)[:length]
        digest = hashlib.blake2b(context.tobytes(), digest_size=8).digest()
        noise = np.random.Generator(np.random.Philox(int.from_bytes(digest, "little")))
        logits = noise.normal(0, 3, self.vocabulary_size).astype(np.float32)
        return logits if noise.random() < self._agreement else np.roll(logits, 1)

    def finish(self, lane: Lane) -> NDArray[np.float32]:
        """Logits of the lane's last step."""
        logits = self._results.pop(lane)
        if logits is None:
            raise ExecutionError("the fake model was told to fail")
        return logits

    def release(self) -> None:
        """Forget the KV memory, and run no more steps."""
        self.released = True
        self._memory.fill(-1)

    def restore(self) -> None:
        """Run steps again, unless told to fail."""
        if self._failing_restores:
            self._failing_restores -= 1
            raise ExecutionError("the fake model was told not to come back")
        self.released = False


def _wanted_parts(row: Row) -> list[Row]:
    """The row up to each token after which the logits are wanted."""
    if row.wants_all_logits:
        return [replace(row, token_ids=row.token_ids[: i + 1]) for i in range(len(row.token_ids))]
    return [row] if row.wants_logits else []
