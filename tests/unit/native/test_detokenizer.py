from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from text_fixtures import KINDS, byte_level, llama_metaspace, texts

from uzu_native.detokenizer import Detokenizer, StopMatcher, TokenSpeller
from uzu_native.tokenizer import Tokenizer


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def tokenizer(request, tmp_path_factory):
    return Tokenizer(request.param().write(tmp_path_factory.mktemp("tokenizer")))


def stream(tokenizer, token_ids, stop=()):
    detokenizer = Detokenizer(tokenizer, stop)
    parts = [detokenizer.push(i) for i in token_ids]
    return [*parts, detokenizer.finish()], detokenizer.stop_reason


def reference_cut(text, stops):
    starts = {stop: text.find(stop) for stop in stops if stop in text}
    if not starts:
        return text, None
    first = min(starts.values())
    return text[:first], min((s for s, at in starts.items() if at == first), key=len)


@settings(deadline=None)
@given(text=texts)
@example(text="👩‍👩‍👧 渦渦😀")
@example(text=" leading")
def test_stream_of_real_text(tokenizer, text):
    token_ids = tokenizer.encode_text(text)
    parts, _ = stream(tokenizer, token_ids)
    assert "".join(parts) == tokenizer.decode(token_ids)
    if "\ufffd" not in text and tokenizer.is_byte_level:
        assert "\ufffd" not in "".join(parts)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_stream_of_any_tokens_equals_decoding_them_together(tokenizer, data):
    ids = st.integers(0, tokenizer.vocab_size + 3)
    if tokenizer.byte_token_ids:
        ids |= st.sampled_from(sorted(tokenizer.byte_token_ids))
    token_ids = data.draw(st.lists(ids, max_size=30))
    parts, _ = stream(tokenizer, token_ids)
    assert "".join(parts) == tokenizer.decode(token_ids)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_stream_with_stops_equals_the_text_before_the_first(tokenizer, data):
    text = data.draw(texts)
    token_ids = tokenizer.encode_text(text)
    whole = tokenizer.decode(token_ids)
    spans = st.tuples(st.integers(0, max(len(whole) - 1, 0)), st.integers(1, 5))
    inside = spans.map(lambda span: whole[span[0] : span[0] + span[1]] or "x")
    stops = data.draw(st.lists(inside | st.text(min_size=1, max_size=3), min_size=1, max_size=4))
    parts, reason = stream(tokenizer, token_ids, stops)
    assert ("".join(parts), reason) == reference_cut(whole, stops)


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 30)),
)
@example(text="abcabd", stops=["abd"], cuts=[])
@example(text="abbab", stops=["bb", "abbaa"], cuts=[3])
@example(text="ccabbc", stops=["bb", "abbaa"], cuts=[5])
def test_the_cut_does_not_depend_on_how_the_text_arrives(text, stops, cuts):
    matcher = StopMatcher(stops)
    borders = [0, *sorted(c for c in cuts if c < len(text)), len(text)]
    out = ""
    for begin, end in pairwise(borders):
        out += matcher.push(text[begin:end])
        assert text.startswith(out)
    out += matcher.flush()
    assert (out, matcher.matched) == reference_cut(text, stops)


@given(text=st.text("ab", max_size=30), stop=st.text("ab", min_size=1, max_size=5))
def test_only_what_could_be_a_stop_is_held(text, stop):
    matcher = StopMatcher([stop])
    out = ""
    for i, character in enumerate(text):
        out += matcher.push(character)
        if matcher.matched is not None:
            break
        held = text[len(out) : i + 1]
        assert stop.startswith(held)


def byte_ids(tokenizer, text):
    alphabet = {tokenizer.token_text(i): i for i in range(tokenizer.vocab_size)}
    return [alphabet[c] for c in text]


def test_a_character_comes_whole(tmp_path):
    tokenizer = Tokenizer(byte_level().write(tmp_path))
    euro = byte_ids(tokenizer, "âĤ¬")  # its three bytes, as the vocabulary writes them
    parts, _ = stream(tokenizer, euro)
    assert parts == ["", "", "€", ""]
    parts, _ = stream(tokenizer, euro[:2])
    assert parts == ["", "", "\ufffd"]


def test_byte_fallback_characters_come_whole(tmp_path):
    tokenizer = Tokenizer(llama_metaspace().write(tmp_path))
    token_ids = tokenizer.encode_text("渦 of")
    parts, _ = stream(tokenizer, token_ids)
    assert "".join(parts) == "渦 of"
    assert "渦" not in "".join(parts[:3])
    assert not any("\ufffd" in part for part in parts)


def test_special_tokens_have_no_text_and_do_not_split_characters(tmp_path):
    tokenizer = Tokenizer(byte_level().write(tmp_path))
    first, *rest = byte_ids(tokenizer, "âĤ¬")
    assert "".join(stream(tokenizer, [1, first, 2, *rest, 0])[0]) == "€"


def test_a_stop_as_the_first_text(tmp_path):
    tokenizer = Tokenizer(byte_level().write(tmp_path))
    parts, reason = stream(tokenizer, tokenizer.encode_text("capital of"), ["capital"])
    assert ("".join(parts), reason) == ("", "capital")


def test_a_stop_over_token_borders_leaks_nothing(tmp_path):
    tokenizer = Tokenizer(byte_level().write(tmp_path))
    token_ids = byte_ids(tokenizer, "abXYZcd")
    parts, reason = stream(tokenizer, token_ids, ["XYZ", "ZZ"])
    assert (parts, reason) == (["a", "b", "", "", "", "", "", ""], "XYZ")
    parts, reason = stream(tokenizer, byte_ids(tokenizer, "abXYc"), ["XYZ"])
    assert (parts, reason) == (["a", "b", "", "", "XYc", ""], None)
    parts, reason = stream(tokenizer, byte_ids(tokenizer, "abXY"), ["XYZ"])
    assert (parts, reason) == (["a", "b", "", "", "XY"], None)


def test_nothing_follows_the_end(tmp_path):
    tokenizer = Tokenizer(byte_level().write(tmp_path))
    a = byte_ids(tokenizer, "a")[0]
    detokenizer = Detokenizer(tokenizer, ["a"])
    assert detokenizer.push(a) == ""
    assert (detokenizer.stop_reason, detokenizer.push(a), detokenizer.finish()) == ("a", "", "")
    detokenizer = Detokenizer(tokenizer)
    assert (detokenizer.push(a), detokenizer.finish(), detokenizer.push(a)) == ("a", "", "")


def test_a_token_costs_the_same_however_long_the_text(tmp_path):
    """Counted in decoded tokens, not in seconds: no window of the stream grows."""
    decoded = []

    class Counting(Tokenizer):
        def decode(self, token_ids, skip_special_tokens=True):
            decoded.append(len(token_ids))
            return super().decode(token_ids, skip_special_tokens)

    tokenizer = Counting(llama_metaspace().write(tmp_path))
    parts, _ = stream(tokenizer, tokenizer.encode_text("the capital of France is Paris 渦 " * 100))
    assert "".join(parts) == "the capital of France is Paris 渦 " * 100
    assert max(decoded) <= 5
    assert len(decoded) <= 2 * len(parts)


@pytest.mark.parametrize("text", ["a cat", "Grüße, 世界 👩‍👩‍👧!"])
def test_tokens_are_spelled_as_they_stand_in_a_text(tokenizer, text):
    speller = TokenSpeller(tokenizer)
    ids = tokenizer.encode_text(text)
    for _ in range(2):
        spelled = b"".join(speller.token_bytes(i) for i in ids if i not in tokenizer.special_ids)
        assert spelled.decode().strip() == tokenizer.decode(ids).strip()
    assert speller.token_bytes(10**6) == b""
    for token_id in tokenizer.special_ids:
        assert speller.token_bytes(token_id).decode() == tokenizer.token_text(token_id)
