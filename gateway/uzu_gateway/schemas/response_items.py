"""The items of a conversation in `/v1/responses`, and the messages that they are to a model."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from uzu_contract.errors import invalid, unsupported

JsonObject = dict[str, Any]
ROLES = ("user", "assistant", "system", "developer")
MAX_ITEMS = 10_000
_TEXT_PARTS = ("input_text", "output_text", "text")


def new_id(prefix: str) -> str:
    """An id of the form that OpenAI's have."""
    return f"{prefix}_{uuid.uuid4().hex}"


def parse_input(value: object) -> tuple[JsonObject, ...]:
    """The items of a body's `input`, in one form: each has a type and an id, contents are lists of parts.

    Raises:
        RequestError: something that is no item, or an item that is not supported; `param` says where.

    """
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise invalid("input", "must be a string or a non-empty list of items")
    if len(value) > MAX_ITEMS:
        raise invalid("input", f"takes at most {MAX_ITEMS} items, not {len(value)}")
    return tuple(_item(f"input[{index}]", item) for index, item in enumerate(value))


def to_messages(instructions: str | None, items: Iterable[Mapping[str, Any]]) -> list[JsonObject]:
    """The messages of a chat: what an assistant said and called in one turn is one message."""
    messages: list[JsonObject] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        match item["type"]:
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                text = "".join(part["text"] for part in item["content"])
                messages.append({"role": role, "content": text})
            case "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                messages[-1].setdefault("tool_calls", []).append(
                    {
                        "id": item["call_id"],
                        "type": "function",
                        "function": {"name": item["name"], "arguments": item["arguments"]},
                    }
                )
            case "function_call_output":
                messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return messages


def _item(where: str, item: object) -> JsonObject:
    if not isinstance(item, Mapping):
        raise invalid(where, "must be an object")
    kind = item.get("type", "message")
    match kind:
        case "message":
            return _message(where, item)
        case "function_call":
            return {
                "id": _id(where, item, "fc"),
                "type": kind,
                "call_id": _text(where, item, "call_id"),
                "name": _text(where, item, "name"),
                "arguments": _text(where, item, "arguments"),
                "status": "completed",
            }
        case "function_call_output":
            output = item.get("output")
            if not isinstance(output, str):
                parts = _parts(f"{where}.output", output, "input_text")
                output = "".join(part["text"] for part in parts)
            call = _text(where, item, "call_id")
            return {
                "id": _id(where, item, "fco"),
                "type": kind,
                "call_id": call,
                "output": output,
                "status": "completed",
            }
        case "reasoning":
            # Models are not shown their own thoughts about earlier turns; the item is kept for the client.
            return {**item, "id": _id(where, item, "rs")}
    raise unsupported(
        f"{where}.type",
        f"{kind!r:.40} is not supported; known: message, function_call, function_call_output, reasoning",
    )


def _message(where: str, item: Mapping[str, Any]) -> JsonObject:
    role = item.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    kind = "output_text" if role == "assistant" else "input_text"
    return {
        "id": _id(where, item, "msg"),
        "type": "message",
        "role": role,
        "content": _parts(f"{where}.content", item.get("content"), kind),
        "status": "completed",
    }


def _parts(where: str, content: object, kind: str) -> list[JsonObject]:
    if isinstance(content, str):
        return [_part(kind, content)]
    if not isinstance(content, Sequence):
        raise invalid(where, "must be a string or a list of parts")
    parts = []
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise invalid(place, "must be an object with a type")
        name = "refusal" if part["type"] == "refusal" else "text"
        if name == "text" and part["type"] not in _TEXT_PARTS:
            raise unsupported(place, f"parts of type {part['type']!r:.40} are not supported by this model")
        parts.append(_part(kind, _text(place, part, name)))
    return parts


def _part(kind: str, text: str) -> JsonObject:
    part: JsonObject = {"type": kind, "text": text}
    if kind == "output_text":
        part["annotations"] = []
    return part


def _id(where: str, item: Mapping[str, Any], prefix: str) -> str:
    given = item.get("id")
    if given is None:
        return new_id(prefix)
    if not isinstance(given, str) or not given or len(given) > 128:
        raise invalid(f"{where}.id", "must be a string of up to 128 characters")
    return given


def _text(where: str, item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", "is required, and must be a string")
    return value
