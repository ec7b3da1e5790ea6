"""How the routes that generate answer: in one body, or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from uzu_contract.errors import RequestError
from uzu_contract.request import GenerateRequest
from uzu_contract.response import GenerateChunk
from uzu_gateway.context import gateway_of, record_of
from uzu_gateway.disconnect import run_until_disconnect
from uzu_gateway.engine.replies import JsonObject
from uzu_gateway.errors import GatewayError
from uzu_gateway.generation import IndexedChunk
from uzu_gateway.sse import EventStream


class AnswerForm(Protocol):
    """How an answer is told: `Reply` in OpenAI's way, others in the ways of other APIs."""

    @property
    def done(self) -> bytes:
        """Ends a stream that is whole."""
        ...

    def add(self, index: int, chunk: GenerateChunk) -> None:
        """Take in a chunk of one choice, when nothing is streamed."""
        ...

    def stream(self, index: int, chunk: GenerateChunk) -> Iterator[JsonObject]:
        """Take in a chunk of one choice; what a stream sends for it, which may be nothing."""
        ...

    async def finish(self) -> None:
        """Do what is to be done when the last choice has finished, before the client is told."""
        ...

    def closing(self) -> Iterator[JsonObject]:
        """What a stream sends after the last choice has finished."""
        ...

    def body(self) -> JsonObject:
        """The whole answer."""
        ...

    def encode(self, payload: JsonObject) -> bytes:
        """An event of the stream."""
        ...

    def failure(self, error: GatewayError) -> bytes:
        """The event that ends a stream early."""
        ...


async def answer(
    request: Request,
    model: str,
    requests: Sequence[GenerateRequest],
    reply: AnswerForm,
    blame: Callable[[RequestError], RequestError] = lambda error: error,
) -> Response:
    """Run `requests` and answer with `reply`.

    The response of a stream is made only when the engine has begun to answer, so that everything which fails
    before that is an ordinary error.

    Args:
        request: whose answer it is.
        model: that answers.
        requests: what the engine is to do.
        reply: what the client is told.
        blame: gives the engine's complaint the client's own names of the fields.

    Raises:
        ClientLeftError: the client left first; nothing is running any more.
        RequestError: the engine refused a request.
        EngineError: it was not served for another reason.

    """
    record = record_of(request)
    chunks = gateway_of(request).generations.run(model, requests, record)
    if not requests[0].stream:
        try:
            return JSONResponse(await run_until_disconnect(request.receive, collect(chunks, reply)))
        except RequestError as error:
            raise blame(error) from None
    events = _events(chunks, reply)
    try:
        first = await run_until_disconnect(request.receive, anext(events))
    except BaseException as error:
        await events.aclose()
        if isinstance(error, RequestError):
            raise blame(error) from None
        raise
    return EventStream(first, events, record, reply.done, reply.failure)


def describe_body(schema: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a route whose body is read by hand."""
    whole = schema.model_json_schema()
    inlined = _inline(whole, whole.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """The schema with its references replaced: they would point at the root of another document."""
    if isinstance(schema, list):
        return [_inline(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return definitions[schema["$ref"].rpartition("/")[2]]
    return {name: _inline(value, definitions) for name, value in schema.items()}


async def collect(chunks: AsyncGenerator[IndexedChunk, None], reply: AnswerForm) -> JsonObject:
    """Take all chunks in; the whole answer."""
    async with aclosing(chunks):
        async for index, chunk in chunks:
            reply.add(index, chunk)
    await reply.finish()
    return reply.body()


async def _events(
    chunks: AsyncGenerator[IndexedChunk, None], reply: AnswerForm
) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for index, chunk in chunks:
            if block := b"".join(map(reply.encode, reply.stream(index, chunk))):
                yield block
    await reply.finish()
    if block := b"".join(map(reply.encode, reply.closing())):
        yield block
