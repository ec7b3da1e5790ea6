"""A million requests through the scheduler, on a clock of its own: no model, no text, no threads.

Arrivals come in bursts, about at capacity on average and far above it at times; some share prefixes, some
leave or have deadlines, whatever is being done for them, and the pool is small enough for preemptions.
"""

from __future__ import annotations

import heapq
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Traffic:
    """Arrivals a second in ten calm seconds, and in the one after; how many of each of `PRIORITIES`."""

    calm: float
    burst: float
    weights: tuple[int, int, int]


BURSTS = Traffic(220, 2200, (2, 5, 3))
FLOOD = Traffic(900, 900, (95, 0, 5))


class Simulation:
    def __init__(self, requests: int, blocks: int, seed: int, traffic: Traffic) -> None:
        self.traffic = traffic
        self.random = random.Random(seed)
        self.pool = BlockPool(blocks, BLOCK_SIZE)
        self.scheduler = Scheduler(self.pool, OPTIONS)
        self.now = 0.0
        self.left = requests
        self.next_arrival = 0.0
        self.flying: list[tuple[float, Lane, ScheduledStep]] = []
        self.arrived = Counter[str]()
        self.departures: list[tuple[float, int, str]] = []
        self.ended = Counter[str]()
        self.steps = self.computed = self.most_preemptions = 0
        self.waits: dict[str, float] = dict.fromkeys(map(str, PriorityClass), 0.0)
        self.live: dict[int, Sequence] = {}
        self.prefixes = [[self.random.randrange(1000) for _ in range(96)] for _ in range(20)]

    def arrive(self) -> None:
        ordinal = self.left
        self.left -= 1
        rate = self.traffic.calm if int(self.now) % 11 else self.traffic.burst
        self.next_arrival = self.now + self.random.expovariate(rate)
        priority = self.random.choices(PRIORITIES, self.traffic.weights)[0]
        self.arrived[PriorityClass.of(priority)] += 1
        if self.scheduler.is_full and self.scheduler.queue_length >= OPTIONS.max_waiting:
            self.ended["refused"] += 1
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
        for reason, share, seconds in (("cancelled", 0.05, 1.0), ("past its deadline", 0.1, 4.0)):
            if self.random.random() < share:
                leaves = self.now + self.random.expovariate(1 / seconds)
                heapq.heappush(self.departures, (leaves, ordinal, reason))

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
        while self.departures and self.departures[0][0] <= self.now:
            _, ordinal, reason = heapq.heappop(self.departures)
            if ordinal in self.live:
                self.end(self.live[ordinal], reason)
        self.admit()
        for step in self.scheduler.schedule():
            tokens = sum(len(row.token_ids) for row in step.plan.rows)
            self.computed += tokens
            ends = self.now + 0.004 + 0.00006 * tokens * (1 if step.plan.lane is Lane.ALL else 2)
            heapq.heappush(self.flying, (ends, step.plan.lane, step))

    def admit(self) -> None:
        admitted = self.scheduler.admit()
        for sequence in admitted:
            if sequence.admitted_s is None:
                sequence.admitted_s = self.now
                self.note_wait(sequence)
        # Nobody is overtaken but who waits for a prefix, victims least of all: they have their old place.
        last = max((s.rank for s in admitted), default=(0.0, 0))
        for sequence in self.scheduler.waiting:
            if sequence.rank > last:
                break
            assert sequence.awaits is not None

    def note_wait(self, sequence: Sequence) -> None:
        name = PriorityClass.of(sequence.request.priority)
        self.waits[name] = max(self.waits[name], self.now - sequence.arrival_s)

    def land(self, step: ScheduledStep) -> None:
        self.steps += 1
        self.scheduler.complete(step)
        for entry in step.entries:
            sequence = entry.sequence
            if sequence.finished or not entry.samples:
                continue
            if len(sequence.token_ids) + 1 < sequence.max_length:
                sequence.token_ids.append(self.steps % 1000)
            else:
                self.end(sequence, "finished")

    def end(self, sequence: Sequence, reason: str) -> None:
        if sequence.admitted_s is None:
            self.note_wait(sequence)
        self.most_preemptions = max(self.most_preemptions, sequence.preemptions)
        self.ended[reason] += 1
        self.scheduler.remove(sequence)
        del self.live[sequence.ordinal]


def run(requests: int, seed: int, traffic: Traffic = BURSTS, blocks: int = 220) -> Simulation:
    simulation = Simulation(requests, blocks, seed, traffic)
    checked = 0
    while simulation.left or simulation.live or simulation.flying:
        simulation.turn()
        if simulation.steps >= checked + 2000:
            checked = simulation.steps
            simulation.scheduler.check_integrity()
    simulation.scheduler.check_integrity()
    assert simulation.ended.total() == requests
    assert simulation.pool.used == 0
    assert simulation.scheduler.waiting == ()
    return simulation


# A full queue is computed at more than 300 requests a second. Beyond that, the lowest class waits for those
# who come within the others' head start, and for nobody else.
DRAIN_S = (OPTIONS.max_waiting + OPTIONS.max_sequences) / 300


def check(simulation: Simulation, requests: int) -> None:
    assert simulation.ended["finished"] > 0.5 * requests
    assert simulation.ended["cancelled"] > 0.01 * requests
    assert simulation.ended["past its deadline"] > 0.01 * requests
    assert simulation.ended["refused"] > 0
    assert simulation.waits["interactive"] <= DRAIN_S
    assert simulation.waits["batch"] <= HEAD_START_S + DRAIN_S
    assert simulation.scheduler.preemptions > 0
    assert simulation.scheduler.recomputed_tokens <= 0.03 * simulation.computed


def report(simulation: Simulation) -> str:
    ended = ", ".join(f"{count} {reason}" for reason, count in simulation.ended.items())
    waits = ", ".join(f"{name} {wait:.2f} s" for name, wait in simulation.waits.items())
    tax = simulation.scheduler.recomputed_tokens / simulation.computed
    return (
        f"{simulation.steps} steps, {simulation.now:.0f} s on the simulation's clock; {ended}\n"
        f"longest wait: {waits}; {simulation.scheduler.preemptions} preemptions, at most "
        f"{simulation.most_preemptions} of a request, {tax:.2%} of the tokens recomputed"
    )


def test_some_thousands_of_requests_leave_nothing_behind():
    check(run(6_000, seed=1), 6_000)


def test_a_low_class_gets_its_turn_while_a_high_one_asks_for_more_than_there_is():
    simulation = run(40_000, seed=3, traffic=FLOOD)
    assert simulation.ended["refused"] > 10_000, report(simulation)
    assert HEAD_START_S - 5 < simulation.waits["batch"] <= HEAD_START_S + DRAIN_S, report(simulation)
    assert simulation.waits["interactive"] <= DRAIN_S


@pytest.mark.simulation
@pytest.mark.timeout(1500)
def test_a_million_requests_leave_nothing_behind(capsys):
    began, began_cpu = time.perf_counter(), time.process_time()
    simulation = run(REQUESTS, seed=2)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
    with capsys.disabled():
        sys.stdout.write(
            f"\n{REQUESTS} requests in {seconds:.0f} s, {cpu_s:.0f} s of one CPU: "
            f"{REQUESTS / cpu_s:.0f} requests a second of CPU\n{report(simulation)}\n"
        )
    check(simulation, REQUESTS)
    assert cpu_s < 300
