"""Server-sent events: how a stream of chunks is written, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from uzu_gateway.disconnect import ClientLeftError, run_until_disconnect
from uzu_gateway.errors import GatewayError, as_gateway_error
from uzu_gateway.request_log import log_failure
from uzu_gateway.telemetry import RequestRecord

DONE = b"data: [DONE]\n\n"
CLIENT_LEFT_STATUS = 499


def event(payload: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def named_event(name: str, payload: dict[str, Any]) -> bytes:
    """One event of a stream whose events have names."""
    return b"event: " + name.encode() + b"\n" + event(payload)


def error_event(error: GatewayError) -> bytes:
    """The event that ends a stream of OpenAI's chunks early."""
    return event(error.body())


class EventStream(Response):
    """Sends `first`, then what `events` yields, then `done`.

    A failure on the way becomes an event, after which the stream closes without `done`; so does the server's
    own stop. `events` is closed in every case, at once when the client leaves.

    Args:
        first: has been taken from `events`, so that what fails earlier is an ordinary response.
        events: encoded events.
        record: of the request.
        done: ends a stream that is whole.
        failure: writes the event for an error.

    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: bytes,
        events: AsyncGenerator[bytes, None],
        record: RequestRecord,
        done: bytes = DONE,
        failure: Callable[[GatewayError], bytes] = error_event,
    ) -> None:
        super().__init__()
        del self.headers["content-length"]
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        self._first = first
        self._events = events
        self._record = record
        self._done = done
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """The ASGI application."""
        async with aclosing(self._events):
            try:
                await run_until_disconnect(receive, self._write(send))
            except ClientLeftError:
                self._record.status = CLIENT_LEFT_STATUS
            except asyncio.CancelledError as error:
                await self._write_failure(send, as_gateway_error(error))
                raise

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await _write_block(send, self._first)
        try:
            async for block in self._events:
                await _write_block(send, block)
        except Exception as error:
            log_failure(self._record, error)
            await self._write_failure(send, as_gateway_error(error))
            return
        await _write_block(send, self._done, more=False)

    async def _write_failure(self, send: Send, error: GatewayError) -> None:
        self._record.error_code = str(error.code)
        await _write_block(send, self._failure(error), more=False)


async def _write_block(send: Send, block: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": block, "more_body": more})
