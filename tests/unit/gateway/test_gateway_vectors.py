"""Embeddings, reranking and scores, with a model that can and one that cannot."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from uzu_gateway.engine.fake import FakeEngine
from uzu_gateway.engine.port import Capability

AssertError = Callable[..., dict[str, Any]]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "a b"},
    "/v1/rerank": {"query": "a b", "documents": ["c", "a b", {"text": "b c"}]},
    "/v1/score": {"text_1": "a b", "text_2": ["b", "a b"]},
}


@pytest.fixture
def able(engine: FakeEngine) -> FakeEngine:
    engine.capabilities = frozenset({Capability.EMBEDDING, Capability.SCORE})
    return engine


async def test_embeddings(client: httpx.AsyncClient, able: FakeEngine) -> None:
    body = (await client.post("/v1/embeddings", json={"input": ["a b", "c", "a b"]})).json()
    vectors = [item["embedding"] for item in body["data"]]
    assert [item["index"] for item in body["data"]] == [0, 1, 2]
    assert vectors[0] == vectors[2] != vectors[1]
    assert math.isclose(math.hypot(*vectors[0]), 1)
    assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}


async def test_the_official_client_embeds(live: Any) -> None:
    gateway = live()
    gateway.engine.capabilities = frozenset({Capability.EMBEDDING})
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as sdk:
        packed = await sdk.embeddings.create(model="fake", input=["a b", "c"])
        plain = await sdk.embeddings.create(model="fake", input=["a b", "c"], encoding_format="float")
    for left, right in zip(packed.data, plain.data, strict=True):
        assert left.embedding == pytest.approx(right.embedding)
    assert packed.usage.prompt_tokens == 3


async def test_rerank(client: httpx.AsyncClient, able: FakeEngine) -> None:
    body = (await client.post("/v1/rerank", json={**BODIES["/v1/rerank"], "return_documents": True})).json()
    assert body["results"] == [
        {"index": 1, "relevance_score": 1.0, "document": {"text": "a b"}},
        {"index": 2, "relevance_score": 0.5, "document": {"text": "b c"}},
        {"index": 0, "relevance_score": 0.0, "document": {"text": "c"}},
    ]
    body = (await client.post("/v1/rerank", json={**BODIES["/v1/rerank"], "top_n": 1})).json()
    assert body["results"] == [{"index": 1, "relevance_score": 1.0}]


async def test_score(client: httpx.AsyncClient, able: FakeEngine) -> None:
    body = (await client.post("/v1/score", json=BODIES["/v1/score"])).json()
    assert [item["score"] for item in body["data"]] == [0.5, 1.0]
    many = {"text_1": ["a", "b"], "text_2": ["a", "c"]}
    body = (await client.post("/v1/score", json=many)).json()
    assert [item["score"] for item in body["data"]] == [1.0, 0.0]


@pytest.mark.parametrize("path", BODIES)
async def test_a_model_of_language_says_that_it_cannot(
    client: httpx.AsyncClient, assert_error: AssertError, path: str
) -> None:
    response = await client.post(path, json=BODIES[path])
    error = assert_error(response, 400, "unsupported_operation", "model")
    assert "no model of this server can" in error["message"]
    response = await client.post(path, json={**BODIES[path], "model": "other"})
    assert_error(response, 404, "model_not_found", "model")


async def test_a_model_of_embeddings_says_that_it_cannot_score(
    client: httpx.AsyncClient, engine: FakeEngine, assert_error: AssertError
) -> None:
    engine.capabilities = frozenset({Capability.EMBEDDING})
    response = await client.post("/v1/score", json=BODIES["/v1/score"])
    assert_error(response, 400, "unsupported_operation", "model")


@pytest.mark.parametrize(
    ("path", "fields", "code", "param"),
    [
        ("/v1/embeddings", {"input": []}, "invalid_parameter", "input"),
        ("/v1/embeddings", {"input": ["a", ""]}, "invalid_parameter", "input[1]"),
        ("/v1/embeddings", {"input": [1, 2]}, "unsupported_parameter", "input"),
        ("/v1/embeddings", {"input": ["a"] * 2049}, "invalid_parameter", "input"),
        ("/v1/embeddings", {"dimensions": 4}, "unsupported_parameter", "dimensions"),
        ("/v1/embeddings", {"encoding_format": "hex"}, "invalid_parameter", "encoding_format"),
        ("/v1/rerank", {"documents": "a"}, "invalid_parameter", "documents"),
        ("/v1/rerank", {"documents": [{"title": "a"}]}, "invalid_parameter", "documents[0]"),
        ("/v1/rerank", {"top_n": 0}, "invalid_parameter", "top_n"),
        ("/v1/score", {"text_1": ["a", "b", "c"]}, "invalid_parameter", "text_1"),
    ],
)
async def test_wrong_bodies(
    client: httpx.AsyncClient,
    able: FakeEngine,
    assert_error: AssertError,
    path: str,
    fields: dict[str, Any],
    code: str,
    param: str,
) -> None:
    assert_error(await client.post(path, json={**BODIES[path], **fields}), 400, code, param)


@pytest.mark.parametrize("path", ["audio/transcriptions", "audio/speech", "images/generations"])
async def test_routes_without_a_model_say_so(
    client: httpx.AsyncClient, assert_error: AssertError, path: str
) -> None:
    assert "no model that" in assert_error(await client.post(f"/v1/{path}"), 404, "not_found")["message"]
