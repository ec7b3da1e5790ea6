"""A gateway over the fake engine: in process, or behind a real uvicorn for what is about sockets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn

from uzu_gateway.app import create_app
from uzu_gateway.engine.fake import FakeEngine
from uzu_gateway.engine.port import Engine
from uzu_gateway.errors import is_anthropic
from uzu_gateway.server import make_server
from uzu_gateway.settings import Settings

START_TIMEOUT_S = 20


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


OpenClient = Callable[..., Any]


@pytest.fixture
def open_client(engine: FakeEngine) -> OpenClient:
    """`async with open_client(strict_fields=True) as client:`; settings by name."""

    @asynccontextmanager
    async def opened(serving: Engine | None = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        app = create_app(Settings(**settings), serving or engine)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            yield client

    return opened


@pytest.fixture
async def client(open_client: OpenClient) -> AsyncIterator[httpx.AsyncClient]:
    async with open_client() as opened:
        yield opened


@dataclass(frozen=True)
class LiveGateway:
    """A gateway behind uvicorn, in a thread."""

    server: uvicorn.Server
    engine: FakeEngine
    loop: asyncio.AbstractEventLoop

    @property
    def port(self) -> int:
        port: int = self.server.servers[0].sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def task_count(self) -> int:
        async def count() -> int:
            return len(asyncio.all_tasks())

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(5)

    def metric(self, name: str) -> float:
        """The value of a sample, by its name and labels as Prometheus writes them."""
        gateway = self.server.config.app.state.gateway  # type: ignore[union-attr]
        for line in gateway.telemetry.exposition().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        raise AssertionError(f"no sample {name}")


class LoopAwareEngine(FakeEngine):
    """Remembers the event loop that it serves in."""

    loop: asyncio.AbstractEventLoop | None = None

    async def is_ready(self) -> bool:
        self.loop = asyncio.get_running_loop()
        return await super().is_ready()


@pytest.fixture
def live() -> Iterator[Callable[..., LiveGateway]]:
    """`gateway = live(max_body_bytes=…)`."""
    with ExitStack() as stack:

        def start(**settings: Any) -> LiveGateway:
            engine = LoopAwareEngine()
            server = make_server(Settings(port=0, **settings), engine)
            thread = threading.Thread(target=server.run)
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join(START_TIMEOUT_S)
                assert not thread.is_alive()

            stack.callback(stop)
            wait_for(lambda: server.started or not thread.is_alive(), START_TIMEOUT_S)
            assert server.started
            port = server.servers[0].sockets[0].getsockname()[1]
            httpx.get(f"http://127.0.0.1:{port}/health/ready").raise_for_status()
            assert engine.loop is not None
            return LiveGateway(server, engine, engine.loop)

        yield start


def wait_for(condition: Callable[[], object], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.01)


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """`await eventually(condition, timeout_s)`, for what happens in the thread of a live gateway."""

    async def wait(condition: Callable[[], object], timeout_s: float) -> None:
        await asyncio.to_thread(wait_for, condition, timeout_s)

    return wait


@pytest.fixture
def events() -> Callable[[str], list[Any]]:
    """The payloads of a stream's text, in order; `[DONE]` as a string."""

    def parse(text: str) -> list[Any]:
        assert text.endswith("\n\n")
        lines = text.removesuffix("\n\n").split("\n\n")
        assert all(line.startswith("data: ") for line in lines)
        payloads = [line.removeprefix("data: ") for line in lines]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

    return parse


@pytest.fixture
def assert_error() -> Callable[..., dict[str, Any]]:
    """Check that a response is an error of our shape; gives its `error` object."""

    def check(response: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/json"
        assert response.headers["x-request-id"]
        assert response.headers["x-should-retry"] == ("true" if status >= 429 else "false")
        body = response.json()
        if is_anthropic(response.request.url.path):
            assert set(body) == {"type", "error"}
            assert set(body["error"]) == {"type", "message"}
            anthropic: dict[str, Any] = body["error"]
            return anthropic
        assert set(body) == {"error"}
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert (body["error"]["code"], body["error"]["param"]) == (code, param), body
        assert body["error"]["message"]
        error: dict[str, Any] = body["error"]
        return error

    return check
