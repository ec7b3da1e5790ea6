"""Requests of the gateway to itself, without a socket: read, refused and answered as those of clients."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from uzu_gateway.telemetry import PRIORITY_KEY


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """What came back.

    Args:
        status: of HTTP.
        headers: of the response.
        body: whole.

    """

    status: int
    headers: Headers
    body: bytes


async def call(app: ASGIApp, path: str, body: bytes, request_id: str, priority: int) -> LocalAnswer:
    """POST JSON to the application; cancelling the task is the client's leaving.

    Args:
        app: the gateway.
        path: of the route.
        body: JSON.
        request_id: of the client.
        priority: of its generations; see `uzu_priority`.

    """
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", request_id.encode()),
        ],
        "client": None,
        "server": None,
        PRIORITY_KEY: priority,
    }
    status = 500
    headers: list[tuple[bytes, bytes]] = []
    parts: list[bytes] = []
    is_read = False

    async def receive() -> Message:
        nonlocal is_read
        if is_read:
            await asyncio.Event().wait()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.extend(message.get("headers", ()))
        else:
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return LocalAnswer(status, Headers(raw=headers), b"".join(parts))
