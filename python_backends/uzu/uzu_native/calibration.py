"""Measures at the start what a step costs on this machine with this model."""

from __future__ import annotations

import threading
from collections.abc import Callable

from uzu_native.executor import Executor
from uzu_native.speculation import StepCosts
from uzu_native.step import Lane, Row, StepPlan

ROWS = (1, 2, 4, 8, 16, 32)
CONTEXT_TOKENS = 128
REPEATS = 5


def calibrate(executor: Executor, clock: Callable[[], float]) -> StepCosts:
    """Duration of a step with 1 to 32 rows of one token, at a context of 128 tokens.

    Only while no request runs: it writes into the first blocks. Only ratios of these durations are used.

    Raises:
        ExecutionError: the model cannot compute a step.
    """
    done = threading.Event()
    blocks_each = -(-(CONTEXT_TOKENS + 1) // executor.block_size)
    samples = []
    for rows in ROWS:
        if rows * blocks_each > executor.block_count:
            break
        plan = StepPlan(
            Lane.ALL,
            tuple(
                Row([row], CONTEXT_TOKENS, list(range(row * blocks_each, (row + 1) * blocks_each)), True)
                for row in range(rows)
            ),
        )
        durations = []
        for _ in range(1 + REPEATS):
            done.clear()
            began = clock()
            executor.start(plan, lambda lane: done.set())  # noqa: ARG005 -- it is the only one
            done.wait()
            executor.finish(Lane.ALL)
            durations.append(clock() - began)
        # What disturbs a measurement makes it longer, never shorter.
        samples.append((rows, min(durations[1:])))
    return StepCosts.fitted(samples)
