"""`/v1/responses`, over the fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.request import ChatPrompt
from uzu_gateway.engine.fake import FakeBehaviour, FakeEngine
from uzu_gateway.engine.port import EngineFaultError
from uzu_gateway.response_store import MemoryResponseStore
from uzu_gateway.schemas.response_items import parse_input, to_messages

AssertError = Callable[..., dict[str, Any]]


def named(text: str) -> list[dict[str, Any]]:
    """The events of a stream; their names are their types, and they are numbered."""
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        payload = json.loads(data.removeprefix("data: "))
        assert name == f"event: {payload['type']}"
        events.append(payload)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def create(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    made: dict[str, Any] = response.json()
    return made


def prompt_of(engine: FakeEngine) -> list[dict[str, Any]]:
    prompt = engine.requests[-1][1].prompt
    assert isinstance(prompt, ChatPrompt)
    return [dict(message) for message in prompt.messages]


async def test_a_response(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(reply="hello you")
    made = await create(
        client,
        input="hi there",
        instructions="Be kind.",
        max_output_tokens=9,
        temperature=0.5,
        metadata={"a": "b"},
    )
    assert made["object"] == "response"
    assert made["status"] == "completed"
    assert made["id"].startswith("resp_")
    (item,) = made["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": "hello you", "annotations": [], "logprobs": []}
    ]
    assert made["usage"]["input_tokens"] == 2
    assert made["usage"]["output_tokens"] == 2
    assert made["usage"]["total_tokens"] == 4
    assert (made["metadata"], made["temperature"], made["store"]) == ({"a": "b"}, 0.5, True)
    assert prompt_of(engine) == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi there"},
    ]
    sampling = engine.requests[-1][1].sampling
    assert (sampling.max_tokens, sampling.temperature) == (9, 0.5)


async def test_the_events_of_a_stream(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(reply="one two")
    response = await client.post("/v1/responses", json={"input": "x", "stream": True})
    events = named(response.text)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert "".join(e["delta"] for e in events if e["type"].endswith("text.delta")) == "one two"
    assert events[0]["response"]["status"] == "in_progress"
    assert events[0]["response"]["output"] == []
    assert events[2]["item"]["content"] == []
    assert events[3]["part"]["text"] == ""
    final = events[-1]["response"]
    assert final["output"][0] == events[-2]["item"]
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    stored = (await client.get(f"/v1/responses/{final['id']}")).json()
    assert stored == final


async def test_a_response_that_is_cut(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(reply="one two three")
    made = await create(client, input="x", max_output_tokens=2)
    assert made["status"] == "incomplete"
    assert made["incomplete_details"] == {"reason": "max_output_tokens"}
    assert made["output"][0]["status"] == "incomplete"
    events = named(
        (await client.post("/v1/responses", json={"input": "x", "max_output_tokens": 2, "stream": True})).text
    )
    assert events[-1]["type"] == "response.incomplete"


async def test_a_conversation_goes_on(
    client: httpx.AsyncClient, engine: FakeEngine, assert_error: AssertError
) -> None:
    engine.behaviour = FakeBehaviour(reply="first answer")
    first = await create(client, input="first question", instructions="Not for later.")
    second = await create(client, input="second question", previous_response_id=first["id"])
    assert prompt_of(engine) == [
        {"role": "user", "content": "first question"},
        {"role": "assistant", "content": "first answer"},
        {"role": "user", "content": "second question"},
    ]
    items = (await client.get(f"/v1/responses/{second['id']}/input_items?limit=2")).json()
    assert [item["content"][0]["text"] for item in items["data"]] == ["second question", "first answer"]
    assert items["has_more"]
    after = await client.get(f"/v1/responses/{second['id']}/input_items?after={items['last_id']}")
    assert [item["content"][0]["text"] for item in after.json()["data"]] == ["first question"]
    gone = await client.delete(f"/v1/responses/{first['id']}")
    assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        assert_error(await client.request(method, f"/v1/responses/{first['id']}"), 404, "not_found")
    response = await client.post("/v1/responses", json={"input": "x", "previous_response_id": first["id"]})
    assert_error(response, 400, "invalid_parameter", "previous_response_id")
    await create(client, input="third", previous_response_id=second["id"])
    assert len(prompt_of(engine)) == 5, "a conversation does not need the responses before its last"


async def test_what_is_not_to_be_stored_is_not(client: httpx.AsyncClient, assert_error: AssertError) -> None:
    made = await create(client, input="x", store=False)
    assert made["store"] is False
    assert_error(await client.get(f"/v1/responses/{made['id']}"), 404, "not_found")


async def test_what_cannot_be_stored_is_given_and_says_so(open_client: Any) -> None:
    async with open_client(responses_store_bytes=10) as client:
        assert (await create(client, input="x"))["store"] is False
    async with open_client(redis_url="redis://127.0.0.1:1") as client:
        assert (await create(client, input="x"))["store"] is False


async def test_a_redis_that_is_away(open_client: Any, assert_error: AssertError) -> None:
    async with open_client(redis_url="redis://127.0.0.1:1") as client:
        assert_error(await client.get("/v1/responses/resp_1"), 503, "store_unavailable")
        body = {"input": "x", "previous_response_id": "resp_1"}
        assert_error(await client.post("/v1/responses", json=body), 503, "store_unavailable")


ITEMS: list[dict[str, Any]] = [
    {
        "role": "developer",
        "content": [{"type": "input_text", "text": "Be "}, {"type": "input_text", "text": "brief."}],
    },
    {"type": "message", "role": "user", "content": "weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
    {"type": "function_call", "call_id": "c2", "name": "feel", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "wet"}]},
]


def test_items_are_messages() -> None:
    calls = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for call, name in (("c1", "look"), ("c2", "feel"))
    ]
    assert to_messages(None, parse_input(ITEMS)) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "wet"},
    ]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": []}, "invalid_parameter", "input"),
        ({"input": 3}, "invalid_parameter", "input"),
        ({"input": [{"role": "boss", "content": "x"}]}, "invalid_parameter", "input[0].role"),
        ({"input": [{"role": "user"}]}, "invalid_parameter", "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "unsupported_parameter",
            "input[0].content[0]",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_parameter", "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "invalid_parameter", "input[0].call_id"),
        ({"max_output_tokens": 0}, "invalid_parameter", "max_output_tokens"),
        ({"temperature": -1}, "invalid_parameter", "temperature"),
        ({"text": {"format": {"type": "xml"}}}, "invalid_parameter", "text.format.type"),
        (
            {"text": {"format": {"type": "json_schema", "name": "x"}}},
            "invalid_parameter",
            "text.format.schema",
        ),
        ({"text": {"verbosity": "low"}}, "unsupported_parameter", "text.verbosity"),
        ({"text": {"shape": 1}}, "invalid_parameter", "text.shape"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
        ({"include": ["file_search_call.results"]}, "unsupported_parameter", "include[0]"),
        ({"top_logprobs": 2}, "invalid_parameter", "top_logprobs"),
        ({"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
        ({"max_tool_calls": 3}, "unsupported_parameter", "max_tool_calls"),
        ({"truncation": "maybe"}, "invalid_parameter", "truncation"),
        ({"metadata": {"a": 1}}, "invalid_parameter", "metadata"),
        ({"reasoning": {"depth": 1}}, "invalid_parameter", "reasoning.depth"),
        ({"background": True, "store": False}, "invalid_parameter", "store"),
        ({"background": True, "stream": True}, "unsupported_parameter", "stream"),
    ],
)
async def test_what_is_refused(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    assert_error: AssertError,
    fields: dict[str, Any],
    code: str,
    param: str,
) -> None:
    assert_error(await client.post("/v1/responses", json={"input": "x", **fields}), 400, code, param)
    assert engine.started == 0


async def test_the_engine_s_words_have_the_client_s_names(
    client: httpx.AsyncClient, engine: FakeEngine, assert_error: AssertError
) -> None:
    for ours, theirs in (("messages", "input"), ("structured_outputs.json", "text.format.schema")):
        engine.behaviour = FakeBehaviour(
            failure=RequestError(ErrorCode.INVALID_PARAMETER, f"{ours}: is wrong", ours)
        )
        body = {"input": "x", "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}}
        error = assert_error(await client.post("/v1/responses", json=body), 400, "invalid_parameter", theirs)
        assert error["message"] == f"{theirs}: is wrong"


async def test_a_failure_in_a_stream(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(
        reply="one two three", failure=EngineFaultError("internal words"), failure_after=1
    )
    response = await client.post("/v1/responses", json={"input": "x", "stream": True})
    events = named(response.text)
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert "internal words" not in response.text
    assert "DONE" not in response.text


async def test_logprobs(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(reply="one two")
    body = {"input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    made = await create(client, **body)
    shown = made["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in shown] == ["one", " two"]
    assert [len(entry["top_logprobs"]) for entry in shown] == [2, 2]
    events = named((await client.post("/v1/responses", json={**body, "stream": True})).text)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == shown


async def test_truncation(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    long = "word " * 30_000
    items = [{"role": "user", "content": f"{n} {long}"} for n in range(4)]
    await create(client, input=items, truncation="auto", max_output_tokens=9)
    # The fake counts the last message alone, so nothing is dropped before there is one that does not fit.
    assert len(prompt_of(engine)) == 4
    calls = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "word " * 70_000},
    ]
    await create(client, input=[items[0], *calls], truncation="auto", max_output_tokens=9)
    assert [message["role"] for message in prompt_of(engine)] == ["assistant", "tool"]


async def test_input_tokens(client: httpx.AsyncClient) -> None:
    counted = await client.post("/v1/responses/input_tokens", json={"input": "one two three"})
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": 3}


async def wait_for_end(client: httpx.AsyncClient, response_id: str) -> dict[str, Any]:
    for _ in range(500):
        made: dict[str, Any] = (await client.get(f"/v1/responses/{response_id}")).json()
        if made["status"] not in ("queued", "in_progress"):
            return made
        await asyncio.sleep(0.01)
    raise AssertionError("it does not end")


async def test_background(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(reply="one two", first_chunk_delay_s=0.1)
    queued = await create(client, input="x", background=True)
    assert (queued["status"], queued["output"], queued["background"]) == ("queued", [], True)
    ended = await wait_for_end(client, queued["id"])
    assert ended["status"] == "completed"
    assert ended["output"][0]["content"][0]["text"] == "one two"
    cancelled = await client.post(f"/v1/responses/{queued['id']}/cancel")
    assert cancelled.json() == ended
    await create(client, input="y", previous_response_id=queued["id"])
    assert len(prompt_of(engine)) == 3


async def test_background_that_fails(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(failure=EngineFaultError("internal words"))
    queued = await create(client, input="x", background=True)
    ended = await wait_for_end(client, queued["id"])
    assert (ended["status"], ended["error"]["code"]) == ("failed", "server_error")
    assert "internal words" not in str(ended)


async def test_cancelling(client: httpx.AsyncClient, engine: FakeEngine, assert_error: AssertError) -> None:
    engine.behaviour = FakeBehaviour(reply="one two", first_chunk_delay_s=30)
    queued = await create(client, input="x", background=True)
    body = {"input": "y", "previous_response_id": queued["id"]}
    response = await client.post("/v1/responses", json=body)
    assert_error(response, 400, "invalid_parameter", "previous_response_id")
    await asyncio.sleep(0.05)
    assert engine.running == 1
    cancelled = (await client.post(f"/v1/responses/{queued['id']}/cancel")).json()
    assert (cancelled["status"], cancelled["id"]) == ("cancelled", queued["id"])
    assert engine.running == 0
    assert (await client.get(f"/v1/responses/{queued['id']}")).json() == cancelled
    again = (await client.post(f"/v1/responses/{queued['id']}/cancel")).json()
    assert again["status"] == "cancelled"
    engine.behaviour = FakeBehaviour(reply="z")
    plain = await create(client, input="x")
    response = await client.post(f"/v1/responses/{plain['id']}/cancel")
    assert "background" in assert_error(response, 400, "invalid_request")["message"]
    assert_error(await client.post("/v1/responses/resp_none/cancel"), 404, "not_found")


async def test_deleting_stops_what_runs(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(reply="one", first_chunk_delay_s=30)
    queued = await create(client, input="x", background=True)
    await asyncio.sleep(0.05)
    assert (await client.delete(f"/v1/responses/{queued['id']}")).json()["deleted"]
    assert engine.running == 0
    assert (await client.get(f"/v1/responses/{queued['id']}")).status_code == 404


async def test_the_store_in_memory_is_bounded() -> None:
    now = 0.0
    store = MemoryResponseStore(100, ttl_s=10, clock=lambda: now)
    for name in "abc":
        await store.put(name, {"x": name * 20})
    assert store.size_bytes <= 100
    assert await store.get("a") is not None
    await store.put("d", {"x": "d" * 20})
    assert await store.get("b") is None, "the one that was not used for longest goes first"
    assert await store.get("a") is not None
    await store.put("a", {"x": "short"})
    await store.put("e", {"x": 1}, ttl_s=1)
    now = 2.0
    assert await store.get("e") is None
    now = 11.0
    assert await store.get("a") is None
    assert not await store.delete("a")
    await store.put("f", {})
    assert await store.delete("f")
    await store.close()
    assert store.size_bytes == 0


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_a_choice_of_no_tools_changes_nothing(client: httpx.AsyncClient, choice: str) -> None:
    await create(client, input="x", tools=[], tool_choice=choice, parallel_tool_calls=True)
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": choice}}
    assert (await client.post("/v1/messages", json=body)).status_code == 200
