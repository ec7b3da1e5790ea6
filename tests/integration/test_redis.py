"""Responses kept in a real Redis, by gateways that share it."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from uzu_gateway.app import create_app
from uzu_gateway.engine.fake import FakeBehaviour, FakeEngine
from uzu_gateway.response_store import RedisResponseStore
from uzu_gateway.settings import Settings

REDIS = shutil.which("redis-server")

pytestmark = pytest.mark.skipif(REDIS is None, reason="needs a Redis (Debian: redis-server)")


@pytest.fixture
def redis_url(spawn, tmp_path: Path, free_port: int, wait_until) -> str:
    """A Redis of this test's own."""
    log = (tmp_path / "redis.log").open("wb")
    command = [
        str(REDIS),
        "--port",
        str(free_port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(tmp_path),
    ]
    process = spawn(command, stdout=log, stderr=log)
    log.close()

    def ready() -> bool:
        assert process.poll() is None, (tmp_path / "redis.log").read_text()
        return "Ready to accept connections" in (tmp_path / "redis.log").read_text()

    wait_until(ready, 10, "Redis is ready")
    return f"redis://127.0.0.1:{free_port}"


@asynccontextmanager
async def gateway(redis_url: str, engine: FakeEngine, **settings):
    app = create_app(Settings(redis_url=redis_url, **settings), engine)
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
    ):
        yield client


async def test_gateways_share_conversations(redis_url):
    engine = FakeEngine(behaviour=FakeBehaviour(reply="an answer"))
    async with gateway(redis_url, engine) as first, gateway(redis_url, engine) as second:
        made = (await first.post("/v1/responses", json={"input": "one"})).json()
        assert (await second.get(f"/v1/responses/{made['id']}")).json() == made
        body = {"input": "two", "previous_response_id": made["id"]}
        assert (await second.post("/v1/responses", json=body)).status_code == 200
        assert [m["content"] for m in engine.requests[-1][1].prompt.messages] == ["one", "an answer", "two"]
        assert (await second.delete(f"/v1/responses/{made['id']}")).json()["deleted"]
        assert (await first.get(f"/v1/responses/{made['id']}")).status_code == 404
    async with gateway(redis_url, engine) as third:
        kept = (await third.post("/v1/responses", json={"input": "x"})).json()
        assert kept["store"] is True


async def test_background_responses_are_seen_by_all_and_stopped_by_one(redis_url):
    engine = FakeEngine(behaviour=FakeBehaviour(reply="late", first_chunk_delay_s=30))
    async with gateway(redis_url, engine) as first, gateway(redis_url, engine) as second:
        made = (await first.post("/v1/responses", json={"input": "one", "background": True})).json()
        await asyncio.sleep(0.1)
        assert (await second.get(f"/v1/responses/{made['id']}")).json()["status"] == "in_progress"
        elsewhere = await second.post(f"/v1/responses/{made['id']}/cancel")
        assert "another gateway" in elsewhere.json()["error"]["message"]
        cancelled = await first.post(f"/v1/responses/{made['id']}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        assert (await second.get(f"/v1/responses/{made['id']}")).json()["status"] == "cancelled"


async def test_what_runs_when_a_gateway_stops_has_failed(redis_url):
    engine = FakeEngine(behaviour=FakeBehaviour(reply="late", first_chunk_delay_s=30))
    async with gateway(redis_url, engine) as first:
        made = (await first.post("/v1/responses", json={"input": "one", "background": True})).json()
        await asyncio.sleep(0.1)
    async with gateway(redis_url, engine) as second:
        assert (await second.get(f"/v1/responses/{made['id']}")).json()["status"] == "failed"


async def test_what_is_kept_goes_after_its_time(redis_url):
    store = RedisResponseStore(redis_url, ttl_s=60)
    await store.put("a", {"x": 1}, ttl_s=0.05)
    await store.put("b", {"x": 2})
    await asyncio.sleep(0.1)
    assert await store.get("a") is None
    assert await store.get("b") == {"x": 2}
    await store.close()
