from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.request import ChatPrompt, Operation
from uzu_gateway.engine.fake import CONTEXT_LENGTH, LANGUAGE_MODEL, FakeEngine, token_id
from uzu_gateway.engine.port import Capability

AssertError = Callable[..., dict[str, Any]]


async def test_there_and_back(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = (await client.post("/tokenize", json={"prompt": "one two"})).json()
    assert body == {
        "count": 2,
        "max_model_len": CONTEXT_LENGTH,
        "tokens": [token_id("one"), token_id(" two")],
        "token_strs": None,
    }
    named = {"prompt": "one two", "model": "fake", "return_token_strs": True, "add_special_tokens": False}
    assert (await client.post("/tokenize", json=named)).json()["token_strs"] == ["one", " two"]
    assert engine.requests[-1][1].add_special_tokens is False
    back = await client.post("/detokenize", json={"tokens": body["tokens"]})
    assert back.json() == {"prompt": "one two"}
    assert engine.running == 0


async def test_messages(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {
        "messages": [{"role": "user", "content": "one two three"}],
        "tools": [{"type": "function"}],
        "chat_template_kwargs": {"a": 1},
        "add_generation_prompt": False,
    }
    assert (await client.post("/tokenize", json=body)).json()["count"] == 3
    request = engine.requests[-1][1]
    assert request.operation is Operation.TOKENIZE
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.tools == ({"type": "function"},)
    assert (request.prompt.chat_template_kwargs, request.prompt.add_generation_prompt) == ({"a": 1}, False)
    assert request.add_special_tokens


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": [1, "2"]}, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
    ],
)
async def test_wrong_bodies(
    client: httpx.AsyncClient, assert_error: AssertError, path: str, body: dict[str, Any], param: str
) -> None:
    assert_error(await client.post(path, json=body), 400, "invalid_parameter", param)


async def test_what_the_backend_refuses_is_blamed_on_the_client_s_field(
    open_client: Any, assert_error: AssertError
) -> None:
    class Refusing(FakeEngine):
        async def generate(self, *arguments: Any) -> Any:
            raise RequestError(ErrorCode.INVALID_PARAMETER, "input_ids: token 9 is none", "input_ids")
            yield

    async with open_client(Refusing()) as client:
        response = await client.post("/detokenize", json={"tokens": [9]})
    error = assert_error(response, 400, "invalid_parameter", "tokens")
    assert error["message"] == "tokens: token 9 is none"


async def test_a_model_that_cannot(
    client: httpx.AsyncClient, engine: FakeEngine, assert_error: AssertError
) -> None:
    engine.capabilities = LANGUAGE_MODEL - {Capability.TOKENIZE}
    response = await client.post("/tokenize", json={"prompt": "a"})
    error = assert_error(response, 400, "unsupported_operation", "model")
    assert "no model of this server can" in error["message"]
    assert_error(
        await client.post("/tokenize", json={"prompt": "a", "model": "x"}), 404, "model_not_found", "model"
    )
