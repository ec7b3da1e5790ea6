"""A million requests through the scheduler, on a clock of its own: no model, no text, no threads.

Arrivals come in bursts, about at capacity on average and far above it at times; some share prefixes, some
leave, and the pool is small enough that sequences are thrown out.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from collections import Counter

import pytest
from engine_fixtures import Recorder, WordStream, make_options, make_request

from uzu_contract.priority import PriorityClass
from uzu_native.block_pool import BlockPool
from uzu_native.scheduler import ScheduledStep, Scheduler
from uzu_native.sequence import Sequence
from uzu_native.step import Lane

REQUESTS = 1_000_000
BLOCK_SIZE = 32
OPTIONS = make_options(
    max_sequences=64,
    max_waiting=1024,
    max_step_tokens=512,
    prefill_tokens_beside_decode=16,
    priority_step_ms=1000,
)
PRIORITIES = (0, 10, 20)
STREAM, LISTENER = WordStream(), Recorder()
REQUEST_OF = {priority: make_request(priority=priority) for priority in PRIORITIES}
HEAD_START_S = (max(PRIORITIES) - min(PRIORITIES)) * OPTIONS.priority_step_ms / 1000


class Simulation:
    def __init__(self, requests: int, blocks: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.pool = BlockPool(blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(self.pool, OPTIONS)
        self.now = 0.0
        self.left = requests
        self.next_arrival = 0.0
        self.flying: list[tuple[float, Lane, ScheduledStep]] = []
        self.arrived = Counter[str]()
        self.refused = self.cancelled = self.finished = self.steps = self.computed = 0
        self.waits: dict[str, float] = dict.fromkeys(map(str, PriorityClass), 0.0)
        self.live: dict[int, Sequence] = {}
        self.prefixes = [[self.random.randrange(1000) for _ in range(96)] for _ in range(20)]

    def arrive(self) -> None:
        ordinal = self.left
        self.left -= 1
        # Ten calm seconds, and one in which ten times as many come.
        rate = 220.0 if int(self.now) % 11 else 2200.0
        self.next_arrival = self.now + self.random.expovariate(rate)
        priority = self.random.choices(PRIORITIES, (2, 5, 3))[0]
        self.arrived[PriorityClass.of(priority)] += 1
        if self.scheduler.is_full and self.scheduler.queue_length >= OPTIONS.max_waiting:
            self.refused += 1
            return
        prompt = [self.random.randrange(1000) for _ in range(self.random.randrange(1, 40))]
        if self.random.random() < 0.3:
            prompt = self.random.choice(self.prefixes) + prompt
        sequence = Sequence(
            ordinal=ordinal,
            request=REQUEST_OF[priority],
            token_ids=prompt,
            prompt_length=len(prompt),
            max_length=len(prompt) + self.random.randrange(1, 12),
            seed=0,
            listener=LISTENER,
            text_stream=STREAM,
            arrival_s=self.now,
            rank=(self.now + priority * OPTIONS.priority_step_ms / 1000, -ordinal),
        )
        self.live[ordinal] = sequence
        self.scheduler.add(sequence)

    def turn(self) -> None:
        """Go to the next event and start what can be started."""
        landing = self.flying[0][0] if self.flying else float("inf")
        if self.left and self.next_arrival <= landing:
            self.now = max(self.now, self.next_arrival)
            self.arrive()
        else:
            assert self.flying or not self.live, "work is left, and nothing of it is scheduled"
            self.now = landing
            _, _, step = heapq.heappop(self.flying)
            self.land(step)
        for sequence in self.scheduler.admit():
            if sequence.admitted_s is None:
                sequence.admitted_s = self.now
                name = PriorityClass.of(sequence.request.priority)
                self.waits[name] = max(self.waits[name], self.now - sequence.arrival_s)
        for step in self.scheduler.schedule():
            tokens = sum(len(row.token_ids) for row in step.plan.rows)
            self.computed += tokens
            ends = self.now + 0.004 + 0.00006 * tokens * (1 if step.plan.lane is Lane.ALL else 2)
            heapq.heappush(self.flying, (ends, step.plan.lane, step))

    def land(self, step: ScheduledStep) -> None:
        self.steps += 1
        self.scheduler.complete(step)
        for entry in step.entries:
            sequence = entry.sequence
            if sequence.finished or not entry.samples:
                continue
            if self.random.random() < 0.01:
                self.cancelled += 1
            elif len(sequence.token_ids) + 1 < sequence.max_length:
                sequence.token_ids.append(self.steps % 1000)
                continue
            else:
                self.finished += 1
            self.scheduler.remove(sequence)
            del self.live[sequence.ordinal]
        if self.live and self.random.random() < 0.05:
            ordinal = next(iter(self.live))
            self.cancelled += 1
            self.scheduler.remove(self.live.pop(ordinal))


def run(requests: int, blocks: int, seed: int) -> Simulation:
    simulation = Simulation(requests, blocks, seed)
    checked = 0
    while simulation.left or simulation.live or simulation.flying:
        simulation.turn()
        if simulation.steps >= checked + 2000:
            checked = simulation.steps
            simulation.scheduler.check_integrity()
    simulation.scheduler.check_integrity()
    return simulation


def check(simulation: Simulation, requests: int) -> None:
    assert simulation.finished + simulation.cancelled + simulation.refused == requests
    assert simulation.pool.used == 0
    assert simulation.scheduler.waiting == ()
    assert simulation.scheduler.preemptions > 0
    # A burst fills the queue, which is computed at more than 300 requests a second. Beyond that, the lowest
    # class waits for those who come within the others' head start, and for nobody else.
    drain_s = (OPTIONS.max_waiting + OPTIONS.max_sequences) / 300
    assert simulation.waits["interactive"] <= drain_s
    assert simulation.waits["batch"] <= HEAD_START_S + drain_s
    assert simulation.refused < 0.5 * requests
    assert simulation.scheduler.recomputed_tokens <= 0.1 * simulation.computed


def test_some_thousands_of_requests_leave_nothing_behind():
    check(run(4_000, 220, seed=1), 4_000)


@pytest.mark.simulation
@pytest.mark.timeout(1500)
def test_a_million_requests_leave_nothing_behind(capsys):
    began = time.perf_counter()
    simulation = run(REQUESTS, 220, seed=2)
    seconds = time.perf_counter() - began
    waits = ", ".join(f"{name} {wait:.2f} s" for name, wait in simulation.waits.items())
    tax = simulation.scheduler.recomputed_tokens / simulation.computed
    with capsys.disabled():
        sys.stdout.write(
            f"\n{REQUESTS} requests in {seconds:.0f} s: {simulation.steps} steps, {simulation.now:.0f} s"
            f"\nfinished {simulation.finished}, cancelled {simulation.cancelled}, "
            f"refused {simulation.refused}"
            f"\nlongest wait: {waits}; preemptions {simulation.scheduler.preemptions}, recomputed {tax:.2%}\n"
        )
    check(simulation, REQUESTS)
