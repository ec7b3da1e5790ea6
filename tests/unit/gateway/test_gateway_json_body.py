from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uzu_gateway.errors import GatewayError
from uzu_gateway.schemas.json_body import MAX_DEPTH, parse_object

REFUSED = {
    "empty": (b"", "empty"),
    "blank": (b" \n", "empty"),
    "no JSON": (b"{", "line 1, column 2"),
    "a list": (b"[1]", "must be a JSON object"),
    "a number": (b"1", "must be a JSON object"),
    "NaN": (b'{"a": NaN}', "NaN"),
    "Infinity": (b'{"a": -Infinity}', "-Infinity"),
    "too large": (b'{"a": 1e999}', "1e999"),
    "too many digits": (b'{"a": ' + b"1" * 5000 + b"}", "too many digits"),
    "twice": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"),
    "broken UTF-8": (b'{"a": "\xff"}', "byte 7"),
    "a raw surrogate": (b'{"a": "\xed\xa0\x80"}', "UTF-8"),
    "an escaped surrogate": (b'{"a": ["x\\ud800"]}', "surrogate"),
    "a surrogate in a key": (b'{"a": {"\\uDFFF": 1}}', "surrogate"),
    "an order mark": (b'\xef\xbb\xbf{"a": 1}', "BOM"),
    "deep lists": (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "levels"),
    "deep objects": (b'{"a": ' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "levels"),
    "absurdly deep": (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "levels"),
    "a control character": (b'{"a": "\x00"}', "control character"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str) -> None:
    body, reason = REFUSED[name]
    with pytest.raises(GatewayError, match=reason) as raised:
        parse_object(body)
    assert raised.value.code == "invalid_json"
    assert len(raised.value.message) < 200
    json.dumps(raised.value.body()).encode()


def test_a_surrogate_is_blamed_on_its_field() -> None:
    with pytest.raises(GatewayError) as raised:
        parse_object(b'{"model": "m", "stop": ["ok", "\\ud83d"]}')
    assert raised.value.param == "stop"


def test_a_surrogate_pair_is_text() -> None:
    assert parse_object(rb'{"a": "\ud83d\ude00"}') == {"a": "😀"}


def test_accepts_the_deepest_allowed() -> None:
    body = b'{"a": ' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert "a" in parse_object(body)


def test_many_brackets_are_not_depth() -> None:
    assert len(parse_object(b'{"a": [' + b"[]," * 1000 + b"[]]}")["a"]) == 1001


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_reads_what_json_writes(value: dict[str, object]) -> None:
    assert parse_object(json.dumps(value).encode()) == value
    assert parse_object(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary())
def test_answers_any_bytes(body: bytes) -> None:
    with contextlib.suppress(GatewayError):
        assert isinstance(parse_object(body), dict)
