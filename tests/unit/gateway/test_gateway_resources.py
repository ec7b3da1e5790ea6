from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from uzu_gateway.engine.fake import CONTEXT_LENGTH, FakeEngine

AssertError = Callable[..., dict[str, Any]]


async def test_models(client: httpx.AsyncClient, engine: FakeEngine, assert_error: AssertError) -> None:
    engine.models = ("b", "a")
    body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [model["id"] for model in body["data"]] == ["a", "b"]
    assert set(body["data"][0]) == {"id", "object", "created", "owned_by", "max_model_len", "capabilities"}
    assert body["data"][0]["capabilities"] == ["chat", "completion", "tokenize"]
    assert body["data"][0]["max_model_len"] == CONTEXT_LENGTH
    assert (await client.get("/v1/models/a")).json() == body["data"][0]
    for name in ("c", "org/model", "a/"):
        assert_error(await client.get(f"/v1/models/{name}"), 404, "model_not_found", "model")
    engine.models = ()
    assert (await client.get("/v1/models")).json()["data"] == []


async def test_which_model_serves(open_client: Any, engine: FakeEngine, assert_error: AssertError) -> None:
    body = {"prompt": "a"}
    engine.models = ("one", "two")
    async with open_client() as client:
        error = assert_error(await client.post("/v1/completions", json=body), 400, "model_required", "model")
        assert "one, two" in error["message"]
        response = await client.post("/v1/completions", json={**body, "model": "three"})
        assert_error(response, 404, "model_not_found", "model")
        response = await client.post("/v1/completions", json={**body, "model": ""})
        assert_error(response, 404, "model_not_found", "model")
        assert (await client.post("/v1/completions", json={**body, "model": "two"})).json()["model"] == "two"
    async with open_client(default_model="two") as client:
        assert (await client.post("/v1/completions", json=body)).json()["model"] == "two"
    engine.models = ()
    async with open_client() as client:
        assert_error(await client.post("/v1/completions", json=body), 503, "no_backend")


async def test_health(client: httpx.AsyncClient, engine: FakeEngine, assert_error: AssertError) -> None:
    assert (await client.get("/health/ready")).json() == {"status": "ready"}
    engine.models = ()
    assert_error(await client.get("/health/ready"), 503, "no_backend")
    engine.ready = False
    assert (await client.get("/health/live")).json() == {"status": "live"}


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        ("abc-123", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("with space", False),
        ('quo"te', False),
    ],
)
async def test_request_ids(client: httpx.AsyncClient, given: str, echoed: bool) -> None:
    response = await client.get("/health/live", headers={"x-request-id": given})
    assert (response.headers["x-request-id"] == given) is echoed
    if not echoed:
        assert re.fullmatch("req-[0-9a-f]{32}", response.headers["x-request-id"])


async def test_metrics(client: httpx.AsyncClient) -> None:
    await client.post("/v1/completions", json={"prompt": "a b", "stream": True})
    await client.post("/v1/completions", json={"prompt": "a b c"})
    text = (await client.get("/metrics")).text
    for line in (
        'uzu_gateway_requests_total{method="POST",route="/v1/completions",status="200"} 2.0',
        'uzu_gateway_prompt_tokens_total{model="fake"} 5.0',
        'uzu_gateway_completion_tokens_total{model="fake"} 5.0',
        'uzu_gateway_time_to_first_token_seconds_count{model="fake"} 1.0',
        'uzu_gateway_request_seconds_count{route="/v1/completions"} 2.0',
        "uzu_gateway_generations_in_flight 0.0",
        "uzu_gateway_requests_in_flight 1.0",
    ):
        assert line in text.splitlines()


async def test_clients_cannot_make_series(client: httpx.AsyncClient) -> None:
    async def series() -> int:
        text = (await client.get("/metrics")).text
        return sum(len(family.samples) for family in text_string_to_metric_families(text))

    async def attack(word: str) -> None:
        await client.get(f"/{word}")
        await client.get(f"/v1/models/{word}")
        await client.request(word.upper(), "/v1/models")
        await client.post("/v1/completions", json={"prompt": "a", "model": word, "user": word, word: word})

    await attack("first")
    await series()
    before = await series()
    for index in range(50):
        await attack(f"word{chr(97 + index % 26)}{index}")
    assert await series() == before
    assert "word" not in (await client.get("/metrics")).text


async def test_openapi_describes_the_bodies(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    body = schema["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "prompt" in body["properties"]
    assert "$ref" not in str(body)
