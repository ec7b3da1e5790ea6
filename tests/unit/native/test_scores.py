import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from uzu_native.scores import LEAST_LOGPROB, score

rows = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40).map(
    lambda r: np.array([r], np.float32)
)


@given(rows, st.data())
def test_scores_are_those_of_a_softmax(row, data):
    token = data.draw(st.integers(0, row.shape[1] - 1))
    count = data.draw(st.integers(0, 20))
    (scores,) = score(row, [token], count)
    exact = row[0].astype(np.float64)
    exact -= exact.max()
    exact -= math.log(np.exp(exact).sum())
    order = sorted(range(len(exact)), key=lambda t: (-row[0][t], t))
    assert [t for t, _, _ in scores.top] == order[:count]
    for t, logprob, rank in (scores.chosen, *scores.top):
        assert math.isclose(logprob, exact[t], abs_tol=1e-5)
        assert rank == 1 + sum(row[0] > row[0][t])
    assert scores.chosen[0] == token
    assert scores.chosen in score(row, [token], len(exact))[0].top


def test_what_json_has_no_number_for_is_the_least():
    scores = score(np.array([[0, -np.inf], [np.nan, 0]], np.float32), [1, 1], 2)
    assert scores[0].chosen[1] == LEAST_LOGPROB
    assert all(math.isfinite(logprob) for s in scores for _, logprob, _ in (s.chosen, *s.top))


def test_rows_after_the_tokens_are_left_alone():
    assert len(score(np.zeros((3, 4), np.float32), [0], 1)) == 1
