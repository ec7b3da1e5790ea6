import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uzu_native.ranking import descending, highest

values = st.lists(st.sampled_from([-np.inf, -3.5, -0.0, 0.0, 1e-40, 2.0, 7.25]) | st.floats(-9, 9, width=32))


@given(values, st.sampled_from([1, 7, 90]), st.integers(0, 70))
def test_the_highest_in_order_and_of_equals_the_first(pattern, times, count):
    row = np.array(pattern * times, np.float32)
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    assert descending(row).tolist() == order
    assert highest(row, count).tolist() == order[:count]


@pytest.mark.parametrize("size", [49_152, 50_001])
@pytest.mark.parametrize("count", [1, 20, 50, 1000, 49_000, 60_000])
def test_the_highest_of_a_vocabulary(size, count):
    row = np.random.default_rng(size).normal(0, 3, size).astype(np.float32).round(2)
    assert highest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()


def test_values_that_are_no_numbers_do_not_hang():
    assert len(highest(np.full(2000, np.nan, np.float32), 3)) == 3
