"""Measures at the start what a step costs on this machine with this model."""

from __future__ import annotations

import threading
from collections.abc import Callable

from uzu_native.executor import Executor
from uzu_native.step import Lane, Row, StepPlan
from uzu_native.step_costs import CostSample, StepCosts

ROWS = (1, 2, 4, 8, 16)
CONTEXTS_TOKENS = (128, 640)
PROMPT_TOKENS = 128
REPEATS = 5


def calibrate(executor: Executor, clock: Callable[[], float]) -> StepCosts:
    """What a prompt's token costs, and a step of 1 to 16 rows of one token at two lengths of context.

    The rows share their blocks, as guesses for one sequence do. Only while no request runs: it writes into
    the first blocks.

    Raises:
        ExecutionError: the model cannot compute a step.
    """
    room = executor.block_count * executor.block_size - max(ROWS)
    contexts = sorted({max(0, min(context, room)) for context in CONTEXTS_TOKENS})
    # Memory that nobody has written to is read faster than memory that holds something.
    chunks_s = [
        _duration(executor, clock, [_row(executor, [0] * PROMPT_TOKENS, begin)])
        for begin in range(0, contexts[-1] - PROMPT_TOKENS + 1, PROMPT_TOKENS)
    ]
    samples = []
    for context in contexts:
        for rows in ROWS:
            step = [_row(executor, [row], context + row) for row in range(rows)]
            durations = [_duration(executor, clock, step) for _ in range(1 + REPEATS)]
            # What disturbs a measurement makes it longer, never shorter.
            samples.append(CostSample(rows, context, min(durations[1:])))
    return StepCosts.fitted(samples, min(chunks_s, default=0.0) / PROMPT_TOKENS)


def _row(executor: Executor, token_ids: list[int], start: int) -> Row:
    blocks = range(-(-(start + len(token_ids)) // executor.block_size))
    return Row(token_ids, start, list(blocks), wants_logits=True)


def _duration(executor: Executor, clock: Callable[[], float], rows: list[Row]) -> float:
    done = threading.Event()
    began = clock()
    executor.start(StepPlan(Lane.ALL, tuple(rows)), lambda lane: done.set())  # noqa: ARG005 -- the only one
    done.wait()
    executor.finish(Lane.ALL)
    return clock() - began
