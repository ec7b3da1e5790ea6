from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

from uzu_contract.errors import ErrorCode, RequestError
from uzu_gateway.app import ROUTERS
from uzu_gateway.engine.fake import FakeBehaviour, FakeEngine
from uzu_gateway.engine.port import (
    EngineFaultError,
    EngineTimeoutError,
    EngineUnavailableError,
    ModelNotFoundError,
)
from uzu_gateway.errors import ERRORS, GatewayError, as_gateway_error

AssertError = Callable[..., dict[str, Any]]
POSTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a b"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a b"}]},
}
BODILESS = {
    "/v1/files",
    "/v1/batches/{batch_id}/cancel",
    "/v1/responses/{response_id}/cancel",
    "/v1/models/{model_id}/load",
    "/v1/models/{model_id}/unload",
    *(f"/v1/audio/{name}" for name in ("transcriptions", "translations", "speech")),
    *(f"/v1/images/{name}" for name in ("generations", "edits", "variations")),
}
"""Routes that take a POST and read no JSON."""
METHODS: dict[str, set[str]] = {}
for _router in ROUTERS:
    for _route in _router.routes:
        METHODS.setdefault(_route.path, set()).update(_route.methods)  # type: ignore[attr-defined]
ROUTES = sorted(METHODS)
JSON_ROUTES = sorted(path for path, methods in METHODS.items() if "POST" in methods and path not in BODILESS)
JSON = {"content-type": "application/json"}


def test_the_routes_are_known() -> None:
    assert set(POSTS) <= set(JSON_ROUTES)
    assert set(ROUTES) > BODILESS
    assert len(JSON_ROUTES) >= 7


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "GET", "POST"])
async def test_wrong_methods(
    client: httpx.AsyncClient, assert_error: AssertError, path: str, method: str
) -> None:
    shown = re.sub(r"\{[^}]+\}", "fake", path)
    # A path may be another route's too: what stands below a model's name can be asked for as a name.
    routes = [route for router in ROUTERS for route in router.routes]
    right = set().union(*(route.methods for route in routes if route.path_regex.match(shown)))  # type: ignore[attr-defined]
    if method in right:
        return
    response = await client.request(method, shown)
    assert_error(response, 405, "method_not_allowed")
    assert set(response.headers["allow"].split(", ")) <= right


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v2/models", "//v1/models", "/V1/models", "/v1/completions/", "/v1/%00", "/docs"]
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_unknown_routes(
    client: httpx.AsyncClient, assert_error: AssertError, path: str, method: str
) -> None:
    assert_error(await client.request(method, path), 404, "not_found")


@pytest.mark.parametrize("path", JSON_ROUTES)
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_json"),
        (b'{"prompt": "\\ud800", "messages": []}', "invalid_json"),
        (b'{"temperature": NaN}', "invalid_json"),
        (b'{"a": 1, "a": 2}', "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"\xff", "invalid_json"),
        (b"{}", "invalid_parameter"),
    ],
)
async def test_bodies_that_are_none(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    assert_error: AssertError,
    path: str,
    body: bytes,
    code: str,
) -> None:
    response = await client.post(path, content=body, headers=JSON)
    assert_error(response, 400, code, response.json()["error"].get("param"))
    assert response.headers["x-should-retry"] == "false"
    assert engine.started == 0


@pytest.mark.parametrize("path", POSTS)
async def test_content_types(client: httpx.AsyncClient, assert_error: AssertError, path: str) -> None:
    for wrong in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "json",
    ):
        response = await client.post(path, content=b"{}", headers={"content-type": wrong})
        assert "application/json" in assert_error(response, 400, "invalid_content_type")["message"]
    for right in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
        response = await client.post(path, json=POSTS[path], headers={"content-type": right})
        assert response.status_code == 200
    bare = httpx.Request("POST", f"http://gateway{path}", content=b'{"prompt": "a"}')
    assert "content-type" not in bare.headers
    assert (await client.send(bare)).json().get("error", {}).get("code") != "invalid_content_type"


@pytest.mark.parametrize("path", POSTS)
async def test_unsupported_and_wrong_fields(
    client: httpx.AsyncClient, engine: FakeEngine, assert_error: AssertError, path: str
) -> None:
    response = await client.post(path, json={**POSTS[path], "suffix": "end"})
    assert_error(response, 400, "unsupported_parameter", "suffix")
    response = await client.post(path, json={**POSTS[path], "max_tokens": 0})
    assert_error(response, 400, "invalid_parameter", "max_tokens")
    response = await client.post(path, json={**POSTS[path], "stream": True, "max_tokens": 0})
    assert_error(response, 400, "invalid_parameter", "max_tokens")
    assert engine.started == 0


async def test_strict_fields(open_client: Any, assert_error: AssertError) -> None:
    async with open_client(strict_fields=True) as client:
        response = await client.post("/v1/completions", json={"prompt": "a", "surprise": 1})
        assert_error(response, 400, "invalid_parameter", "surprise")


FAILURES = [
    (EngineUnavailableError("10.0.0.1 refused"), 503, "no_backend", None),
    (EngineTimeoutError("10.0.0.1 slow"), 504, "upstream_timeout", None),
    (EngineFaultError("10.0.0.1 broke"), 502, "upstream_error", None),
    (ModelNotFoundError("fake"), 404, "model_not_found", "model"),
    (ValueError("10.0.0.1 bug"), 500, "internal_error", None),
    (
        RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "messages: long", "messages"),
        400,
        "context_length_exceeded",
        "messages",
    ),
    (RequestError(ErrorCode.OVERLOADED, "full"), 429, "overloaded", None),
    (RequestError(ErrorCode.SHUTTING_DOWN, "stopping"), 503, "shutting_down", None),
    (RequestError(ErrorCode.DEADLINE_EXCEEDED, "late"), 504, "deadline_exceeded", None),
    (
        RequestError(ErrorCode.INVALID_PARAMETER, "text_input: bad", "text_input"),
        400,
        "invalid_parameter",
        "prompt",
    ),
]


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("failure", "status", "code", "param"), FAILURES)
async def test_failures_before_the_first_token(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    assert_error: AssertError,
    path: str,
    stream: bool,
    failure: Exception,
    status: int,
    code: str,
    param: str | None,
) -> None:
    engine.behaviour = FakeBehaviour(failure=failure)
    response = await client.post(path, json={**POSTS[path], "stream": stream})
    error = assert_error(response, status, code, param)
    assert "10.0.0.1" not in response.text
    assert "text_input" not in error["message"]
    assert ("retry-after" in response.headers) == (status in (429, 503))
    assert "uzu_gateway_generations_in_flight 0.0" in (await client.get("/metrics")).text


async def test_a_failing_list_of_models(
    client: httpx.AsyncClient, engine: FakeEngine, assert_error: AssertError
) -> None:
    engine.ready = False
    for path, body in POSTS.items():
        assert_error(await client.post(path, json=body), 503, "no_backend")
    for path in ("/v1/models", "/v1/models/fake", "/health/ready"):
        response = await client.get(path)
        assert_error(response, 503, "no_backend")
        assert int(response.headers["retry-after"]) > 0


async def test_a_bug_in_the_engine_port_is_a_500_with_its_id(
    open_client: Any, assert_error: AssertError
) -> None:
    class Broken(FakeEngine):
        async def list_models(self) -> Any:
            raise ZeroDivisionError("secret")

    async with open_client(Broken()) as client:
        response = await client.get("/v1/models", headers={"x-request-id": "mine"})
    assert_error(response, 500, "internal_error")
    assert response.headers["x-request-id"] == "mine"
    assert "secret" not in response.text


@pytest.mark.parametrize("code", ErrorCode)
def test_every_contract_code_has_a_row(code: ErrorCode) -> None:
    error = as_gateway_error(RequestError(code, "why", "field"))
    assert (error.code, error.message, error.param) == (code.value, "why", "field")
    assert error.response().status_code == ERRORS[code].status


@pytest.mark.parametrize("code", ERRORS)
def test_rows_agree_with_their_status(code: str) -> None:
    spec = ERRORS[code]
    assert spec.should_retry == (spec.status >= 429)
    assert (spec.retry_after_s is not None) == (spec.status in (429, 503))
    assert (spec.type == "server_error") == (spec.status >= 500)


@pytest.mark.parametrize("status", [400, 401, 404, 405, 413, 418, 500, 503])
def test_every_http_exception_is_answered(status: int) -> None:
    error = as_gateway_error(HTTPException(status, "internal words"))
    assert "internal words" not in error.message
    assert error.code in ERRORS


def test_a_body_is_always_encodable() -> None:
    response = GatewayError("invalid_request", "half \ud800", "\udfff").response()
    assert b"\\ud800" in response.body


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"json": {}}}, "structured_outputs.json"),
        ({"guided_json": {}}, "guided_json"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
            "response_format.json_schema.schema",
        ),
    ],
)
async def test_a_bad_schema_is_blamed_on_the_field_that_held_it(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    assert_error: AssertError,
    path: str,
    stream: bool,
    fields: dict[str, Any],
    param: str,
) -> None:
    failure = RequestError(
        ErrorCode.INVALID_PARAMETER, "structured_outputs.json: no text matches", "structured_outputs.json"
    )
    engine.behaviour = FakeBehaviour(failure=failure)
    response = await client.post(path, json={**POSTS[path], "stream": stream, **fields})
    error = assert_error(response, 400, "invalid_parameter", param)
    assert error["message"].startswith(f"{param}: no text matches")
