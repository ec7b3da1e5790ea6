"""The frame of every request: its id, record, log line and metrics, and the last resort for errors."""

from __future__ import annotations

import asyncio
import re
import uuid
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from uzu_gateway.context import RECORD_KEY
from uzu_gateway.errors import as_gateway_error, error_response, is_anthropic
from uzu_gateway.in_flight import RequestsInFlight
from uzu_gateway.request_log import log_failure, log_request
from uzu_gateway.telemetry import PRIORITY_KEY, RequestRecord, Telemetry

REQUEST_ID = "x-request-id"
_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


class RequestScope:
    """Gives each request a `RequestRecord`, and counts and logs it when it has ended in any way.

    Args:
        app: the rest of the application.
        telemetry: what counts requests that have ended.
        in_flight: counts those that have not.

    """

    def __init__(self, app: ASGIApp, telemetry: Telemetry, in_flight: RequestsInFlight) -> None:
        self._app = app
        self._telemetry = telemetry
        self._in_flight = in_flight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(
            _request_id(Headers(scope=scope)), monotonic(), priority=scope.get(PRIORITY_KEY)
        )
        scope[RECORD_KEY] = record

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = record.status or message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = record.request_id
                if is_anthropic(scope["path"]):
                    headers["request-id"] = record.request_id
            await send(message)

        with self._in_flight.one():
            try:
                await self._app(scope, receive, send_with_id)
            except (Exception, asyncio.CancelledError) as error:
                log_failure(record, error)
                if record.status:
                    # The response has begun: only a broken connection can tell the client.
                    raise
                answer = as_gateway_error(error)
                record.error_code = str(answer.code)
                await error_response(answer, scope["path"])(scope, receive, send_with_id)
                if isinstance(error, asyncio.CancelledError):
                    raise
            finally:
                route = getattr(scope.get("route"), "path", None)
                self._telemetry.request_ended(route, scope["method"], record)
                log_request(record, scope["method"], scope["path"])


def _request_id(headers: Headers) -> str:
    given = headers.get(REQUEST_ID, "")
    return given if _SANE_REQUEST_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"
