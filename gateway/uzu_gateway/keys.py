"""Keys: where they are read from, and how one is checked."""

from __future__ import annotations

import hmac
from pathlib import Path

from starlette.requests import Request

from uzu_gateway.errors import GatewayError


def read_key(path: Path) -> str:
    """The key that is the first line of a file.

    Raises:
        ValueError: there is none, or it cannot be read.

    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"cannot be read ({reason})") from None
    key = lines[0].strip() if lines else ""
    if not key:
        raise ValueError("has no key in its first line")
    return key


def require_admin(request: Request, admin_key: str | None) -> None:
    """Let only the administrator's key pass.

    Args:
        request: with `Authorization: Bearer KEY`, or `x-api-key`.
        admin_key: the right one; None when the gateway was given none.

    Raises:
        GatewayError: 403 without an administrator's key to compare with, 401 for a missing or wrong one.

    """
    if admin_key is None:
        raise GatewayError(
            "permission_denied", "This gateway was started without --admin-key-file, so nobody may do this."
        )
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    given = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    if not given or not hmac.compare_digest(given.encode("utf-8", "replace"), admin_key.encode()):
        raise GatewayError(
            "invalid_api_key",
            "The administrator's key is needed, as Authorization: Bearer KEY.",
            headers={"www-authenticate": "Bearer"},
        )
