"""The official OpenAI client on `/v1/responses`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from uzu_gateway.engine.fake import FakeBehaviour


class Person(BaseModel):
    name: str
    age: int


PERSON = '{"name": "Ada", "age": 36}'


@pytest.fixture
async def gateway(live: Callable[..., Any]) -> Any:
    return live()


@pytest.fixture
async def sdk(gateway: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_create_retrieve_delete(gateway: Any, sdk: openai.AsyncOpenAI) -> None:
    gateway.engine.behaviour = FakeBehaviour(reply="hello you")
    made = await sdk.responses.create(model="fake", input="hi", instructions="Be kind.", metadata={"a": "b"})
    assert (made.output_text, made.status, made.metadata) == ("hello you", "completed", {"a": "b"})
    assert made.usage is not None
    assert made.usage.output_tokens == 2
    assert (await sdk.responses.retrieve(made.id)).output_text == "hello you"
    more = await sdk.responses.create(model="fake", input="and?", previous_response_id=made.id)
    items = await sdk.responses.input_items.list(more.id, order="asc")
    assert [item.type async for item in items] == ["message", "message", "message"]
    assert (await sdk.responses.input_tokens.count(model="fake", input="a b c")).input_tokens == 3
    await sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(made.id)


async def test_events(gateway: Any, sdk: openai.AsyncOpenAI) -> None:
    gateway.engine.behaviour = FakeBehaviour(reply="one two three")
    async with sdk.responses.stream(model="fake", input="x") as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(texts) == final.output_text == "one two three"
    events = [event async for event in await sdk.responses.create(model="fake", input="x", stream=True)]
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"


async def test_parse(gateway: Any, sdk: openai.AsyncOpenAI) -> None:
    gateway.engine.behaviour = FakeBehaviour(reply=PERSON)
    parsed = await sdk.responses.parse(model="fake", input="who?", text_format=Person)
    assert parsed.output_parsed == Person(name="Ada", age=36)
    wanted = gateway.engine.requests[-1][1].sampling.structured_outputs
    assert wanted is not None
    assert '"age"' in wanted.source
    async with sdk.responses.stream(model="fake", input="who?", text_format=Person) as stream:
        async for _ in stream:
            pass
        assert (await stream.get_final_response()).output_parsed == Person(name="Ada", age=36)


async def test_background(gateway: Any, sdk: openai.AsyncOpenAI) -> None:
    gateway.engine.behaviour = FakeBehaviour(reply="late", first_chunk_delay_s=30)
    queued = await sdk.responses.create(model="fake", input="x", background=True)
    assert queued.status == "queued"
    assert (await sdk.responses.cancel(queued.id)).status == "cancelled"


async def test_refusals(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await sdk.responses.create(model="fake", input="x", tools=[{"type": "web_search"}])
    assert raised.value.param == "tools[0].type"
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.create(model="other", input="x")
