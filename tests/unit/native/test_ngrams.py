import pytest
from hypothesis import given
from hypothesis import strategies as st

from uzu_native.ngrams import INDEX_STRIDE, LONGEST_MATCH, NO_MATCH, Match, NgramIndex


@pytest.mark.parametrize(
    ("tokens", "most", "guess", "length"),
    [
        ([1, 2, 3, 4, 5, 9, 2, 3, 8, 1, 2, 3], 3, [4, 5, 9], 3),
        ([7, 2, 3, 8, 1, 2, 3], 3, [8, 1, 2], 2),
        ([4, 3, 8, 5, 3], 1, [8], 1),
        ([5, 5, 5, 5, 5, 5], 2, [5], 5),
        ([*range(20), *range(10)], 4, [10, 11, 12, 13], LONGEST_MATCH),
        ([1, 2, 3], 3, [], 0),
        ([], 3, [], 0),
    ],
    ids=["longest", "latest", "one token", "repeats", "a long match", "none", "empty"],
)
def test_a_guess_is_what_followed_the_longest_match(tokens, most, guess, length):
    assert NgramIndex().continuation(tokens, most) == Match(guess, length)


def test_what_followed_most_often_wins_over_what_followed_last():
    tokens = [1, 2, 7, 8, 30, 1, 2, 7, 9, 31, 1, 2, 7, 8, 32, 1, 2, 5, 6, 33, 1, 2]
    assert NgramIndex().continuation(tokens, 2).token_ids == [7, 8]
    # One of each: the latest.
    assert NgramIndex().continuation([1, 2, 7, 30, 1, 2, 8, 31, 1, 2], 1).token_ids == [8]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 6))
def test_guesses_grow_with_the_text_as_from_scratch(tokens, most):
    index = NgramIndex()
    for length in range(len(tokens) + 1):
        known = tokens[:length]
        grown = index.continuation(known, most)
        assert grown == NgramIndex().continuation(known, most)
        assert len(grown.token_ids) <= most
        seen_before = bool(known) and known[-1] in known[:-1]
        assert bool(grown.token_ids) == seen_before
        if grown.token_ids:
            # Each token of the guess has been seen after all that matched and was guessed before it.
            tail = known[length - grown.length :] + grown.token_ids
            assert any(known[i : i + len(tail)] == tail for i in range(length))


def test_a_long_prompt_is_indexed_bit_by_bit():
    tokens = [1, 2, 3] * INDEX_STRIDE
    index = NgramIndex()
    guesses = [index.continuation(tokens, 2) for _ in range(4)]
    assert guesses[:2] == [NO_MATCH, NO_MATCH]
    assert guesses[2].token_ids == [1, 2]
