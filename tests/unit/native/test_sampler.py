import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uzu_contract.sampling import SamplingParams
from uzu_native import sampler
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


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 4, "top_p": 0.8},
        {"typical_p": 0.6},
    ],
)
def test_frequencies_follow_the_filtered_distribution(sampling):
    row = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.07, 0.03], np.float32))
    expected = np.exp(row / sampling.get("temperature", 1.0))
    expected /= expected.sum()
    if "top_k" in sampling:
        expected[sampling["top_k"] :] = 0
        expected /= expected.sum()
    if "top_p" in sampling:
        keep = int((np.cumsum(expected) >= sampling["top_p"]).argmax()) + 1
        expected[keep:] = 0
    if "min_p" in sampling:
        expected[expected < sampling["min_p"] * expected.max()] = 0
    if "typical_p" in sampling:
        distance = np.abs(-np.log(expected) + (expected * np.log(expected)).sum())
        near = np.argsort(distance)
        keep = int((np.cumsum(expected[near]) >= sampling["typical_p"]).argmax()) + 1
        expected[near[keep:]] = 0
    expected /= expected.sum()
    count = 6000
    chosen = [sample(row[None], [draw(position=i, **sampling)])[0] for i in range(count)]
    observed = np.bincount(chosen, minlength=6) / count
    assert set(np.flatnonzero(observed)) == set(np.flatnonzero(expected))
    # Five standard deviations of a binomial share.
    assert np.all(np.abs(observed - expected) <= 5 * np.sqrt(expected * (1 - expected) / count) + 1e-9)


def chosen_by_sorting(row, seed, sampling):
    """The definition: sort all tokens, filter, add up, and see where the uniform number falls."""
    order = np.argsort(-row, kind="stable")[: sampling.top_k or None]
    weights = np.exp((row[order] - row.max()) / np.float32(sampling.temperature), dtype=np.float64)
    shares = weights / weights.sum()
    if sampling.top_p < 1:
        keep = int((np.cumsum(shares) >= sampling.top_p).argmax()) + 1
        order, shares = order[:keep], shares[:keep] / shares[:keep].sum()
    if sampling.typical_p < 1:
        information = -np.log(np.maximum(shares, np.finfo(np.float64).tiny))
        near = np.argsort(np.abs(information - (shares * information).sum()), kind="stable")
        keep = int((np.cumsum(shares[near]) >= sampling.typical_p).argmax()) + 1
        order, shares = order[near[:keep]], shares[near[:keep]] / shares[near[:keep]].sum()
    # What is left is added up in the vocabulary's order.
    by_id = np.argsort(order)
    order, shares = order[by_id], shares[by_id]
    ends = np.cumsum(shares)
    number = sampler.uniform(seed, 0)
    index = min(int(np.searchsorted(ends, number, side="right")), len(order) - 1)
    distances = np.abs(ends - number)
    return int(order[index]), float(distances.min())


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 2**32),
    st.floats(0.05, 5),
    st.sampled_from([1.0, 0.3, 0.9, 0.99]),
    st.sampled_from([0, 1, 5, 60, 399]),
    st.sampled_from([1.0, 0.2, 0.95]),
    st.floats(0.1, 12),
)
def test_slices_and_segments_choose_what_sorting_everything_chooses(
    seed, temperature, top_p, top_k, typical_p, spread
):
    row = np.random.default_rng(seed).normal(0, spread, 700).astype(np.float32)
    sampling = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, typical_p=typical_p)
    expected, margin = chosen_by_sorting(row, seed, sampling)
    if margin > 1e-5:  # where rounding cannot decide
        assert sample(row[None], [Draw(sampling, seed, 0)])[0] == expected


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


def test_a_whole_vocabulary_does_not_outvote_one_certain_token():
    row = np.full((1, 49_152), -20.0, np.float32)
    row[0, 7] = 0
    chosen = [sample(row, [draw(position=p)])[0] for p in range(1500)]
    # The chance of any other token is exp(-20) for each, 1e-4 together.
    assert sum(token != 7 for token in chosen) <= 2


def test_what_cannot_be_is_never_drawn():
    row = np.full((1, 1000), -np.inf, np.float32)
    row[0, [3, 300, 999]] = 1.0
    chosen = {sample(row, [draw(position=p)])[0] for p in range(200)}
    assert chosen == {3, 300, 999}
    assert sample(row, [draw(position=p, top_k=500) for p in range(1)])[0] in chosen
    assert sample(row, [draw(position=0, typical_p=0.9)])[0] in chosen


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
