"""The limit on the length of request bodies."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from uzu_gateway.errors import GatewayError


class BodyLimit:
    """Refuses bodies that are too long: by their declared length, else as the bytes arrive.

    Starlette's own limit answers some of them in plain text, which is not the shape of our errors.

    Args:
        app: the rest of the application.
        max_bytes: the longest body that is read.
        exceptions: for some paths, another length.

    """

    def __init__(self, app: ASGIApp, max_bytes: int, exceptions: Mapping[str, int] | None = None) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._exceptions = exceptions or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_bytes = self._exceptions.get(scope["path"], self._max_bytes)
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_bytes:
            raise _too_large(max_bytes)
        received = 0

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > max_bytes:
                    raise _too_large(max_bytes)
            return message

        await self._app(scope, counted_receive, send)


def _too_large(max_bytes: int) -> GatewayError:
    # The connection stays open: closing it under a client that still sends would lose it this answer.
    return GatewayError(
        "body_too_large", f"The body is longer than {max_bytes} bytes, the most this gateway accepts."
    )
