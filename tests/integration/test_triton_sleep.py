"""A model in a real tritonserver that gives its memory back while nobody asks for anything."""

from __future__ import annotations

import asyncio
import time

import pytest
from serving import answer, resident_bytes, series, stubs, tokens

from uzu_contract.errors import ErrorCode, RequestError
from uzu_gateway.engine.triton import TritonEngine

PROMPT = "The ship left the harbour at dawn, and the captain, who had not slept for two nights, said that "


def test_memory_falls_and_the_answer_after_it_is_the_same(start_triton, wait_until):
    server = start_triton(options={"kv_cache_tokens": 8192, "sleep_after_s": 3})
    (stub,) = stubs(server.process.pid)

    def asleep():
        ((_, value),) = series(server.metrics_url, "uzu_asleep")
        return value

    async def ask(**options):
        engine = TritonEngine(server.grpc_address, request_timeout_s=120, models_ttl_s=1)
        try:
            return await answer(engine, PROMPT, max_tokens=48, **options)
        finally:
            await engine.close()

    answers, awake, sleeping = [], [], []
    for _ in range(3):
        answers.append(asyncio.run(ask()))
        awake.append(resident_bytes(stub))
        wait_until(asleep, 20, "sleep")
        wait_until(lambda: resident_bytes(stub) < awake[-1] / 2, 5, "the memory falls")
        sleeping.append(resident_bytes(stub))
    # Weights are packed for both ways to share the threads, beside the KV memory.
    assert min(a - s for a, s in zip(awake, sleeping, strict=True)) > 150 << 20
    assert max(sleeping) - min(sleeping) < 32 << 20, "each sleep gives back what waking took"
    assert [tokens(a) for a in answers] == [tokens(answers[0])] * 3
    assert len(tokens(answers[0])) == 48
    assert [a[-1].num_cached_tokens for a in answers] == [0, 0, 0]
    assert answers[1][-1].perf_metrics["queue_ms"] > 100, "it was loaded again for this answer"
    wait_until(asleep, 20, "sleep")
    began = time.monotonic()
    with pytest.raises(RequestError) as late:
        asyncio.run(ask(deadline_ms=300))
    assert late.value.code == ErrorCode.DEADLINE_EXCEEDED
    # Loading must not keep Python's lock from those who look at the clock.
    assert time.monotonic() - began < answers[1][-1].perf_metrics["queue_ms"] / 1000
    server.close()
    assert server.process.returncode == 0
