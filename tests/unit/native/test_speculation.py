import pytest
from engine_fixtures import END_TOKEN, Oracle, make_engine, make_request, prompt, run
from hypothesis import given
from hypothesis import strategies as st

from uzu_native.executor import FakeExecutor
from uzu_native.speculation import Candidate, DraftHistory, Speculator, StepCosts

CHEAP = StepCosts(base_s=0.007, row_s=0.0006)


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 1.1, "seed": 5, "top_p": 0.9, "typical_p": 0.8},
        {"frequency_penalty": 1.5, "repetition_penalty": 1.3},
        {"temperature": 0.9, "seed": 5, "presence_penalty": 1.5, "logit_bias": ((3, 2.0),)},
    ],
    ids=["greedy", "seeded", "filtered", "penalized", "seeded and penalized"],
)
@pytest.mark.parametrize("blocks", [256, 20], ids=["much memory", "preempting"])
def test_same_tokens_speculated_or_not(sampling, blocks):
    jobs = [(prompt(6 + i, i), make_request(max_tokens=20 + i, **sampling)) for i in range(6)]
    plain = run(make_engine(FakeExecutor(256)), *jobs)
    texts = [p + r.token_ids for (p, _), r in zip(jobs, plain, strict=True)]
    engine = make_engine(FakeExecutor(blocks), speculator=Oracle(texts, wrong_every=4))
    speculated = run(engine, *jobs)
    assert [r.token_ids for r in speculated] == [r.token_ids for r in plain]
    assert [r.text for r in speculated] == [r.text for r in plain]
    assert 0 < engine.metrics.accepted_tokens < engine.metrics.drafted_tokens
    assert engine.metrics.generated_tokens == sum(len(r.token_ids) for r in plain)
    assert (engine.metrics.preemptions > 0) == (blocks == 20)
    assert sum(r.chunks[-1].perf_metrics["accepted"] for r in speculated) == engine.metrics.accepted_tokens


def test_an_end_inside_a_guess_ends_the_text_there():
    reference = run(make_engine(), (prompt(5), make_request(max_tokens=190)))[0].token_ids
    at = reference.index(END_TOKEN)
    stop = f"<{reference[at - 3]}>"
    first = next(i for i, t in enumerate(reference) if f"<{t}>" == stop)
    for changes, length in (({"ignore_eos": False}, at + 1), ({"stop": (stop,)}, first + 1)):
        request = make_request(max_tokens=190, **changes)
        engine = make_engine(speculator=Oracle([prompt(5) + reference], wrong_every=1000))
        (recorder,) = run(engine, (prompt(5), request))
        assert engine.metrics.accepted_tokens > 0
        assert recorder.token_ids == reference[:length]
        assert recorder.text == run(make_engine(), (prompt(5), request))[0].text


def test_a_guess_is_what_followed_the_longest_match():
    history = DraftHistory()
    assert history.guess([1, 2, 3, 4, 5, 9, 2, 3, 8, 1, 2, 3], most=3) == [4, 5, 9]
    assert DraftHistory().guess([7, 2, 3, 8, 1, 2, 3], most=3) == [8, 1, 2]
    assert DraftHistory().guess([1, 2, 3], most=3) == []
    assert DraftHistory().guess([], most=3) == []
    assert DraftHistory().guess([5, 5, 5, 5, 5, 5], most=2) == [5]


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 6))
def test_guesses_grow_with_the_text_as_from_scratch(tokens, most):
    history = DraftHistory()
    for length in range(len(tokens) + 1):
        grown = history.guess(tokens[:length], most)
        assert grown == DraftHistory().guess(tokens[:length], most)
        assert len(grown) <= most
        if grown:
            tail = tokens[length - 2 : length]
            places = [i for i in range(2, length) if tokens[i - 2 : i] == tail]
            assert grown in [tokens[i : min(i + most, length)] for i in places]


def test_a_long_prompt_is_indexed_bit_by_bit():
    tokens = [1, 2, 3] * 700
    history = DraftHistory()
    guesses = [history.guess(tokens, 2) for _ in range(6)]
    assert guesses[0] == []
    assert guesses[-1] == [1, 2]


def candidate(tokens=(1, 2, 3, 1, 2), accepted=1.0, rejected=1.0, room=100):
    return Candidate(list(tokens), DraftHistory(accepted=accepted, rejected=rejected), room)


def test_guesses_stop_where_a_row_costs_more_than_it_earns():
    speculator = Speculator(CHEAP, most=8)
    long = [*range(30), *range(10)]
    (sure,) = speculator.draft([candidate(long, accepted=50)])
    assert len(sure) == 8
    (doubtful,) = speculator.draft([candidate(long, accepted=1, rejected=1)])
    assert 1 <= len(doubtful) < 8
    assert speculator.draft([candidate(long, accepted=0.05, rejected=2)]) == [[]]
    crowd = speculator.draft([candidate(long) for _ in range(64)])
    assert not any(crowd)
    assert speculator.draft([candidate(long, accepted=50, room=2)]) == [[10, 11]]
    assert speculator.draft([candidate(long, accepted=50, room=0)]) == [[]]


def test_the_likeliest_guesses_get_the_rows():
    long = [*range(30), *range(10)]
    weak, strong = Speculator(CHEAP, most=8).draft(
        [candidate(long, accepted=1, rejected=3), candidate(long, accepted=30)]
    )
    assert len(strong) > len(weak)


def test_who_seems_hopeless_is_tried_again_now_and_then():
    speculator = Speculator(CHEAP, most=8, probe_interval=5)
    hopeless = candidate([*range(30), *range(10)], accepted=0.0, rejected=5.0)
    counts = [len(speculator.draft([hopeless])[0]) for _ in range(15)]
    assert counts == [0, 0, 0, 0, 1] * 3


def test_records_follow_recent_luck():
    history = DraftHistory()
    for _ in range(20):
        history.record(4, 4)
    assert history.acceptance > 0.95
    for _ in range(20):
        history.record(1, 0)
    assert history.acceptance < 0.1
    assert (history.drafted_total, history.accepted_total) == (100, 80)


def test_costs_are_a_line_that_never_falls():
    costs = StepCosts.fitted([(1, 0.0076), (2, 0.0082), (4, 0.0094), (8, 0.0118)])
    assert costs.base_s == pytest.approx(0.007)
    assert costs.row_s == pytest.approx(0.0006)
    assert 0 < costs.marginal_share(1) < costs.marginal_share(8) < 1
    assert StepCosts.fitted([(1, 0.010), (8, 0.009)]).marginal_share(4) == 0
    disturbed = StepCosts.fitted([(1, 0.010), (8, 0.900)])
    assert disturbed.base_s >= 0
    assert disturbed.marginal_share(1) < 0.5
    assert StepCosts.fitted([(1, 0.01)]).row_s == 0
