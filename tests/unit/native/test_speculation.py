import pytest
from engine_fixtures import END_TOKEN, Oracle, make_engine, make_request, prompt, run

from uzu_native.executor import FakeExecutor
from uzu_native.speculation import Candidate, DraftHistory, GuessKind, Record, Speculator
from uzu_native.step_costs import CostSample, StepCosts

CHEAP = StepCosts(base_s=0.007, row_s=0.0006, context_token_s=1e-6)
LONG = (*range(30), *range(10))
"""Its last tokens have been seen before, with eight and more before them."""


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
    assert 0 < engine.metrics.accepted_tokens.total() < engine.metrics.drafted_tokens.total()
    assert engine.metrics.generated_tokens == sum(len(r.token_ids) for r in plain)
    assert (engine.metrics.preemptions > 0) == (blocks == 20)
    assert (
        sum(r.chunks[-1].perf_metrics["accepted"] for r in speculated)
        == engine.metrics.accepted_tokens.total()
    )


def test_an_end_inside_a_guess_ends_the_text_there():
    reference = run(make_engine(), (prompt(5), make_request(max_tokens=190)))[0].token_ids
    at = reference.index(END_TOKEN)
    stop = f"<{reference[at - 3]}>"
    first = next(i for i, t in enumerate(reference) if f"<{t}>" == stop)
    for changes, length in (({"ignore_eos": False}, at + 1), ({"stop": (stop,)}, first + 1)):
        request = make_request(max_tokens=190, **changes)
        engine = make_engine(speculator=Oracle([prompt(5) + reference], wrong_every=1000))
        (recorder,) = run(engine, (prompt(5), request))
        assert engine.metrics.accepted_tokens.total() > 0
        assert recorder.token_ids == reference[:length]
        assert recorder.text == run(make_engine(), (prompt(5), request))[0].text


def candidate(tokens=LONG, accepted=1.0, rejected=1.0, room=100):
    history = DraftHistory()
    for length in history.matches:
        history.matches[length] = Record(accepted, rejected)
    return Candidate(list(tokens), history, room)


def test_guesses_stop_where_a_row_costs_more_than_it_earns():
    speculator = Speculator(CHEAP, most=8)
    (sure,) = speculator.draft([candidate(accepted=50)])
    assert sure == [10, 11, 12, 13, 14, 15, 16, 17]
    (doubtful,) = speculator.draft([candidate(accepted=1, rejected=1)])
    assert 1 <= len(doubtful) < 8
    assert speculator.draft([candidate(accepted=0.05, rejected=2)]) == [[]]
    crowd = speculator.draft([candidate() for _ in range(64)])
    assert not any(crowd)
    assert speculator.draft([candidate(accepted=50, room=2)]) == [[10, 11]]
    assert speculator.draft([candidate(accepted=50, room=0)]) == [[]]
    assert speculator.draft([]) == []


def test_a_row_after_a_long_context_must_earn_more():
    costs = StepCosts(base_s=0.007, row_s=0.0004, context_token_s=1.3e-6)
    speculator = Speculator(costs, most=8)
    (near,) = speculator.draft([candidate()])
    (far,) = speculator.draft([candidate([*[40] * 3000, *LONG])])
    assert len(near) > len(far) > 0
    assert speculator.draft([candidate([*[40] * 3000, *LONG], rejected=3)]) == [[]]
    assert speculator.draft([candidate(rejected=3)]) != [[]]


def test_the_likeliest_guesses_get_the_rows():
    weak, strong = Speculator(CHEAP, most=8).draft(
        [candidate(accepted=1, rejected=3), candidate(accepted=30)]
    )
    assert len(strong) > len(weak)


def test_records_are_kept_by_length_of_match():
    speculator = Speculator(CHEAP, most=8)
    lone = Candidate([1, 2, 3, 4, 9, 5, 3], DraftHistory(), 100)
    (guess,) = speculator.draft([lone])
    assert guess[0] == 4
    assert lone.history.record(len(guess), 0) is GuessKind.NGRAM
    for _ in range(8):
        speculator.draft([lone])
        lone.history.record(1, 0)
    # A match of one token is not believed again; a longer one is.
    assert speculator.draft([lone]) == [[]]
    longer = Candidate([*lone.token_ids, 8, 1, 2, 3], lone.history, 100)
    assert speculator.draft([longer])[0][0] == 4


def test_who_seems_hopeless_is_tried_again_now_and_then():
    speculator = Speculator(CHEAP, most=8, probe_interval=5)
    hopeless = candidate(accepted=0.01, rejected=5.0)
    counts = [len(speculator.draft([hopeless])[0]) for _ in range(15)]
    assert counts == [0, 0, 0, 0, 1] * 3


def test_a_probe_must_be_cheap():
    costs = StepCosts(base_s=0.001, row_s=0.001)
    speculator = Speculator(costs, most=8, probe_interval=5)
    hopeless = candidate(accepted=0.01, rejected=5.0)
    assert not any(speculator.draft([hopeless])[0] for _ in range(15))


def test_records_follow_recent_luck():
    record = Record(1, 1)
    for _ in range(20):
        record.add(4, 4)
    assert record.chance > 0.95
    for _ in range(20):
        record.add(1, 0)
    assert record.chance < 0.15


def test_totals_count_every_guess():
    history = DraftHistory()
    history.record(4, 4)
    history.record(2, 0)
    assert (history.drafted_total, history.accepted_total) == (6, 4)


def near(*pairs):
    return [CostSample(rows, 128, seconds) for rows, seconds in pairs]


def test_costs_are_a_line_that_never_falls():
    costs = StepCosts.fitted(near((1, 0.0076), (2, 0.0082), (4, 0.0094), (8, 0.0118)), 0.0005)
    assert costs.base_s == pytest.approx(0.007)
    assert costs.row_seconds(128) == costs.row_seconds(4000) == pytest.approx(0.0006)
    assert costs.prompt_token_s == 0.0005
    assert StepCosts.fitted(near((1, 0.010), (8, 0.009))).row_s == 0
    disturbed = StepCosts.fitted(near((1, 0.010), (8, 0.900)))
    assert disturbed.base_s >= 0
    assert disturbed.row_s <= 0.0025
    assert StepCosts.fitted(near((1, 0.01))).row_s == 0


def test_costs_grow_with_the_context():
    def true_s(rows, context):
        return 0.006 + rows * (0.0004 + context * 1.25e-6)

    samples = [
        CostSample(rows, context, true_s(rows, context)) for context in (128, 640) for rows in (1, 2, 8)
    ]
    costs = StepCosts.fitted(samples)
    assert costs.base_s == pytest.approx(0.006)
    assert costs.row_seconds(2000) == pytest.approx(0.0029)
    faster_far_away = [CostSample(s.rows, 768 - s.context_tokens, s.seconds) for s in samples]
    assert StepCosts.fitted(faster_far_away).context_token_s == 0
