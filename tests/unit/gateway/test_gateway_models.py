"""Loading and unloading models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uzu_gateway.__main__ import parse_arguments
from uzu_gateway.engine.fake import FakeEngine
from uzu_gateway.engine.port import ModelControlError

AssertError = Callable[..., dict[str, Any]]
KEY = {"authorization": "Bearer secret"}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("secret\nanother line\n")
    return path


async def test_readiness_and_the_list_follow(
    open_client: Any, engine: FakeEngine, key_file: Path, assert_error: AssertError
) -> None:
    async with open_client(admin_key_file=key_file) as client:
        answer = await client.post("/v1/models/fake/unload", headers=KEY)
        assert answer.json() == {"id": "fake", "object": "model.unload", "loaded": False}
        assert (await client.get("/v1/models")).json()["data"] == []
        assert_error(await client.get("/health/ready"), 503, "no_backend")
        response = await client.post("/v1/completions", json={"prompt": "a", "model": "fake"})
        assert_error(response, 404, "model_not_found", "model")
        response = await client.post("/v1/models/fake/unload", headers=KEY)
        assert_error(response, 404, "model_not_found", "model")
        answer = await client.post("/v1/models/fake/load", headers={"x-api-key": "secret"})
        assert answer.json() == {"id": "fake", "object": "model.load", "loaded": True}
        assert (await client.get("/health/ready")).status_code == 200
        response = await client.post("/v1/models/other/load", headers=KEY)
        assert_error(response, 404, "model_not_found", "model")


@pytest.mark.parametrize("action", ["load", "unload"])
async def test_without_the_key(
    open_client: Any, engine: FakeEngine, key_file: Path, assert_error: AssertError, action: str
) -> None:
    path = f"/v1/models/fake/{action}"
    async with open_client() as client:
        for headers in ({}, KEY):
            assert_error(await client.post(path, headers=headers), 403, "permission_denied")
    async with open_client(admin_key_file=key_file) as client:
        for wrong in ({}, {"authorization": "secret"}, {"authorization": "Bearer x"}, {"x-api-key": "secre"}):
            response = await client.post(path, headers=wrong)
            assert_error(response, 401, "invalid_api_key")
            assert response.headers["www-authenticate"] == "Bearer"
    assert engine.unloaded == set()


@pytest.mark.parametrize(
    ("disabled", "status", "code", "param"),
    [(True, 400, "unsupported_operation", None), (False, 502, "model_load_failed", "model")],
)
async def test_a_backend_that_does_not(
    open_client: Any,
    key_file: Path,
    assert_error: AssertError,
    disabled: bool,
    status: int,
    code: str,
    param: str | None,
) -> None:
    class Refusing(FakeEngine):
        async def load_model(self, model: str) -> None:
            raise ModelControlError(model, "internal words", disabled=disabled)

    async with open_client(Refusing(), admin_key_file=key_file) as client:
        response = await client.post("/v1/models/fake/load", headers=KEY)
    assert_error(response, status, code, param)
    assert "internal words" not in response.text


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read"), ("", "no key"), ("\nkey", "no key")]
)
def test_key_files_that_hold_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, reason: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SystemExit):
        parse_arguments(["--admin-key-file", str(path)])
    shown = capsys.readouterr().err
    assert "--admin-key-file" in shown
    assert reason in shown
