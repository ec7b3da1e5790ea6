"""The input of a batch: one request a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uzu_gateway.errors import GatewayError
from uzu_gateway.schemas.json_body import parse_object

MAX_REQUESTS = 50_000
MAX_ERRORS = 50
MAX_CUSTOM_ID = 512
_KEYS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True)
class Line:
    """A request of a batch.

    Args:
        number: of the line, from 1.
        custom_id: the client's name for it, unlike all others of the batch.
        body: what is sent.

    """

    number: int
    custom_id: str
    body: dict[str, Any]

    def encoded(self) -> bytes:
        """The body of the request."""
        return json.dumps(self.body, ensure_ascii=False, separators=(",", ":")).encode()


def read_lines(path: Path) -> Iterator[Line]:
    """The requests of an input that has been found right."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            if raw.strip():
                parsed = parse_object(raw)
                yield Line(number, parsed["custom_id"], parsed["body"])


def check_lines(path: Path, endpoint: str, max_line_bytes: int) -> tuple[int, list[dict[str, Any]]]:
    """How many requests an input has, and what is wrong with it; the first `MAX_ERRORS` things."""
    seen: set[str] = set()
    errors: list[dict[str, Any]] = []

    def wrong(
        line: int | None, message: str, param: str | None = None, code: str = "invalid_request"
    ) -> None:
        errors.append({"code": code, "line": line, "message": message, "param": param})

    with path.open("rb") as file:
        number = 0
        while raw := file.readline(max_line_bytes + 1):
            number += 1
            if len(errors) >= MAX_ERRORS:
                break
            if len(raw) > max_line_bytes:
                wrong(number, f"The line is longer than {max_line_bytes} bytes.", code="line_too_long")
                break
            if not raw.strip():
                continue
            try:
                parsed = parse_object(raw)
            except GatewayError as error:
                wrong(number, error.message.replace("The body", "The line"), code="invalid_json_line")
                continue
            problem = _problem(parsed, endpoint)
            if problem is not None:
                wrong(number, f"{problem[0]}: {problem[1]}", problem[0])
            elif parsed["custom_id"] in seen:
                name = f"{parsed['custom_id']!r:.80}"
                wrong(number, f"custom_id: {name} was used before", "custom_id", "duplicate_custom_id")
            else:
                seen.add(parsed["custom_id"])
            if len(seen) > MAX_REQUESTS:
                wrong(None, f"A batch has at most {MAX_REQUESTS} requests.", code="too_many_requests")
                break
    if not seen and not errors:
        wrong(None, "The input file has no requests.", code="empty_file")
    return len(seen), errors


def _problem(parsed: dict[str, Any], endpoint: str) -> tuple[str, str] | None:
    for name in parsed:
        if name not in _KEYS:
            return name[:80], f"is not a key of a request; known: {', '.join(_KEYS)}"
    custom_id = parsed.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
        return "custom_id", f"must be a string of up to {MAX_CUSTOM_ID} characters"
    if parsed.get("method") != "POST":
        return "method", "must be POST"
    if parsed.get("url") != endpoint:
        return "url", f"must be the batch's endpoint, {endpoint}"
    if not isinstance(parsed.get("body"), dict):
        return "body", "must be an object"
    return None
