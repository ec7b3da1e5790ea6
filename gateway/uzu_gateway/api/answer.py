"""How the routes that generate answer: in one body, or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from uzu_contract.errors import RequestError
from uzu_contract.request import GenerateRequest
from uzu_gateway.context import gateway_of, record_of
from uzu_gateway.disconnect import run_until_disconnect
from uzu_gateway.engine.replies import JsonObject, Reply
from uzu_gateway.generation import IndexedChunk
from uzu_gateway.sse import EventStream, event


async def answer(
    request: Request,
    model: str,
    requests: Sequence[GenerateRequest],
    reply: Reply,
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
            return JSONResponse(await run_until_disconnect(request.receive, _collect(chunks, reply)))
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
    return EventStream(first, events, record)


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


async def _collect(chunks: AsyncGenerator[IndexedChunk, None], reply: Reply) -> dict[str, Any]:
    async with aclosing(chunks):
        async for index, chunk in chunks:
            reply.add(index, chunk)
    return reply.body()


async def _events(chunks: AsyncGenerator[IndexedChunk, None], reply: Reply) -> AsyncGenerator[bytes, None]:
    async with aclosing(chunks):
        async for index, chunk in chunks:
            if block := _encoded(reply.stream(index, chunk)):
                yield block
    if block := _encoded(reply.closing()):
        yield block


def _encoded(payloads: Iterable[JsonObject]) -> bytes:
    return b"".join(event(payload) for payload in payloads)
