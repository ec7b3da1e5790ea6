import math
import random
import time
from collections import Counter

import numpy as np
import pytest
from engine_fixtures import (
    END_TOKEN,
    Faults,
    ManualClock,
    Oracle,
    Recorder,
    make_engine,
    make_request,
    prompt,
    run,
)

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.request import MAX_DEADLINE_MS
from uzu_contract.response import FinishReason
from uzu_native.errors import EngineStoppedError
from uzu_native.executor import FakeExecutor
from uzu_native.step import Lane

SAMPLED = {"temperature": 0.9, "seed": 5}
PENALIZED = {
    "presence_penalty": 1.5,
    "frequency_penalty": 0.8,
    "repetition_penalty": 1.2,
    "logit_bias": ((3, 2.0), (9, -50.0)),
}
FORBIDDEN = {"bad_words": ("3", "11 12", *(f"{a} {b}" for a in range(20, 50) for b in range(0, 60, 2)))}
TYPICAL = {"temperature": 1.4, "seed": 8, "typical_p": 0.7, "top_k": 40}
SAMPLINGS = ({}, SAMPLED, PENALIZED, SAMPLED | PENALIZED | FORBIDDEN, FORBIDDEN, TYPICAL)


def alone(token_ids, **changes):
    return run(make_engine(), (token_ids, make_request(**changes)))[0]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_same_tokens_alone_and_among_neighbours(sampling):
    jobs = [(prompt(3 + 5 * i, i), make_request(max_tokens=5 + i, **sampling)) for i in range(9)]
    together = run(make_engine(FakeExecutor(256)), *jobs)
    for (token_ids, request), recorder in zip(jobs, together, strict=True):
        assert recorder.token_ids == run(make_engine(), (token_ids, request))[0].token_ids
    shuffled = jobs[:]
    random.Random(3).shuffle(shuffled)
    again = run(make_engine(FakeExecutor(256), threads=1), *shuffled)
    assert {tuple(r.token_ids) for r in again} == {tuple(r.token_ids) for r in together}


@pytest.mark.parametrize("budget", [16, 17, 33, 64])
def test_same_tokens_in_chunks_of_any_size(budget):
    executor = FakeExecutor(256)
    (recorder,) = run(
        make_engine(executor, max_step_tokens=budget, prefix_cache=False), (prompt(101), make_request())
    )
    assert recorder.token_ids == alone(prompt(101)).token_ids
    chunks = [len(row.token_ids) for plan in executor.plans for row in plan.rows if row.start < 101]
    assert len(chunks) > 1
    assert min(chunks) >= 2
    assert sum(chunks) == 101


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_same_tokens_when_preempted_and_resumed(sampling):
    jobs = [(prompt(9, i), make_request(max_tokens=20, **sampling)) for i in range(6)]
    engine = make_engine(FakeExecutor(block_count=16))
    recorders = run(engine, *jobs)
    assert engine.metrics.preemptions > 0
    for (token_ids, request), recorder in zip(jobs, recorders, strict=True):
        assert recorder.token_ids == run(make_engine(), (token_ids, request))[0].token_ids
    assert sum(r.chunks[-1].perf_metrics["preemptions"] for r in recorders) == engine.metrics.preemptions


@pytest.mark.parametrize("length", [8, 9, 10, 41])
def test_same_tokens_from_a_warm_prefix(length):
    engine = make_engine()
    cold, warm = (run(engine, (prompt(length), make_request()))[0] for _ in range(2))
    assert cold.chunks[-1].num_cached_tokens == 0
    # Whole blocks of four, with at least two prompt tokens left to compute.
    assert warm.chunks[-1].num_cached_tokens == (length - 2) // 4 * 4
    assert warm.token_ids == cold.token_ids


def test_prefixes_are_not_shared_across_salts_nor_when_switched_off():
    for engine, salt in ((make_engine(), "b"), (make_engine(prefix_cache=False), "a")):
        run(engine, (prompt(20), make_request(cache_salt="a")))
        (second,) = run(engine, (prompt(20), make_request(cache_salt=salt)))
        assert second.chunks[-1].num_cached_tokens == 0


def test_generated_blocks_do_not_serve_prompts():
    engine = make_engine()
    (first,) = run(engine, (prompt(10), make_request(max_tokens=20)))
    longer = prompt(10) + first.token_ids
    (second,) = run(engine, (longer, make_request()))
    assert second.chunks[-1].num_cached_tokens == 8
    assert second.token_ids == alone(longer).token_ids


def test_max_tokens_ends_with_length_and_counts():
    (recorder,) = run(make_engine(), (prompt(5), make_request(max_tokens=3)))
    assert recorder.finish_reason is FinishReason.LENGTH
    assert len(recorder.token_ids) == 3
    assert recorder.text == "".join(f"<{t}>" for t in recorder.token_ids)
    assert recorder.chunks[-1].num_input_tokens == 5


def test_without_max_tokens_the_context_is_filled():
    (recorder,) = run(make_engine(context_tokens=30), (prompt(5), make_request(max_tokens=None)))
    assert recorder.finish_reason is FinishReason.LENGTH
    assert len(recorder.token_ids) == 25


def test_not_streaming_sends_one_chunk_with_all_of_it():
    (whole,) = run(make_engine(), (prompt(5), make_request(stream=False)))
    assert len(whole.chunks) == 1
    assert whole.text == alone(prompt(5)).text


def test_end_token_stops_and_has_no_text():
    reference = alone(prompt(5), max_tokens=190).token_ids
    assert END_TOKEN in reference
    at = reference.index(END_TOKEN)
    recorder = alone(prompt(5), max_tokens=190, ignore_eos=False)
    assert recorder.finish_reason is FinishReason.STOP
    assert recorder.token_ids == reference[: at + 1]
    assert recorder.text == "".join(f"<{t}>" for t in reference[:at])


def test_penalties_count_the_tokens_of_the_answer():
    free, penalized, encouraged = (
        len(set(alone(prompt(5), max_tokens=100, frequency_penalty=penalty).token_ids))
        for penalty in (0.0, 2.0, -2.0)
    )
    assert encouraged < 10 < free < penalized


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_logprobs_are_the_same_alone_batched_preempted_and_speculated(sampling):
    jobs = [(prompt(9, i), make_request(max_tokens=20, logprobs=3, **sampling)) for i in range(6)]
    lone = [run(make_engine(), job)[0] for job in jobs]
    texts = [[*p, *r.token_ids] for (p, _), r in zip(jobs, lone, strict=True)]
    batched = make_engine(FakeExecutor(256))
    preempting = make_engine(FakeExecutor(16))
    speculating = make_engine(FakeExecutor(256), speculator=Oracle(texts, wrong_every=4))
    for engine in (batched, preempting, speculating):
        for recorder, alone_one in zip(run(engine, *jobs), lone, strict=True):
            assert recorder.token_ids == alone_one.token_ids
            assert recorder.logprobs == alone_one.logprobs
    assert preempting.metrics.preemptions > 0
    assert 0 < speculating.metrics.accepted_tokens.total() < speculating.metrics.drafted_tokens.total()


def test_logprobs_belong_to_their_tokens_and_are_the_models_own():
    (recorder,) = run(make_engine(), (prompt(5), make_request(logprobs=20, temperature=2.0, seed=1)))
    penalized = alone(prompt(5), logprobs=20, frequency_penalty=2.0, max_tokens=40)
    for told in (recorder, penalized):
        assert [place.chosen.token_id for place in told.logprobs] == told.token_ids
        for place in told.logprobs:
            assert place.chosen.token == f"<{place.chosen.token_id}>".encode()
            assert [scored.rank for scored in place.top] == [*range(1, 21)]
            assert sum(math.exp(scored.logprob) for scored in place.top) <= 1 + 1e-6
    assert any(place.chosen.rank > 1 for place in recorder.logprobs)
    # The penalty chooses other tokens, and does not change what the model thinks of them.
    assert any(place.chosen.rank > 1 for place in penalized.logprobs)
    greedy = alone(prompt(5), logprobs=1)
    assert all(place.chosen == place.top[0] for place in greedy.logprobs)
    assert alone(prompt(5)).chunks[0].logprobs is None
    assert [len(place.top) for place in alone(prompt(5), outputs=frozenset({"logprobs"})).logprobs] == [
        0
    ] * 12


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs_end_where_the_text_does(stream):
    tokens = alone(prompt(5)).token_ids
    request = make_request(logprobs=0, stop=(f"<{tokens[4]}>",), stream=stream)
    (recorder,) = run(make_engine(speculator=Oracle([prompt(5) + tokens], 1000)), (prompt(5), request))
    assert [place.chosen.token_id for place in recorder.logprobs] == recorder.token_ids == tokens[:5]


def test_a_bias_can_force_and_ban_tokens():
    assert set(alone(prompt(5), logit_bias=((8, 100.0),)).token_ids) == {8}
    free = alone(prompt(5)).token_ids
    banned = alone(prompt(5), logit_bias=((free[0], -100.0),)).token_ids
    assert free[0] not in banned
    with pytest.raises(RequestError) as caught:
        make_engine().submit(make_request(logit_bias=((64, 1.0),)), prompt(5), Recorder())
    assert caught.value.param == "logit_bias"


def test_min_tokens_keeps_end_and_stop_tokens_away():
    first = alone(prompt(5)).token_ids[0]
    recorder = alone(prompt(5), stop_token_ids=(first,), min_tokens=4)
    assert first not in recorder.token_ids[:4]
    assert alone(prompt(5), stop_token_ids=(first,)).token_ids == [first]


def test_stop_token_and_stop_string_are_named():
    tokens = alone(prompt(5)).token_ids
    by_token = alone(prompt(5), stop_token_ids=(tokens[3],))
    assert by_token.chunks[-1].stop_reason == str(tokens[3])
    by_string = alone(prompt(5), stop=(f"<{tokens[3]}>",))
    assert by_string.chunks[-1].stop_reason == f"<{tokens[3]}>"
    assert by_string.finish_reason is FinishReason.STOP
    for recorder in (by_token, by_string):
        assert recorder.token_ids == tokens[:4]
        assert recorder.text == "".join(f"<{t}>" for t in tokens[:3])


def test_cancel_frees_the_blocks_and_sends_nothing_more():
    engine = make_engine()
    recorder = Recorder()
    ticket = engine.submit(make_request(max_tokens=100), prompt(5), recorder)
    engine.cancel(ticket)
    engine.cancel(12345)
    engine.run_until_idle()
    assert engine.metrics.requests_finished["cancelled"] == 1
    assert engine.metrics.kv_blocks_used == 0
    assert recorder.finish_reason is None
    engine.check_integrity()


def test_too_long_prompts_are_refused_before_any_work():
    engine = make_engine(FakeExecutor(block_count=10))
    with pytest.raises(RequestError, match="leaves no room") as caught:
        engine.submit(make_request(), prompt(40), Recorder())
    assert caught.value.code is ErrorCode.CONTEXT_LENGTH_EXCEEDED
    with pytest.raises(RequestError, match="max_tokens 12") as caught:
        engine.submit(make_request(), prompt(30), Recorder())
    assert caught.value.param == "max_tokens"
    assert run(engine, (prompt(28), make_request()))[0].finish_reason is FinishReason.LENGTH


def test_a_full_queue_refuses():
    engine = make_engine(max_sequences=1, max_waiting=2)
    recorders = run(engine, *[(prompt(5, i), make_request()) for i in range(5)])
    refused = [r.error.code for r in recorders if r.error]
    assert refused == [ErrorCode.OVERLOADED] * 2
    assert sum(r.finish_reason is FinishReason.LENGTH for r in recorders) == 3


def test_a_passed_deadline_ends_a_request_that_waits_or_runs():
    clock = ManualClock()
    engine = make_engine(clock=clock)
    late, fine = Recorder(), Recorder()
    engine.submit(make_request(deadline_ms=50, max_tokens=100), prompt(5), late)
    engine.submit(make_request(deadline_ms=5000), prompt(6), fine)
    clock.now += 1
    engine.run_until_idle()
    assert late.error is not None
    assert late.error.code is ErrorCode.DEADLINE_EXCEEDED
    assert fine.finish_reason is FinishReason.LENGTH
    assert engine.metrics.kv_blocks_used == 0


def test_without_a_queue_those_who_can_run_are_still_taken():
    recorders = run(
        make_engine(max_sequences=3, max_waiting=0), *[(prompt(5, i), make_request()) for i in range(5)]
    )
    assert sum(r.error is not None for r in recorders) == 2


def test_the_longest_deadline_keeps_the_loop_alive():
    engine = make_engine()
    engine.start()
    recorders = [Recorder(), Recorder()]
    engine.submit(make_request(deadline_ms=MAX_DEADLINE_MS), prompt(5), recorders[0])
    engine.submit(make_request(), prompt(6), recorders[1])
    deadline = time.monotonic() + 10
    while not all(r.finish_reason for r in recorders):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    engine.stop()


def test_deadlines_of_requests_that_are_over_are_not_kept_and_the_others_hold():
    clock = ManualClock()
    engine = make_engine(clock=clock)
    last = Recorder()
    for i in range(400):
        run(engine, (prompt(3, i), make_request(max_tokens=1, deadline_ms=MAX_DEADLINE_MS - i)))
    assert len(engine._deadlines) <= 64 + 2
    engine.submit(make_request(deadline_ms=1000), prompt(3), last)
    clock.now += 1.1
    engine.run_until_idle()
    assert last.error is not None
    assert last.error.code is ErrorCode.DEADLINE_EXCEEDED


def test_a_step_that_cannot_start_fails_its_requests_and_gives_the_lane_back():
    class Refusing(FakeExecutor):
        refuses = 1

        def start(self, plan, on_done):
            if self.refuses:
                self.refuses -= 1
                raise MemoryError("no memory for the step")
            super().start(plan, on_done)

    faults = Faults()
    engine = make_engine(Refusing(), faults=faults, threads=1)
    (first,) = run(engine, (prompt(5), make_request()))
    assert first.error is not None
    assert first.error.code is ErrorCode.ENGINE_FAILED
    assert [type(f) for f in faults] == [MemoryError]
    (second,) = run(engine, (prompt(5), make_request()))
    assert second.finish_reason is FinishReason.LENGTH


def test_a_step_that_cannot_follow_another_fails_its_requests_once():
    class RefusingLater(FakeExecutor):
        def start(self, plan, on_done):
            if len(self.plans) == 2:
                self.plans.append(plan)
                raise MemoryError("no memory for the step")
            super().start(plan, on_done)

    faults = Faults()
    engine = make_engine(RefusingLater(), faults=faults, threads=1)
    first, second = run(engine, (prompt(5), make_request()), (prompt(6, 9), make_request()))
    for recorder in (first, second):
        assert recorder.error is not None
        assert recorder.error.code is ErrorCode.ENGINE_FAILED
    assert [type(f) for f in faults] == [MemoryError]
    assert engine.metrics.requests_finished == {ErrorCode.ENGINE_FAILED: 2}
    (third,) = run(engine, (prompt(5), make_request()))
    assert third.finish_reason is FinishReason.LENGTH


def test_a_row_that_cannot_be_sampled_is_nothing_to_those_who_have_left():
    class Poisoned(FakeExecutor):
        """The second step's rows cannot be sampled, and its request is cancelled while it is computed."""

        def start(self, plan, on_done):
            if len(self.plans) == 1:
                engine.cancel(1)
            super().start(plan, on_done)

        def _row_logits(self, row):
            logits = super()._row_logits(row)
            return logits * np.float32("nan") if len(self.plans) > 1 else logits

    faults = Faults()
    engine = make_engine(Poisoned(), faults=faults, threads=1)
    (recorder,) = run(engine, (prompt(5), make_request(temperature=1.0, top_p=0.5)))
    assert recorder.error is None
    assert faults == []
    assert engine.metrics.requests_finished == {"cancelled": 1}


def test_a_row_that_cannot_be_sampled_fails_its_own_request():
    class Poisoned(FakeExecutor):
        def _row_logits(self, row):
            logits = super()._row_logits(row)
            return logits * np.float32("nan") if row.start + len(row.token_ids) == 9 else logits

    faults = Faults()
    engine = make_engine(Poisoned(), faults=faults, threads=1)
    bad, good = run(
        engine,
        (prompt(9), make_request(temperature=1.0, top_p=0.5)),
        (prompt(20, 3), make_request(temperature=1.0, top_p=0.5)),
    )
    assert bad.error is not None
    assert bad.error.code is ErrorCode.ENGINE_FAILED
    assert good.finish_reason is FinishReason.LENGTH
    assert len(faults) == 1


def test_a_fault_that_comes_back_does_not_spin():
    faults = Faults()
    engine = make_engine(faults=faults)
    engine._scheduler.schedule = lambda: 1 // 0  # type: ignore[method-assign]
    engine.start()
    recorder = Recorder()
    engine.submit(make_request(), prompt(5), recorder)
    time.sleep(0.5)
    engine.stop()
    assert recorder.error is not None
    assert recorder.error.code is ErrorCode.ENGINE_FAILED
    assert 1 <= len(faults) < 10


def test_lower_priority_numbers_start_first():
    engine = make_engine(max_sequences=1)
    order: list[str] = []

    class Noting(Recorder):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def on_chunk(self, chunk):
            super().on_chunk(chunk)
            if chunk.finish_reason:
                order.append(self.name)

    for name, priority in (("batch", 20), ("default", 10), ("interactive", 0)):
        engine.submit(make_request(priority=priority), prompt(5), Noting(name))
    engine.run_until_idle()
    assert order == ["interactive", "default", "batch"]


def test_who_gives_way_to_a_higher_priority_keeps_its_place_and_the_tax_is_counted():
    """vllm#41951, #54644."""
    order: list[str] = []

    class Named(Recorder):
        def __init__(self, name):
            super().__init__()
            self.name = name

        def on_chunk(self, chunk):
            if not self.chunks:
                order.append(self.name)
            super().on_chunk(chunk)
            if len(self.chunks) == 9 and self.name == "low 1":
                order.append("low 1 again")

    class Interrupted(FakeExecutor):
        def start(self, plan, on_done):
            if len(self.plans) == 6:
                engine.submit(make_request(priority=0), prompt(5, 9), Named("high"))
            super().start(plan, on_done)

    engine = make_engine(Interrupted(96), max_sequences=2, prefix_cache=False, threads=1)
    low = [Named(f"low {i}") for i in range(4)]
    for i, recorder in enumerate(low):
        outputs = frozenset({"perf_metrics"})
        engine.submit(make_request(priority=20, outputs=outputs), prompt(6, i), recorder)
    engine.run_until_idle()
    engine.check_integrity()
    assert order == ["low 0", "low 1", "high", "low 1 again", "low 2", "low 3"]
    told = [recorder.chunks[-1].perf_metrics["preemptions"] for recorder in low]
    assert told == [0, 1, 0, 0]
    assert engine.metrics.preemptions == 1
    # The prompt's six tokens and those generated by then, no more and no less.
    computed = sum(len(row.token_ids) for plan in engine._executor.plans for row in plan.rows)
    undisturbed = 4 * (6 + 11) + 5 + 11
    assert 6 < engine.metrics.recomputed_tokens < 6 + 11
    assert computed == undisturbed + engine.metrics.recomputed_tokens
    for i, recorder in enumerate(low):
        assert recorder.token_ids == alone(prompt(6, i)).token_ids


def test_a_failed_step_fails_its_requests_and_no_others():
    faults = Faults()
    engine = make_engine(FakeExecutor(fail_on=99), faults=faults, threads=1, max_sequences=1)
    bad, good = run(engine, ([99, 99], make_request()), (prompt(6), make_request()))
    assert bad.error is not None
    assert bad.error.code is ErrorCode.ENGINE_FAILED
    assert len(faults) == 1
    assert good.finish_reason is FinishReason.LENGTH


def test_stop_ends_every_request_and_refuses_more():
    engine = make_engine()
    engine.start()
    recorder = Recorder()
    engine.submit(make_request(max_tokens=None), prompt(5), recorder)
    engine.stop()
    assert recorder.finish_reason is not None or recorder.error is not None
    if recorder.error:
        assert recorder.error.code is ErrorCode.SHUTTING_DOWN
    with pytest.raises(EngineStoppedError):
        engine.submit(make_request(), prompt(5), Recorder())


def test_metrics_count_what_happened():
    engine = make_engine()
    run(engine, (prompt(10), make_request()), (prompt(7, 3), make_request(max_tokens=4)))
    metrics = engine.metrics
    assert metrics.prompt_tokens == 17
    assert metrics.generated_tokens == 16
    assert metrics.requests_finished == {"length": 2}
    assert metrics.requests_running == metrics.requests_waiting.total() == metrics.kv_blocks_used == 0
    assert metrics.step_seconds.count > 0


@pytest.mark.parametrize("threads", [1, 2])
def test_the_blocks_of_who_is_cancelled_are_free_within_one_step(threads):
    """Under load, at any moment of a request's life: waiting, in a chunk of its prompt, decoding.

    With the threads parted, steps are those of the lane that computes it.
    """
    steps_until_free: list[int] = []
    cancelled_during: Counter[str] = Counter()
    pending: dict[int, Counter[Lane]] = {}
    tickets: list[int] = []
    cancelled: set[int] = set()
    started: Counter[Lane] = Counter()
    lane_of: dict[int, Lane] = {}
    chance = random.Random(4)

    def owners():
        return {s.ordinal: s for s in engine._scheduler.running}

    class Cancelling(FakeExecutor):
        def start(self, plan, on_done):
            owning = owners()
            for ticket in pending.keys() - owning.keys():
                steps_until_free.append((started - pending.pop(ticket))[lane_of.get(ticket, Lane.ALL)])
            live = [ticket for ticket in tickets if ticket not in cancelled]
            if live and chance.random() < 0.5:
                ticket = chance.choice(live[:12])
                cancelled.add(ticket)
                pending[ticket] = started.copy()
                engine.cancel(ticket)
                sequence = owning.get(ticket)
                stage = "waiting" if sequence is None else "decoding" if sequence.generated else "prompt"
                cancelled_during[stage] += 1
            started[plan.lane] += 1
            step, _ = engine._in_flight[plan.lane]
            lane_of.update((entry.sequence.ordinal, plan.lane) for entry in step.entries)
            super().start(plan, on_done)

    engine = make_engine(Cancelling(48), max_sequences=8, threads=threads)
    for i in range(60):
        tickets.append(engine.submit(make_request(max_tokens=40), prompt(3 + i % 40, i), Recorder()))
    engine.run_until_idle()
    assert len(steps_until_free) > 40
    assert max(steps_until_free) <= 1
    assert min(cancelled_during[stage] for stage in ("waiting", "prompt", "decoding")) >= 3
    assert (len(started) > 1) == (threads > 1)
    engine.check_integrity()


def test_disorder_in_the_books_is_reported_once_when_idle_and_serving_goes_on():
    faults = Faults()
    engine = make_engine(faults=faults, check_integrity=True)
    expected = run(engine, (prompt(9), make_request()), (prompt(20, 3), make_request()))
    assert faults == []
    (lost,) = engine._scheduler.pool.allocate(1)
    for _ in range(3):
        recorder = Recorder()
        engine.submit(make_request(), prompt(9), recorder)
        engine.run_until_idle()
        assert recorder.token_ids == expected[0].token_ids
    (fault,) = faults
    assert "reload the model: blocks" in str(fault)
    assert str(lost) in str(fault)


@pytest.mark.parametrize("ends", ["length", "cancelled", "deadline_exceeded", "engine_failed"])
@pytest.mark.parametrize("lost_blocks", [0, 1])
def test_the_books_are_checked_however_the_last_request_ended(ends, lost_blocks):
    faults = Faults()
    clock = ManualClock()

    class Cancelling(FakeExecutor):
        def start(self, plan, on_done):
            if ends == "cancelled" and len(self.plans) == 9:
                for ticket in tickets:
                    engine.cancel(ticket)
            super().start(plan, on_done)

    executor = Cancelling(96, fail_on=59 if ends == "engine_failed" else None)
    engine = make_engine(executor, faults=faults, clock=clock, check_integrity=True)
    engine._scheduler.pool.allocate(lost_blocks)
    deadline_ms = 100 if ends == "deadline_exceeded" else None
    tickets = [
        engine.submit(make_request(deadline_ms=deadline_ms, max_tokens=30), [*prompt(n), 59], Recorder())
        for n in (7, 30, 70)
    ]
    clock.now += 1
    engine.run_until_idle()
    assert engine.metrics.requests_finished == {ends: 3}
    assert sum("the engine's books are wrong" in str(fault) for fault in faults) == lost_blocks


def test_without_the_option_the_books_are_not_checked():
    engine = make_engine()
    engine._scheduler.pool.allocate(1)
    engine.submit(make_request(), prompt(9), Recorder())
    engine.run_until_idle()
    with pytest.raises(RuntimeError, match="owners and reference counts disagree"):
        engine.check_integrity()
