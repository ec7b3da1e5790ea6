"""What a text must look like: one frozen type, decoded strictly from the `structured_outputs` object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from uzu_contract.errors import RequestError, invalid

MAX_SCHEMA_CHARACTERS = 128 * 1024
MAX_SCHEMA_DEPTH = 64
MAX_GRAMMAR_CHARACTERS = 8 * 1024
"""Of a regular expression or a grammar: a few thousand can take seconds to compile."""
MAX_CHOICES = 1000
MAX_CHOICE_CHARACTERS = 32 * 1024
FIELD = "structured_outputs"


class OutputKind(StrEnum):
    """The keys of the object, of which exactly one is given."""

    JSON = "json"
    """A JSON schema, as an object or as its text."""
    JSON_OBJECT = "json_object"
    """`true`: any JSON object."""
    REGEX = "regex"
    """A regular expression that the whole text matches, without look-around or back-references."""
    CHOICE = "choice"
    """A list of strings, of which the text is one."""
    GRAMMAR = "grammar"
    """A context-free grammar in Lark's notation, whose first rule is `start`."""

    @property
    def path(self) -> str:
        """Name of the field in errors."""
        return f"{FIELD}.{self.value}"


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """The form of a text.

    Args:
        kind: how it is described.
        source: the schema's JSON text, the regular expression, the grammar, or the choices; empty for
            `JSON_OBJECT`.

    """

    kind: OutputKind
    source: str | tuple[str, ...] = ""

    def to_json_object(self) -> dict[str, Any]:
        """The object that `parse_structured_outputs` reads."""
        match self.kind, self.source:
            case OutputKind.JSON_OBJECT, _:
                return {self.kind.value: True}
            case OutputKind.CHOICE, choices:
                return {self.kind.value: list(choices)}
        return {self.kind.value: self.source}


def parse_structured_outputs(raw: object) -> StructuredOutputs:
    """Decode the object. Keys that are null are as good as absent.

    Raises:
        RequestError: no object, an unknown key, none or several of the known ones, a value of a wrong type or
            too large; it names the key.

    """
    if not isinstance(raw, Mapping):
        raise invalid(FIELD, "must be an object")
    known = ", ".join(OutputKind)
    for name in raw:
        if name not in list(OutputKind):
            raise invalid(f"{FIELD}.{name}"[:80], f"is not a key of {FIELD}; known: {known}")
    given = [kind for kind in OutputKind if raw.get(kind) is not None]
    if len(given) != 1:
        raise invalid(FIELD, f"needs exactly one of {known} (got {' and '.join(given) or 'none'})")
    kind = given[0]
    return StructuredOutputs(kind, _READERS[kind](raw[kind]))


def _schema(value: object) -> str:
    path = OutputKind.JSON.path
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        if not isinstance(schema, Mapping):
            raise invalid(path, "must be a JSON schema: an object, or the text of one")
        text = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except json.JSONDecodeError as error:
        raise invalid(path, f"is not JSON: {error.msg} (line {error.lineno})") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise invalid(path, "holds a number that JSON has no way to write") from None
    _check_size(path, text, MAX_SCHEMA_CHARACTERS)
    # A schema cannot be deeper than its brackets are many.
    if text.count("{") + text.count("[") > MAX_SCHEMA_DEPTH and _depth(schema) > MAX_SCHEMA_DEPTH:
        raise _too_deep()
    return text


def _too_deep() -> RequestError:
    return invalid(OutputKind.JSON.path, f"must be nested at most {MAX_SCHEMA_DEPTH} deep")


def _depth(value: object) -> int:
    level, depth = [value], 0
    while level := [v for v in level if isinstance(v, Mapping | list | tuple)]:
        depth += 1
        level = [child for v in level for child in (v.values() if isinstance(v, Mapping) else v)]
    return depth


def _json_object(value: object) -> str:
    if value is not True:
        raise invalid(OutputKind.JSON_OBJECT.path, "must be true, or left out")
    return ""


def _text(kind: OutputKind, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(kind.path, "must be a non-empty string")
    _check_size(kind.path, value, MAX_GRAMMAR_CHARACTERS)
    _check_unicode(kind.path, value)
    return value


def _choices(value: object) -> tuple[str, ...]:
    path = OutputKind.CHOICE.path
    if not isinstance(value, list | tuple) or not value or not all(isinstance(v, str) and v for v in value):
        raise invalid(path, "must be a list of non-empty strings, and not be empty itself")
    if len(value) > MAX_CHOICES:
        raise invalid(path, f"takes at most {MAX_CHOICES} strings, not {len(value)}")
    joined = "".join(value)
    _check_size(path, joined, MAX_CHOICE_CHARACTERS)
    _check_unicode(path, joined)
    return tuple(value)


def _check_size(path: str, text: str, limit: int) -> None:
    if len(text) > limit:
        raise invalid(path, f"must have at most {limit} characters, not {len(text)}")


def _check_unicode(path: str, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid(path, "holds half of a surrogate pair; send whole characters") from None


_READERS: Mapping[OutputKind, Callable[[object], str | tuple[str, ...]]] = {
    OutputKind.JSON: _schema,
    OutputKind.JSON_OBJECT: _json_object,
    OutputKind.REGEX: lambda value: _text(OutputKind.REGEX, value),
    OutputKind.CHOICE: _choices,
    OutputKind.GRAMMAR: lambda value: _text(OutputKind.GRAMMAR, value),
}
