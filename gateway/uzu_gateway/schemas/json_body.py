"""Strict reading of a JSON object: what other readers would take for different things is refused."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from uzu_gateway.errors import GatewayError

MAX_DEPTH = 64
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(body: bytes) -> dict[str, Any]:
    """The object that a body holds.

    Raises:
        GatewayError: an empty body, broken UTF-8 or JSON, no object, a key given twice, NaN or infinite
            numbers, half a surrogate pair, more than `MAX_DEPTH` levels.

    """
    if not body.strip():
        raise GatewayError("invalid_json", "The body is empty; send a JSON object.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise GatewayError("invalid_json", f"The body is not valid UTF-8 (byte {error.start}).") from None
    try:
        value = json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_no_constant, parse_float=_finite
        )
    except json.JSONDecodeError as error:
        raise GatewayError(
            "invalid_json",
            f"The body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno}).",
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise GatewayError("invalid_json", "The body holds an integer with too many digits.") from None
    if not isinstance(value, dict):
        raise GatewayError("invalid_json", "The body must be a JSON object.")
    # A value cannot be deeper than its brackets are many, and most bodies have few.
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(value)
    if _ESCAPED_SURROGATE.search(body):
        _check_surrogates(value)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise GatewayError("invalid_json", f"The body gives the key {twice!r:.80} twice.", twice[:80])
    return made


def _no_constant(name: str) -> NoReturn:
    raise GatewayError("invalid_json", f"The body holds {name}, which is not a JSON number.")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise GatewayError("invalid_json", f"The body holds a number that is too large: {digits:.40}.")
    return number


def _too_deep() -> GatewayError:
    return GatewayError("invalid_json", f"The body is nested more than {MAX_DEPTH} levels deep.")


def _check_depth(value: Any) -> None:
    level, depth = [value], 1
    while level:
        if depth > MAX_DEPTH:
            raise _too_deep()
        level = [child for container in level for child in _children(container) if _is_container(child)]
        depth += 1


def _check_surrogates(value: dict[str, Any]) -> None:
    for name, field in value.items():
        pending = [name, field]
        while pending:
            item = pending.pop()
            if isinstance(item, str):
                if not _encodable(item):
                    raise GatewayError(
                        "invalid_json",
                        "The body holds half a surrogate pair, which is not text.",
                        name if _encodable(name) else None,
                    )
            elif isinstance(item, dict):
                pending.extend([*item, *item.values()])
            elif isinstance(item, list):
                pending.extend(item)


def _children(container: Any) -> Any:
    return container.values() if isinstance(container, dict) else container


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list)


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
