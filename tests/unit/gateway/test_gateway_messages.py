"""Anthropic's `/v1/messages`, over the fake engine; the official client first of all."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anthropic
import httpx
import pytest

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.request import ChatPrompt
from uzu_contract.response import GenerateChunk
from uzu_gateway.engine.fake import FakeBehaviour, FakeEngine
from uzu_gateway.engine.message_reply import MessageReply
from uzu_gateway.engine.port import EngineFaultError, EngineUnavailableError
from uzu_gateway.engine.replies import ChatReply
from uzu_gateway.engine.response_reply import ResponseReply
from uzu_gateway.schemas.messages import CountTokensRequest, parse_messages

HELLO: dict[str, Any] = {"max_tokens": 50, "messages": [{"role": "user", "content": "hi there"}]}


@pytest.fixture
async def gateway(live: Callable[..., Any]) -> Any:
    return live()


@pytest.fixture
async def sdk(gateway: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client


async def test_the_official_client(gateway: Any, sdk: anthropic.AsyncAnthropic) -> None:
    gateway.engine.behaviour = FakeBehaviour(reply="hello you")
    made = await sdk.messages.create(model="fake", system="Be kind.", metadata={"user_id": "u"}, **HELLO)
    assert made.content[0].type == "text"
    assert made.content[0].text == "hello you"
    assert (made.role, made.model, made.stop_reason) == ("assistant", "fake", "end_turn")
    assert (made.usage.input_tokens, made.usage.output_tokens) == (2, 2)
    assert made._request_id
    prompt = gateway.engine.requests[-1][1].prompt
    assert [dict(m) for m in prompt.messages] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi there"},
    ]
    counted = await sdk.messages.count_tokens(model="fake", messages=HELLO["messages"])
    assert counted.input_tokens == 2


async def test_the_official_client_streams(gateway: Any, sdk: anthropic.AsyncAnthropic) -> None:
    gateway.engine.behaviour = FakeBehaviour(reply="one two three")
    async with sdk.messages.stream(model="fake", **HELLO) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert texts == ["one", " two", " three"]
    assert final.content[0].type == "text"
    assert final.content[0].text == "one two three"
    assert (final.stop_reason, final.usage.input_tokens, final.usage.output_tokens) == ("end_turn", 2, 3)
    events = [event async for event in await sdk.messages.create(model="fake", stream=True, **HELLO)]
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_why_it_stopped(client: httpx.AsyncClient, engine: FakeEngine, stream: bool) -> None:
    engine.behaviour = FakeBehaviour(reply="one two three")

    async def stopped(**fields: Any) -> tuple[str, str | None]:
        response = await client.post("/v1/messages", json={**HELLO, **fields, "stream": stream})
        if not stream:
            body = response.json()
            return body["stop_reason"], body["stop_sequence"]
        lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line.startswith("data")]
        (delta,) = [d["delta"] for d in map(json.loads, lines) if d["type"] == "message_delta"]
        return delta["stop_reason"], delta["stop_sequence"]

    assert await stopped() == ("end_turn", None)
    assert await stopped(max_tokens=2) == ("max_tokens", None)
    assert await stopped(stop_sequences=["x", " three"]) == ("stop_sequence", " three")
    assert "stop_reason" in engine.requests[-1][1].outputs


async def test_a_prefill_is_gone_on_with(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    messages = [*HELLO["messages"], {"role": "assistant", "content": "The best"}]
    await client.post("/v1/messages", json={**HELLO, "messages": messages})
    prompt = engine.requests[-1][1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert (prompt.continue_final_message, prompt.add_generation_prompt) == (True, False)


def test_blocks_are_messages() -> None:
    messages = parse_messages(
        [
            {"role": "user", "content": [{"type": "text", "text": "wea"}, {"type": "text", "text": "ther?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"where": "out"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "rain"}],
                    },
                    {"type": "text", "text": "so?"},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t2"}]},
        ]
    )
    function = {"name": "look", "arguments": '{"where": "out"}'}
    assert messages == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "user", "content": "so?"},
        {"role": "tool", "tool_call_id": "t2", "content": ""},
    ]


class Calling(ChatReply):
    """A reply that reads thoughts and calls where the fake has words."""

    def stream(self, index: int, chunk: GenerateChunk) -> Iterator[dict[str, Any]]:
        for payload in super().stream(index, chunk):
            for choice in payload["choices"]:
                match choice["delta"].get("content"):
                    case "think":
                        choice["delta"] = {"reasoning_content": "hm"}
                    case " call":
                        function = {"name": "look", "arguments": ""}
                        call = {"index": 0, "id": "c1", "type": "function", "function": function}
                        choice["delta"] = {"tool_calls": [call]}
                    case " more":
                        call = {"index": 0, "function": {"arguments": '{"a":'}}
                        choice["delta"] = {"tool_calls": [call]}
                    case " end":
                        choice["delta"] = {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}
                if choice["finish_reason"]:
                    choice["finish_reason"] = "tool_calls"
            yield payload


async def chunks_of(text: str) -> list[GenerateChunk]:
    request = CountTokensRequest(messages=[{"role": "user", "content": "x"}]).to_chat()
    from uzu_gateway.engine.codec import chat_requests

    wanted = chat_requests(request.model_copy(update={"stream": True}))[0]
    engine = FakeEngine(behaviour=FakeBehaviour(reply=text))
    return [chunk async for chunk in engine.generate("fake", wanted, "id")]


async def test_thoughts_and_calls_are_blocks() -> None:
    reply = MessageReply(Calling("fake", 1), "fake")
    events = [e for chunk in await chunks_of("think look call more end") for e in reply.stream(0, chunk)]
    events += list(reply.closing())
    starts = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    stops = [e["index"] for e in events if e["type"] == "content_block_stop"]
    assert stops == [0, 1, 2]
    body = reply.body()
    assert body["content"][0]["thinking"] == "hm"
    assert body["content"][2] == {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": 1}}
    assert body["stop_reason"] == "tool_use"
    parts = [
        e["delta"]["partial_json"] for e in events if e.get("delta", {}).get("type") == "input_json_delta"
    ]
    assert "".join(parts) == '{"a": 1}'


async def test_thoughts_and_calls_are_items() -> None:
    reply = ResponseReply(Calling("fake", 1), {"store": False})
    events = [e for chunk in await chunks_of("think look call more end") for e in reply.stream(0, chunk)]
    events += list(reply.closing())
    kinds = [e["item"]["type"] for e in events if e["type"] == "response.output_item.done"]
    assert kinds == ["reasoning", "message", "function_call"]
    call = reply.body()["output"][2]
    assert (call["call_id"], call["name"], call["arguments"]) == ("c1", "look", '{"a": 1}')
    order = [e["type"].removeprefix("response.") for e in events if e.get("output_index") == 2]
    assert order == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    assert "reasoning_text.done" in [e["type"].removeprefix("response.") for e in events]


def assert_shape(response: httpx.Response, status: int, kind: str) -> str:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error"}
    assert body["type"] == "error"
    assert body["error"]["type"] == kind
    assert response.headers["request-id"] == response.headers["x-request-id"]
    return str(body["error"]["message"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens: "),
        ({"max_tokens": 0}, "max_tokens: "),
        ({"messages": []}, "messages: "),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0]: "),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type: "),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text: "),
        ({"system": [{"type": "image"}]}, "system[0]: "),
        ({"stop_sequences": [""]}, "stop_sequences: "),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.type: "),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type: "),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type: "),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type: "),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: "),
        ({"mcp_servers": [{}]}, "mcp_servers: "),
    ],
)
async def test_what_is_refused(
    client: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], message: str
) -> None:
    response = await client.post("/v1/messages", json={**HELLO, **fields})
    assert assert_shape(response, 400, "invalid_request_error").startswith(message)
    assert engine.started == 0


async def test_errors_have_anthropic_s_shape(open_client: Any, engine: FakeEngine) -> None:
    async with open_client(max_body_bytes=200) as client:
        assert_shape(await client.get("/v1/messages"), 405, "invalid_request_error")
        assert_shape(await client.post("/v1/messages/batches"), 404, "not_found_error")
        assert_shape(await client.post("/v1/messages", json={**HELLO, "model": "x"}), 404, "not_found_error")
        assert_shape(await client.post("/v1/messages", content=b"x" * 300), 413, "request_too_large")
        assert_shape(await client.post("/v1/messages", content=b"{"), 400, "invalid_request_error")
        engine.behaviour = FakeBehaviour(failure=RequestError(ErrorCode.OVERLOADED, "full"))
        response = await client.post("/v1/messages", json=HELLO)
        assert_shape(response, 429, "rate_limit_error")
        assert response.headers["retry-after"]
        engine.behaviour = FakeBehaviour(failure=EngineUnavailableError("secret"))
        assert_shape(await client.post("/v1/messages", json=HELLO), 503, "overloaded_error")
        failure = EngineFaultError("secret")
        engine.behaviour = FakeBehaviour(reply="one two", failure=failure, failure_after=1)
        response = await client.post("/v1/messages", json={**HELLO, "stream": True})
        last = response.text.removesuffix("\n\n").split("\n\n")[-1]
        assert last.startswith('event: error\ndata: {"type":"error"')
        assert "secret" not in response.text


async def test_the_official_client_understands_errors(sdk: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        await sdk.messages.create(model="other", **HELLO)
    with pytest.raises(anthropic.BadRequestError) as raised:
        await sdk.messages.create(model="fake", max_tokens=0, messages=HELLO["messages"])
    assert "max_tokens" in str(raised.value)


async def test_structured_output(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config = {"format": {"type": "json_schema", "schema": schema}}
    assert (await client.post("/v1/messages", json={**HELLO, "output_config": config})).status_code == 200
    wanted = engine.requests[-1][1].sampling.structured_outputs
    assert wanted is not None
    assert json.loads(str(wanted.source)) == schema
