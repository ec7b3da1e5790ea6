from __future__ import annotations

import asyncio
import time

import pytest

from uzu_gateway.engine.port import EngineTimeoutError, EngineUnavailableError, ModelInfo
from uzu_gateway.engine.served_models import ServedModels

MODELS = (ModelInfo("m", 1),)


class Backend:
    """Answers at once, fails, or hangs until it is told otherwise."""

    def __init__(self) -> None:
        self.asked = 0
        self.fails = False
        self.awake = asyncio.Event()
        self.awake.set()

    async def __call__(self) -> tuple[ModelInfo, ...]:
        self.asked += 1
        await self.awake.wait()
        if self.fails:
            raise EngineUnavailableError("refused")
        return MODELS


def models(backend: Backend, *, ttl_s: float = 30.0, stale_s: float = 10.0) -> ServedModels:
    return ServedModels(backend, ttl_s=ttl_s, timeout_s=1.0, stale_s=stale_s)


async def outcomes(served: ServedModels, count: int) -> tuple[list[object], float]:
    started = time.monotonic()
    found = await asyncio.gather(*(served.get() for _ in range(count)), return_exceptions=True)
    return list(found), time.monotonic() - started


async def test_waiters_share_one_question_and_its_failure() -> None:
    backend = Backend()
    backend.awake.clear()
    served = models(backend)
    found, took_s = await outcomes(served, 4)
    assert [type(error) for error in found] == [EngineTimeoutError] * 4
    assert 0.9 < took_s < 1.8
    assert backend.asked == 1
    with pytest.raises(EngineTimeoutError):
        await served.get()
    assert backend.asked == 1


async def test_a_failure_is_forgotten_when_its_time_is_over() -> None:
    backend = Backend()
    backend.fails = True
    served = models(backend, ttl_s=0.1)
    found, _ = await outcomes(served, 3)
    assert [str(error) for error in found] == ["refused"] * 3
    assert backend.asked == 1
    backend.fails = False
    await asyncio.sleep(0.15)
    assert await served.get() == MODELS


async def test_a_hung_question_does_not_hold_up_who_has_a_list() -> None:
    backend = Backend()
    served = models(backend, ttl_s=0)
    assert await served.get() == MODELS
    backend.awake.clear()
    found, took_s = await outcomes(served, 4)
    assert found == [MODELS] * 4
    assert took_s < 0.8
    assert backend.asked == 2
    await served.close()


async def test_a_list_that_is_too_old_is_not_used() -> None:
    backend = Backend()
    served = models(backend, ttl_s=0, stale_s=0.1)
    assert await served.get() == MODELS
    await asyncio.sleep(0.15)
    backend.awake.clear()
    with pytest.raises(EngineTimeoutError):
        await served.get()


async def test_no_list_is_used_after_a_failure() -> None:
    backend = Backend()
    served = models(backend, ttl_s=0)
    assert await served.get() == MODELS
    backend.fails = True
    with pytest.raises(EngineUnavailableError):
        await served.get()


async def test_a_caller_that_leaves_takes_nobody_along() -> None:
    backend = Backend()
    backend.awake.clear()
    served = models(backend)
    leaves, stays = asyncio.create_task(served.get()), asyncio.create_task(served.get())
    await asyncio.sleep(0)
    leaves.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaves
    backend.awake.set()
    assert await stays == MODELS
    assert backend.asked == 1


async def test_closing_fails_who_waits() -> None:
    backend = Backend()
    backend.awake.clear()
    served = models(backend)
    waits = asyncio.create_task(served.get())
    await asyncio.sleep(0.01)
    await served.close()
    with pytest.raises(EngineUnavailableError):
        await waits
