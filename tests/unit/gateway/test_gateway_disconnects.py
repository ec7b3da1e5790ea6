from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from uzu_gateway.engine.fake import FakeBehaviour

Live = Callable[..., Any]
Eventually = Callable[..., Any]
ENDLESS = {"max_tokens": 50_000, "ignore_eos": True}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a b"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
}
NOTICED_S = 0.5


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_is_left_is_cancelled(live: Live, eventually: Eventually, path: str) -> None:
    gateway = live()
    gateway.engine.behaviour = FakeBehaviour(chunk_delay_s=0.01)
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        body = {**PATHS[path], **ENDLESS, "stream": True}
        async with client.stream("POST", path, json=body) as response:
            assert response.status_code == 200
            async for _ in response.aiter_lines():
                break
            assert gateway.engine.running == 1
    await eventually(lambda: gateway.engine.cancelled == 1, NOTICED_S)
    assert gateway.engine.running == 0
    await eventually(lambda: gateway.metric("uzu_gateway_requests_in_flight") == 0, NOTICED_S)
    assert gateway.metric("uzu_gateway_generations_in_flight") == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b", "c"]])
async def test_a_request_that_is_left_before_its_first_byte_is_cancelled(
    live: Live, eventually: Eventually, stream: bool, prompt: Any
) -> None:
    gateway = live()
    gateway.engine.behaviour = FakeBehaviour(first_chunk_delay_s=60)
    count = len(prompt)
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        body = {"prompt": prompt, "stream": stream}
        waiting = asyncio.create_task(client.post("/v1/completions", json=body))
        await eventually(lambda: gateway.engine.running == count, 5)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
    await eventually(lambda: gateway.engine.cancelled == count, NOTICED_S)
    await eventually(lambda: gateway.metric("uzu_gateway_requests_in_flight") == 0, NOTICED_S)
    counted = 'uzu_gateway_requests_total{method="POST",route="/v1/completions",status="499"}'
    assert gateway.metric(counted) == 1


async def test_a_client_that_stops_reading_stops_nobody_else(live: Live) -> None:
    gateway = live()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
    payload = json.dumps({"prompt": "word " * 50, **ENDLESS, "stream": True}).encode()
    writer.write(_head("/v1/completions", len(payload)) + payload)
    await writer.drain()
    await reader.readline()
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        assert (await client.post("/v1/completions", json={"prompt": "a"})).status_code == 200
    assert gateway.engine.running == 1
    writer.transport.abort()


async def test_cancelled_chaos_leaves_nothing(live: Live, eventually: Eventually) -> None:
    gateway = live()
    gateway.engine.behaviour = FakeBehaviour(first_chunk_delay_s=0.02, chunk_delay_s=0.002)
    tasks_before = gateway.task_count()
    dice = random.Random(7)

    async def one(client: httpx.AsyncClient, index: int) -> None:
        path = list(PATHS)[index % 2]
        leaves = index % 4 != 3
        body = {**PATHS[path], **ENDLESS, "stream": index % 3 != 0}
        if not leaves:
            body["max_tokens"] = 5
        if path == "/v1/completions" and index % 8 == 0:
            body["prompt"] = ["a", "b", "c"]
        # Up to a second and a half: a busy machine takes a third of that to take all of them in.
        patience = dice.random() * 1.5 if leaves else 30
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                response = await client.post(path, json=body)
                assert response.status_code == 200

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=gateway.url, limits=limits, timeout=60) as client:
        await asyncio.gather(*(one(client, index) for index in range(120)))
    assert gateway.engine.cancelled > 20
    assert gateway.engine.finished >= 30
    await eventually(lambda: gateway.engine.running == 0, 1)
    await eventually(lambda: gateway.metric("uzu_gateway_requests_in_flight") == 0, 1)
    assert gateway.metric("uzu_gateway_generations_in_flight") == 0
    await eventually(lambda: gateway.task_count() <= tasks_before, 1)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_that_is_too_long_is_refused_while_it_arrives(live: Live, declared: bool) -> None:
    gateway = live(max_body_bytes=1000)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(_head("/v1/completions", 50_000 if declared else None))
    answering = asyncio.create_task(reader.readuntil(b"}}"))
    sent = 0
    while not answering.done() and sent < 50_000:
        writer.write(b"x" * 100 if declared else b"64\r\n" + b"x" * 100 + b"\r\n")
        await writer.drain()
        sent += 100
        await asyncio.sleep(0.01)
    assert sent < 20_000
    answer = await answering
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"body_too_large"' in answer
    assert b"x-request-id: " in answer
    assert gateway.engine.started == 0


async def test_a_client_that_sends_all_before_it_reads_is_told_of_the_limit(live: Live) -> None:
    gateway = live(max_body_bytes=1000)
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        for _ in range(3):
            response = await client.post("/v1/completions", json={"prompt": "x" * 5_000_000})
            assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        assert (await client.post("/v1/completions", json={"prompt": "x"})).status_code == 200


async def test_a_body_that_comes_slowly_is_read(live: Live) -> None:
    gateway = live()
    payload = json.dumps({"prompt": "a b c"}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(_head("/v1/completions", len(payload), "connection: close"))
    for byte in payload:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.002)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert b'"text":"a b c"' in answer


async def test_a_client_that_leaves_amid_its_body(live: Live, eventually: Eventually) -> None:
    gateway = live()
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(_head("/v1/completions", 1000) + b'{"prompt"')
    await writer.drain()
    await eventually(lambda: gateway.metric("uzu_gateway_requests_in_flight") == 1, 5)
    writer.transport.abort()
    await eventually(lambda: gateway.metric("uzu_gateway_requests_in_flight") == 0, NOTICED_S)
    assert gateway.engine.started == 0


async def test_what_outlives_the_grace_is_told(live: Live, eventually: Eventually) -> None:
    gateway = live(shutdown_grace_s=1)
    gateway.engine.behaviour = FakeBehaviour(chunk_delay_s=0.05)
    async with httpx.AsyncClient(base_url=gateway.url, timeout=20) as client:
        bodies = [{"prompt": "a", **ENDLESS, "stream": stream} for stream in (True, False)]
        requests = [asyncio.create_task(client.post("/v1/completions", json=body)) for body in bodies]
        await eventually(lambda: gateway.engine.running == 2, 5)
        gateway.server.should_exit = True
        streamed, whole = await asyncio.gather(*requests)
    assert streamed.status_code == 200
    assert json.loads(streamed.text.split("data: ")[-1])["error"]["code"] == "shutting_down"
    assert "[DONE]" not in streamed.text
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "shutting_down")
    assert gateway.engine.running == 0
    await eventually(lambda: gateway.engine.closed, 5)


def _head(path: str, length: int | None, *further: str) -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    lines = [f"POST {path} HTTP/1.1", "host: gateway", "content-type: application/json", framing, *further]
    return "\r\n".join([*lines, "", ""]).encode()
