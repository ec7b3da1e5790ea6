from __future__ import annotations

import threading
from time import monotonic

import pytest
from engine_fixtures import Faults, ManualClock, Recorder, make_engine, make_request, prompt, run

from uzu_contract.errors import ErrorCode
from uzu_native.block_pool import BlockPool
from uzu_native.executor import ExecutionError, FakeExecutor
from uzu_native.idle_sleep import WAKE_FAILED_MESSAGE, IdleSleep


class Gate(FakeExecutor):
    """Comes back only when it is let."""

    def __init__(self):
        super().__init__()
        self.open = threading.Event()
        self.asked = threading.Event()

    def restore(self):
        self.asked.set()
        assert self.open.wait(10)
        super().restore()


@pytest.fixture
def serving():
    """Engines with a thread and a short patience, stopped at the end."""
    engines = []

    def start(executor, **options):
        engines.append(make_engine(executor, clock=monotonic, **{"sleep_after_s": 0.05} | options))
        engines[-1].start()
        return engines[-1]

    yield start
    for engine in engines:
        engine.stop()
        engine.check_integrity()


def ask(engine, token_ids, **changes):
    recorder = Recorder()
    recorder.ticket = engine.submit(make_request(**changes), token_ids, recorder)
    return recorder


def test_it_sleeps_when_nobody_came_for_long_enough_and_wakes_when_somebody_does():
    clock, executor, news = ManualClock(), FakeExecutor(), []
    loaded = threading.Event()

    def on_loaded(error):
        news.append(error)
        loaded.set()

    sleep = IdleSleep(executor, 10, clock, lambda: news.append("asleep"), on_loaded)
    assert sleep.due_in_s == 10
    assert sleep.attend(busy=True)
    assert sleep.due_in_s is None
    clock.now += 100
    assert sleep.attend(busy=True)
    assert sleep.attend(busy=False)
    clock.now += 9
    assert sleep.attend(busy=False)
    assert (sleep.due_in_s, executor.released) == (1, False)
    clock.now += 1
    assert not sleep.attend(busy=False)
    assert executor.released
    assert sleep.due_in_s is None
    assert not sleep.attend(busy=False)
    assert news == ["asleep"]
    assert not sleep.attend(busy=True)
    assert sleep.is_waking
    assert loaded.wait(10)
    assert not sleep.attend(busy=True), "the thread's word has not arrived"
    sleep.loaded(news.pop())
    assert sleep.attend(busy=True)
    assert not executor.released


def test_without_the_option_it_never_sleeps():
    clock, executor = ManualClock(), FakeExecutor()
    sleep = IdleSleep(executor, None, clock, pytest.fail, pytest.fail)
    clock.now += 1e9
    assert sleep.attend(busy=False)
    assert sleep.due_in_s is None


def test_tokens_are_the_same_after_sleep_and_the_prefix_cache_is_cold(serving, wait_until):
    (expected,) = run(make_engine(), (prompt(30), make_request()))
    executor = FakeExecutor()
    engine = serving(executor)
    for _ in range(2):
        first = ask(engine, prompt(30))
        wait_until(lambda r=first: r.finish_reason, 10, "the answer")
        assert first.token_ids == expected.token_ids
        assert first.chunks[-1].num_cached_tokens == 0
        second = ask(engine, prompt(30))
        wait_until(lambda r=second: r.finish_reason, 10, "the answer from a warm cache")
        assert second.chunks[-1].num_cached_tokens == 28
        assert not engine.metrics.asleep
        wait_until(lambda: engine.metrics.asleep, 10, "sleep")
        wait_until(lambda: executor.released, 10, "release")
        assert engine.metrics.kv_blocks_cached == 0


def test_who_waits_for_a_failed_wake_is_told_and_the_next_one_tries_again(serving, wait_until):
    faults = Faults()
    engine = serving(FakeExecutor(failing_restores=1), faults=faults)
    wait_until(lambda: engine.metrics.asleep, 10, "sleep")
    unlucky = ask(engine, prompt(5))
    wait_until(lambda: unlucky.error, 10, "the error")
    assert (unlucky.error.code, unlucky.error.message) == (ErrorCode.ENGINE_FAILED, WAKE_FAILED_MESSAGE)
    assert [type(fault) for fault in faults] == [ExecutionError]
    assert engine.metrics.asleep
    lucky = ask(engine, prompt(5))
    wait_until(lambda: lucky.finish_reason, 10, "the answer")
    assert len(faults) == 1


def test_deadlines_and_cancellation_hold_while_it_wakes(serving, wait_until):
    executor = Gate()
    engine = serving(executor)
    wait_until(lambda: executor.released, 10, "sleep")
    late = ask(engine, prompt(5), deadline_ms=100)
    gone = ask(engine, prompt(6))
    patient = ask(engine, prompt(7))
    assert executor.asked.wait(10)
    engine.cancel(gone.ticket)
    wait_until(lambda: late.error, 10, "the deadline")
    assert late.error.code == ErrorCode.DEADLINE_EXCEEDED
    wait_until(lambda: engine.metrics.requests_finished["cancelled"], 10, "the cancellation")
    assert engine.metrics.asleep
    assert sum(engine.metrics.requests_waiting.values()) == 1
    executor.open.set()
    wait_until(lambda: patient.finish_reason, 10, "the answer")
    assert gone.chunks == []


def test_it_can_be_stopped_while_it_wakes(wait_until):
    executor = Gate()
    engine = make_engine(executor, clock=monotonic, sleep_after_s=0.05)
    engine.start()
    wait_until(lambda: executor.released, 10, "sleep")
    waiting = ask(engine, prompt(5))
    assert executor.asked.wait(10)
    stopping = threading.Thread(target=engine.stop)
    stopping.start()
    wait_until(lambda: waiting.error, 10, "the refusal")
    assert waiting.error.code == ErrorCode.SHUTTING_DOWN
    executor.open.set()
    stopping.join(10)
    assert not stopping.is_alive()
    assert executor.released


def test_a_pool_forgets_every_prefix_but_no_owner():
    pool = BlockPool(4, 2)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], b"prefix")
    with pytest.raises(ValueError, match="2 blocks are owned"):
        pool.forget()
    pool.release(blocks)
    assert pool.cached == 1
    pool.forget()
    assert (pool.cached, pool.match([b"prefix"]), pool.available) == (0, 0, 4)
    pool.check_integrity([])
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3]
