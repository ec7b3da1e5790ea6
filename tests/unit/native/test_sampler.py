import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from uzu_contract.sampling import SamplingParams
from uzu_native import sampler
from uzu_native.chance import CountedNumbers, pick
from uzu_native.filters import candidates
from uzu_native.penalties import LogitAdjustment
from uzu_native.sampler import Draw


def sample(rows, draws):
    """One token for each draw."""
    chosen = sampler.sample(rows, draws)
    assert all(len(tokens) == 1 for tokens in chosen)
    return [tokens[0] for tokens in chosen]


def logits(*rows):
    return np.array(rows, np.float32)


def draw(position=0, seed=1, banned=(), draft=(), **sampling):
    return Draw(SamplingParams(**sampling), seed, position, draft, banned, 10**9 if banned else 0)


def test_greedy_takes_the_first_of_the_highest():
    rows = logits([0, 3, 3, 1], [5, 0, 0, 0])
    assert sample(rows, [draw(temperature=0.0), draw(temperature=0.0)]) == [1, 0]
    assert sample(rows, [draw(temperature=0.0, banned=(1,)), draw(top_k=1)]) == [2, 0]
    assert rows[0, 1] == 3


def test_a_draw_depends_on_seed_and_position_only():
    row = np.random.default_rng(0).normal(0, 2, 500).astype(np.float32)
    draws = [draw(position=p, seed=s) for p in range(8) for s in (1, 2)]
    together = sample(np.tile(row, (16, 1)), draws)
    alone = [sample(row[None], [d])[0] for d in draws]
    assert together == alone
    assert len(set(together)) > 8


def kept_by_hand(row, sampling):
    """Ids and float64 probabilities after the filters, each by sorting the whole row."""
    shares = np.exp((row.astype(np.float64) - row.max()) / sampling.temperature)
    ids = np.argsort(-row, kind="stable") if sampling.top_k else np.arange(len(row))
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    if sampling.top_p < 1:
        ids = ids[np.argsort(-shares[ids], kind="stable")]
        ids = ids[: reached_at(shares[ids], sampling.top_p)]
    if sampling.min_p > 0:
        ids = ids[shares[ids] >= sampling.min_p]
    if sampling.typical_p < 1:
        left = shares[ids] / shares[ids].sum()
        information = -np.log(np.maximum(left, 1e-300))
        ids = ids[np.argsort(np.abs(information - (left * information).sum()), kind="stable")]
        ids = ids[: reached_at(shares[ids], sampling.typical_p)]
    return ids, shares[ids] / shares[ids].sum()


def reached_at(shares, share):
    sums = np.cumsum(shares)
    return int(np.searchsorted(sums, share * sums[-1])) + 1


FILTERS = [
    {},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"typical_p": 0.6},
    {"top_k": 4, "top_p": 0.8},
    {"top_k": 5, "typical_p": 0.7, "temperature": 1.7},
    {"top_p": 0.9, "min_p": 0.1, "temperature": 0.8},
]


def chi_square_limit(degrees):
    """What a chi-square value passes once in 30,000 times (E. Wilson and M. Hilferty's approximation)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 4 * math.sqrt(spread)) ** 3


@pytest.mark.parametrize("sampling", FILTERS)
@pytest.mark.parametrize("vocabulary", [6, 1300], ids=["small", "of several segments"])
def test_frequencies_follow_the_filtered_distribution(sampling, vocabulary):
    row = np.full(vocabulary, -np.inf, np.float32)
    places = np.linspace(0, vocabulary - 1, 6).astype(int)
    row[places] = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.07, 0.03], np.float32))
    ids, shares = kept_by_hand(row, SamplingParams(**sampling))
    ids, expected = ids[shares > 0], shares[shares > 0]
    count = 6000
    draws = [draw(position=i, seed=99, **sampling) for i in range(count)]
    observed = np.bincount(sample(np.broadcast_to(row, (count, vocabulary)), draws), minlength=vocabulary)
    assert set(np.flatnonzero(observed)) == set(ids)
    statistic = ((observed[ids] - count * expected) ** 2 / (count * expected)).sum()
    assert statistic < chi_square_limit(max(1, len(ids) - 1))


def test_seeds_are_as_random_as_positions():
    row = np.log(np.full(8, 1 / 8, np.float32))[None]
    chosen = [sample(row, [draw(seed=s)])[0] for s in range(4000)]
    pairs = np.bincount(np.array(chosen[::2]) * 8 + chosen[1::2], minlength=64)
    assert ((pairs - 2000 / 64) ** 2 / (2000 / 64)).sum() < chi_square_limit(63)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([3, 400, 1500]),
    st.floats(0.05, 5),
    st.floats(0.05, 1),
    st.integers(0, 60),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([1.0, 0.5, 0.95]),
    st.floats(0.1, 12),
)
def test_candidates_are_those_of_a_whole_sort(
    seed, size, temperature, top_p, top_k, min_p, typical_p, spread
):
    row = np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)
    sampling = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, typical_p=typical_p
    )
    near = [
        kept_by_hand(row, replace(sampling, **{name: getattr(sampling, name) * (1 + sign * 1e-5)}))[0]
        for name in ("top_p", "min_p", "typical_p")
        for sign in (-1, 1)
        if getattr(sampling, name) != 1
    ]
    ids, shares = kept_by_hand(row, sampling)
    # Where a border falls between two tokens that are all but alike is a matter of rounding.
    assume(all(list(others) == list(ids) for others in near))
    kept = candidates(row, sampling, row.max())
    places = [kept.place(i) for i in range(len(kept.weights))]
    assert sorted(places) == sorted(ids)
    by_hand = dict(zip(ids.tolist(), shares, strict=True))
    ours = kept.weights / kept.weights.sum(dtype=np.float64)
    assert all(
        math.isclose(w, by_hand[p], rel_tol=1e-4, abs_tol=1e-9) for p, w in zip(places, ours, strict=True)
    )


def test_extreme_temperatures_and_logits_stay_finite():
    row = logits([1e4, -1e4, 0.0])
    for temperature in (1e-4, 100.0):
        for sampling in ({}, {"top_p": 0.5}, {"top_k": 2}):
            assert sample(row, [draw(temperature=temperature, **sampling)]) == [0]


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.3}, {"top_k": 5}])
def test_guesses_change_how_many_tokens_come_and_never_which(sampling):
    rows = np.random.default_rng(2).normal(0, 1, (5, 50)).astype(np.float32)
    right = [sample(rows[i : i + 1], [draw(position=3 + i, **sampling)])[0] for i in range(5)]
    for wrong_at in range(5):
        guesses = [t if i != wrong_at else (t + 1) % 50 for i, t in enumerate(right[:4])]
        others = [draw(position=9, **sampling), draw(position=3, draft=tuple(guesses), **sampling)]
        before, chosen = sampler.sample(np.concatenate([rows[4:], rows]), others)
        assert before == sample(rows[4:], others[:1])
        assert chosen == right[: min(wrong_at, 4) + 1]


def test_numbers_are_those_of_philox_in_any_order():
    numbers = CountedNumbers()
    asked = [(seed, position) for seed in (0, 7, 2**64 - 1) for position in (0, 5, 2**31)]
    for seed, position in asked + asked[::-1]:
        bits = np.random.Philox(key=seed, counter=[0, position, 0, 0]).random_raw()
        assert numbers.uniform(seed, position) == (bits >> 11) / 2**53


weight_lists = st.lists(st.sampled_from([0.0, 1e-30, 1e-3, 0.5, 1.0]), min_size=1, max_size=40)


@given(weight_lists.filter(any), st.sampled_from([1, 30, 300]), st.floats(0, 1, exclude_max=True))
def test_picks_invert_the_running_sum(pattern, times, fraction):
    weights = np.array(pattern * times, np.float32)
    sums = np.cumsum(weights, dtype=np.float64)
    for at in (0.0, fraction, 1 - 2.0**-53):
        place = pick(weights, at)
        assert weights[place] > 0
        before = sums[place - 1] if place else 0.0
        slack = 1e-5 * sums[-1]
        assert before - slack <= at * sums[-1] <= sums[place] + slack


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [float("nan")], [float("inf")]])
def test_nothing_is_picked_from_nothing(weights):
    with pytest.raises(ValueError, match="nothing can be drawn"):
        pick(np.array(weights, np.float32), 0.5)


def test_a_hopeless_token_is_hopeless_over_a_whole_vocabulary():
    row = np.full((1, 49_152), -20.0, np.float32)
    row[0, 7] = 0
    chosen = [sample(row, [draw(position=p)])[0] for p in range(1500)]
    # The chance of the others together is 1e-4.
    assert sum(token != 7 for token in chosen) <= 2


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 2}])
@pytest.mark.parametrize("banned", [(), (0,)])
def test_logits_that_are_no_numbers_are_an_error_of_their_row(sampling, banned):
    broken = np.tile(logits([0, 1, 2, 3]), (3, 1))
    broken[1, 2] = np.nan
    first, second, third = sampler.sample(broken, [draw(banned=banned, **sampling)] * 3)
    assert isinstance(second, ValueError)
    assert first == third != second


def test_what_cannot_be_is_never_drawn():
    row = np.full((1, 1000), -np.inf, np.float32)
    row[0, [3, 300, 999]] = 1.0
    for sampling in ({}, {"top_k": 500}, {"typical_p": 0.9}, {"top_p": 0.99}):
        assert {sample(row, [draw(position=p, **sampling)])[0] for p in range(100)} <= {3, 300, 999}


def adjusted_by_hand(row, prompt, generated, sampling):
    """The definitions of vLLM's and OpenAI's documentation, token by token."""
    row = [np.float32(x) for x in row]
    for token, bias in sampling.logit_bias:
        row[token] += np.float32(bias)
    for token in set(prompt) | set(generated):
        factor = np.float32(sampling.repetition_penalty)
        row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
    for token in set(generated):
        frequency = np.float32(sampling.frequency_penalty) * np.float32(generated.count(token))
        row[token] -= frequency + np.float32(sampling.presence_penalty)
    return np.array(row, np.float32)


tokens = st.lists(st.integers(0, 29), max_size=40)
adjusting = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8]),
    presence_penalty=st.sampled_from([0.0, -2.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, 1.3, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.7]),
    logit_bias=st.dictionaries(st.integers(0, 29), st.floats(-100, 100, width=32), max_size=5).map(
        lambda biases: tuple(sorted(biases.items()))
    ),
)


@settings(max_examples=150, deadline=None)
@given(adjusting, tokens, tokens, tokens, st.integers(0, 1000))
def test_penalties_and_biases_are_as_documented(sampling, prompt, earlier, later, seed):
    row = np.random.default_rng(seed).normal(0, 3, 30).astype(np.float32)
    before = row.copy()
    known = [*prompt, *earlier]
    adjustment = LogitAdjustment.of(sampling, known, len(prompt))
    expected = adjusted_by_hand(row, prompt, earlier + later, sampling)
    if adjustment is None:
        assert np.array_equal(expected, row)
        return
    adjustment.apply(row)
    assert np.array_equal(adjustment.apply(row, later), expected)
    known += later
    assert np.array_equal(adjustment.apply(row), expected)
    assert np.array_equal(row, before)
    plain = SamplingParams(temperature=sampling.temperature)
    drawn = Draw(sampling, 3, len(earlier + later), adjustment=adjustment)
    assert sample(row[None], [drawn]) == sample(expected[None], [Draw(plain, 3, len(earlier + later))])


def test_a_guess_sees_the_guesses_before_it():
    sampling = SamplingParams(temperature=0.0, presence_penalty=2.0)
    known = [0, 1]
    rows = np.tile(logits([0, 0, 1, 2, 3]), (3, 1))
    adjustment = LogitAdjustment.of(sampling, known, 1)
    drawn = Draw(sampling, 1, 1, draft=(4, 3), adjustment=adjustment)
    assert sampler.sample(rows, [drawn]) == [[4, 3, 2]]
    assert sampler.sample(rows, [Draw(sampling, 1, 1, draft=(4, 4), adjustment=adjustment)]) == [[4, 3]]
