import pytest
from engine_fixtures import Recorder, WordStream, make_options, make_request, prompt
from hypothesis import given, settings
from hypothesis import strategies as st

from uzu_native.block_pool import BlockPool
from uzu_native.scheduler import ScheduledStep, Scheduler, prompt_chunk
from uzu_native.sequence import Sequence
from uzu_native.step import Lane


def make_sequence(ordinal: int, length: int = 9, max_tokens: int = 8, priority: int = 10) -> Sequence:
    return Sequence(
        ordinal=ordinal,
        request=make_request(priority=priority),
        token_ids=prompt(length, ordinal),
        prompt_length=length,
        max_length=length + max_tokens,
        seed=0,
        listener=Recorder(),
        text_stream=WordStream(),
        arrival_s=0.0,
        rank=(float(priority), ordinal),
    )


@given(st.integers(1, 500), st.integers(1, 64))
def test_a_prompt_is_never_cut_into_ones(length, budget):
    rest, chunks = length, []
    for _ in range(length + 1):
        chunk = prompt_chunk(rest, budget)
        if chunk == 0:
            assert budget == 1
            return
        assert chunk <= max(budget, 3)
        chunks.append(chunk)
        rest -= chunk
        if rest == 0:
            break
    assert rest == 0
    assert length == 1 or min(chunks) >= 2


def test_a_victim_keeps_its_place_in_the_queue():
    scheduler = Scheduler(BlockPool(64, 4), make_options())
    first, second, third = (make_sequence(i) for i in range(3))
    for sequence in (first, second, third):
        scheduler.add(sequence)
    scheduler.admit()
    scheduler.preempt(third)
    scheduler.preempt(second)
    scheduler.add(make_sequence(4))
    assert [s.ordinal for s in scheduler.waiting] == [1, 2, 4]
    assert second.preemptions == 1
    scheduler.check_integrity()


class Simulation:
    """Drives the scheduler as the engine does, with steps that end in any order."""

    def __init__(self, blocks: int, threads: int) -> None:
        self.options = make_options(threads=threads, max_sequences=6, prefill_tokens_beside_decode=4)
        self.scheduler = Scheduler(BlockPool(blocks, 4), self.options)
        self.flying: dict[Lane, ScheduledStep] = {}
        self.live: dict[int, Sequence] = {}
        self.finished: list[int] = []
        self.ordinal = 0

    def submit(self, length: int, max_tokens: int, priority: int, family: int) -> None:
        self.ordinal += 1
        sequence = make_sequence(self.ordinal, length, max_tokens, priority)
        if family:
            sequence.token_ids = [*prompt(16, -family)[: length - 1], self.ordinal % 60]
            sequence.prompt_length = len(sequence.token_ids)
            sequence.max_length = sequence.prompt_length + max_tokens
        self.live[sequence.ordinal] = sequence
        self.scheduler.add(sequence)

    def cancel(self, index: int) -> None:
        if self.live:
            ordinal = sorted(self.live)[index % len(self.live)]
            self.scheduler.remove(self.live.pop(ordinal))

    def preempt(self, index: int) -> None:
        idle = [s for s in self.scheduler.running if not s.in_flight]
        if idle:
            victim = idle[index % len(idle)]
            ahead = [s for s in self.scheduler.waiting if s.rank < victim.rank]
            self.scheduler.preempt(victim)
            assert self.scheduler.waiting.index(victim) == len(ahead)

    def launch(self) -> None:
        self.scheduler.admit()
        for step in self.scheduler.schedule():
            self.check_step(step)
            self.flying[step.plan.lane] = step

    def check_step(self, step: ScheduledStep) -> None:
        mine = [entry.sequence.ordinal for entry in step.entries]
        assert len(set(mine)) == len(mine)
        assert step.plan.lane not in self.flying
        assert Lane.ALL not in self.flying
        assert step.plan.lane is not Lane.ALL or not self.flying
        others = {e.sequence.ordinal for s in self.flying.values() for e in s.entries}
        assert others.isdisjoint(mine)
        for row in step.plan.rows:
            assert len(row.block_table) * 4 >= row.start + len(row.token_ids)

    def land(self, index: int) -> None:
        if not self.flying:
            return
        lane = sorted(self.flying)[index % len(self.flying)]
        step = self.flying.pop(lane)
        self.scheduler.complete(step)
        for entry in step.entries:
            sequence = entry.sequence
            if entry.samples and not sequence.finished:
                sequence.token_ids.append(sequence.ordinal % 50)
                if len(sequence.token_ids) >= sequence.max_length:
                    self.scheduler.remove(sequence)
                    self.finished.append(sequence.ordinal)
                    del self.live[sequence.ordinal]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "cancel", "preempt", "launch", "land", "land"]),
        st.integers(0, 99),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.integers(8, 24), st.integers(1, 2))
def test_random_traffic_leaks_nothing_and_starves_nobody(actions, blocks, threads):
    simulation = Simulation(blocks, threads)
    for action, number in actions:
        if action == "submit":
            simulation.submit(1 + number % 20, 1 + number % 11, number % 3 * 10, family=number // 7 % 3)
        elif action == "cancel":
            simulation.cancel(number)
        elif action == "preempt":
            simulation.preempt(number)
        elif action == "launch":
            simulation.launch()
        else:
            simulation.land(number)
        simulation.scheduler.check_integrity()
    for _ in range(5000):
        if not simulation.live and not simulation.flying:
            break
        simulation.launch()
        assert simulation.flying, "work is left, and nothing of it is scheduled"
        simulation.land(0)
        simulation.scheduler.check_integrity()
    assert not simulation.live
    assert simulation.scheduler.pool.used == 0


def running(count, **changes):
    """A scheduler with so many sequences that decode."""
    options = {"prefill_tokens_beside_decode": 4, **changes}
    scheduler = Scheduler(BlockPool(256, 4), make_options(**options))
    for i in range(count):
        scheduler.add(make_sequence(i, priority=20))
    scheduler.admit()
    for _ in range(20):
        if all(s.decodes for s in scheduler.running):
            return scheduler
        advance(scheduler)
    raise AssertionError("they do not get to decode")


def advance(scheduler):
    """One step of every lane that is ready."""
    steps = list(scheduler.schedule())
    for step in steps:
        land(scheduler, step)
    return steps


def land(scheduler, step):
    scheduler.complete(step)
    for entry in step.entries:
        if entry.samples:
            entry.sequence.token_ids.append(1)


def test_a_long_prompt_and_those_who_decode_get_half_of_the_threads_each():
    scheduler = running(8, threads=2)
    long = make_sequence(99, length=100)
    scheduler.add(long)
    scheduler.admit()
    decodes, prompts = scheduler.schedule()
    assert (decodes.plan.lane, prompts.plan.lane) == (Lane.DECODES, Lane.PROMPTS)
    assert [len(row.token_ids) for row in decodes.plan.rows] == [1] * 8
    assert [len(row.token_ids) for row in prompts.plan.rows] == [8]
    # Each goes on without waiting for the other.
    land(scheduler, decodes)
    (decodes,) = scheduler.schedule()
    assert decodes.plan.lane is Lane.DECODES
    land(scheduler, prompts)
    (prompts,) = scheduler.schedule()
    assert prompts.plan.lane is Lane.PROMPTS
    land(scheduler, decodes)
    land(scheduler, prompts)


def test_the_lanes_join_once_the_prompts_are_computed():
    scheduler = running(3, threads=2)
    scheduler.add(make_sequence(99, length=12))
    scheduler.admit()
    decodes, prompts = scheduler.schedule()
    land(scheduler, prompts)
    (rest,) = scheduler.schedule()
    assert rest.plan.lane is Lane.PROMPTS, "four tokens would fit beside, but the lanes are apart already"
    land(scheduler, rest)
    assert list(scheduler.schedule()) == [], "all threads are not free yet"
    land(scheduler, decodes)
    (together,) = scheduler.schedule()
    assert together.plan.lane is Lane.ALL
    assert len(together.entries) == 4


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 2, "split_lanes": False}])
def test_without_halves_a_prompt_goes_beside_those_who_decode(options):
    scheduler = running(2, **options)
    scheduler.add(make_sequence(99, length=100))
    scheduler.admit()
    (step,) = scheduler.schedule()
    assert step.plan.lane is Lane.ALL
    assert [len(row.token_ids) for row in step.plan.rows] == [1, 1, 4]
    assert list(scheduler.schedule()) == []


def test_a_short_prompt_goes_beside_those_who_decode():
    scheduler = running(2, threads=2)
    scheduler.add(make_sequence(99, length=4))
    scheduler.admit()
    (step,) = scheduler.schedule()
    assert [len(row.token_ids) for row in step.plan.rows] == [1, 1, 4]


def test_a_crowd_of_short_prompts_goes_first_and_a_long_one_does_not():
    scheduler = running(4, threads=2)
    for i in range(2):
        scheduler.add(make_sequence(90 + i, length=12))
    scheduler.admit()
    (step,) = scheduler.schedule()
    assert step.plan.lane is Lane.ALL
    assert [len(row.token_ids) for row in step.plan.rows] == [1, 1, 1, 1, 12, 4]
    land(scheduler, step)
    scheduler.add(make_sequence(99, length=100))
    scheduler.admit()
    assert [step.plan.lane for step in scheduler.schedule()] == [Lane.DECODES, Lane.PROMPTS]


def test_prompts_use_all_threads_when_nobody_decodes():
    scheduler = Scheduler(BlockPool(256, 4), make_options(threads=2))
    for i in range(4):
        scheduler.add(make_sequence(i, length=10))
    scheduler.admit()
    (step,) = scheduler.schedule()
    assert step.plan.lane is Lane.ALL
    assert [len(row.token_ids) for row in step.plan.rows] == [10, 6]


def test_higher_priority_throws_out_the_lowest_rank_and_no_more_than_needed():
    scheduler = running(6, max_sequences=6)
    high = make_sequence(99, priority=0)
    scheduler.add(high)
    assert scheduler.admit() == [high]
    assert [s.ordinal for s in scheduler.waiting] == [5]
    assert scheduler.preemptions == 1
    equal = make_sequence(100, priority=20)
    scheduler.add(equal)
    assert scheduler.admit() == []
    scheduler.check_integrity()


def test_throwing_out_is_not_done_in_vain():
    scheduler = Scheduler(BlockPool(10, 4), make_options())
    low, equal = make_sequence(1, length=9, priority=20), make_sequence(2, length=17, priority=5)
    for sequence in (low, equal):
        scheduler.add(sequence)
    assert len(scheduler.admit()) == 2
    scheduler.add(make_sequence(3, length=30, priority=5))
    assert scheduler.admit() == []
    assert scheduler.preemptions == 0


def test_a_victim_is_left_in_peace_after_so_many_times():
    scheduler = running(1, max_sequences=1, max_preemptions=2)
    victim = scheduler.running[0]
    for i in range(4):
        high = make_sequence(100 + i, priority=0)
        scheduler.add(high)
        admitted = scheduler.admit()
        if i < 2:
            assert admitted == [high]
            scheduler.remove(high)
            assert scheduler.admit() == [victim]
        else:
            assert admitted == []
            scheduler.remove(high)
    assert victim.preemptions == 2
    # Of the nine tokens lost the first time, four came from the cache; the second time nothing else was lost.
    assert scheduler.recomputed_tokens == 5


def test_a_low_priority_is_not_overtaken_for_ever():
    scheduler = Scheduler(BlockPool(64, 4), make_options())
    low = make_sequence(1, priority=20)
    scheduler.add(low)
    late = make_sequence(2, priority=0)
    late.rank = (21.0, 2)
    scheduler.add(late)
    assert scheduler.waiting == (low, late)


def test_who_needs_a_prefix_that_is_being_computed_waits_for_it():
    scheduler = Scheduler(BlockPool(64, 4), make_options())
    first, same, other = (make_sequence(i, length=41, priority=10) for i in (1, 2, 3))
    same.token_ids = [*first.token_ids[:40], 59]
    for sequence in (first, same, other):
        scheduler.add(sequence)
    assert scheduler.admit() == [first, other]
    for _ in range(6):
        assert scheduler.waiting == (same,) or same in scheduler.running
        advance(scheduler)
        scheduler.admit()
    assert same.cached_tokens == 36
    urgent = make_sequence(4, length=41, priority=0)
    again = make_sequence(5, length=41, priority=20)
    again.token_ids = [58] * 41
    urgent.token_ids = [58] * 41
    scheduler.add(again)
    assert scheduler.admit() == [again]
    scheduler.add(urgent)
    assert scheduler.admit() == [urgent], "nobody waits for a lower priority"


def test_all_who_wait_for_a_prefix_wait_for_the_next_who_computes_it_when_the_first_leaves():
    scheduler = Scheduler(BlockPool(256, 4), make_options(max_sequences=32))
    prefix = prompt(40)
    sequences = [make_sequence(i) for i in range(20)]
    for sequence in sequences:
        sequence.token_ids = [*prefix, sequence.ordinal]
        sequence.prompt_length = 41
        sequence.max_length = 49
        scheduler.add(sequence)
    first, second, *rest = sequences
    assert scheduler.admit() == [first]
    advance(scheduler)
    assert first.published == 4
    assert scheduler.admit() == []
    scheduler.preempt(first)
    assert scheduler.admit() == [first], "a victim goes on before those who waited for it"
    scheduler.remove(first)
    assert scheduler.admit() == [second]
    assert second.cached_tokens == 16
    for _ in range(2):
        assert scheduler.admit() == []
        advance(scheduler)
    assert scheduler.admit() == rest
    assert {s.cached_tokens for s in rest} == {36}, "nine blocks: the tenth would leave a prompt of one token"
    scheduler.check_integrity()


def test_nobody_waits_for_blocks_that_only_a_lower_priority_computes():
    scheduler = Scheduler(BlockPool(256, 4), make_options(max_sequences=32))
    low, middle, high = (make_sequence(i, priority=p) for i, p in ((1, 20), (2, 10), (3, 0)))
    for sequence in (low, middle, high):
        sequence.token_ids = prompt(41)
        sequence.prompt_length = 41
        sequence.max_length = 49
    scheduler.add(low)
    assert scheduler.admit() == [low]
    scheduler.add(middle)
    assert scheduler.admit() == [middle]
    scheduler.add(high)
    assert scheduler.admit() == [high]
    late = make_sequence(4, priority=20)
    late.token_ids, late.prompt_length, late.max_length = prompt(41), 41, 49
    scheduler.add(late)
    assert scheduler.admit() == []
    scheduler.remove(high)
    scheduler.remove(middle)
    assert scheduler.admit() == [], "the first of its own priority still computes them"
    scheduler.remove(low)
    assert scheduler.admit() == [late]
