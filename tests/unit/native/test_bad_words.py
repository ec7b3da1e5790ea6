import numpy as np
import pytest
from engine_fixtures import Oracle, Recorder, make_engine, make_request, prompt, run
from hypothesis import given
from hypothesis import strategies as st

from uzu_contract.errors import ErrorCode, RequestError
from uzu_native.bad_words import BadWords, encode_words
from uzu_native.executor import FakeExecutor

words = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)


@given(st.lists(words, max_size=6), st.lists(st.integers(0, 4), max_size=9))
def test_what_would_complete_a_word_is_forbidden_and_nothing_else(sequences, latest):
    row = np.zeros(5, np.float32)
    BadWords(sequences).forbid(row, latest)
    for token in range(5):
        text = [*latest, token]
        completes = any(tuple(text[-len(s) :]) == s for s in sequences)
        assert (row[token] == -np.inf) == completes


def test_words_are_encoded_with_and_without_a_space():
    asked = []

    def encode(text):
        asked.append(text)
        return list(text.encode())

    assert encode_words(["ab"], encode, 256) == [(97, 98), (32, 97, 98)]
    assert encode_words([" c", "c"], encode, 256) == [(32, 99), (99,)]
    assert encode_words([" "], encode, 256) == [(32,)]
    assert encode_words(["ab", "z"], encode, 100) == [(97, 98), (32, 97, 98)]
    assert encode_words([], encode, 256) == []
    assert asked[:3] == ["ab", "ab", " ab"]


def test_a_word_without_tokens_is_named():
    with pytest.raises(RequestError) as caught:
        make_engine().submit(make_request(bad_words=("5", "\t")), prompt(5), Recorder())
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_PARAMETER, "bad_words")


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "seeded"])
def test_only_the_end_of_a_word_is_kept_away(sampling):
    free = run(make_engine(), (prompt(5), make_request(**sampling)))[0].token_ids
    for at in range(len(free) - 2):
        word = free[at : at + 3]
        request = make_request(bad_words=(" ".join(map(str, word)),), **sampling)
        (recorder,) = run(make_engine(), (prompt(5), request))
        assert recorder.token_ids[: at + 2] == free[: at + 2]
        assert recorder.token_ids[at + 2] != free[at + 2]
        speculated = make_engine(FakeExecutor(256), speculator=Oracle([prompt(5) + recorder.token_ids], 4))
        assert run(speculated, (prompt(5), request))[0].token_ids == recorder.token_ids
        assert speculated.metrics.accepted_tokens.total() > 0


def test_words_do_not_begin_in_the_prompt():
    free = run(make_engine(), (prompt(5), make_request()))[0].token_ids
    request = make_request(bad_words=(f"{prompt(5)[-1]} {free[0]}",))
    assert run(make_engine(), (prompt(5), request))[0].token_ids == free
