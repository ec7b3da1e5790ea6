from time import monotonic

import numpy as np
import pytest
from engine_fixtures import Faults, Recorder, make_engine, make_request, prompt, run

from uzu_native.draft_model import CATCH_UP_TOKENS, DraftContext, DraftModel, DraftRequest
from uzu_native.executor import ExecutionError, FakeExecutor
from uzu_native.speculation import Candidate, DraftHistory, GuessKind, Record, Speculator
from uzu_native.step import Lane
from uzu_native.step_costs import StepCosts

TARGET = StepCosts(base_s=0.010, row_s=0.0002)
DRAFT = StepCosts(base_s=0.001, row_s=0.0001, prompt_token_s=0.0001)


def no_fault(error: BaseException) -> None:
    raise AssertionError("the draft model failed") from error


def draft_model(executor=None, *, costs=DRAFT, context_tokens=200, on_fault=no_fault):
    return DraftModel(executor or FakeExecutor(256), costs, 64, context_tokens, on_fault)


def speculator(model=None, *, ngrams=0, most=4):
    return Speculator(TARGET, ngrams, model or draft_model(), most)


def continuation(length: int, count: int) -> list[int]:
    """What the fake model says after `prompt(length)`."""
    return run(make_engine(), (prompt(length), make_request(max_tokens=count)))[0].token_ids


# The model by itself


def test_it_writes_on_as_the_same_model_does():
    model = draft_model()
    requests = [DraftRequest(DraftContext(), prompt(n), 5 - i) for i, n in enumerate((3, 9, 17))]
    assert model.draft(requests) == [continuation(n, 5 - i) for i, n in enumerate((3, 9, 17))]
    model.check_integrity(r.context for r in requests)


def test_after_a_refused_guess_it_goes_on_from_what_is_true():
    executor = FakeExecutor(256)
    model = draft_model(executor)
    context, tokens = DraftContext(), prompt(9)
    (guess,) = model.draft([DraftRequest(context, tokens, 4)])
    for accepted in (2, 0, 4):
        tokens = [*tokens, *guess[:accepted], 61]
        before = len(executor.plans)
        (guess,) = model.draft([DraftRequest(context, tokens, 4)])
        assert guess == draft_model().draft([DraftRequest(DraftContext(), tokens, 4)])[0]
        # What was accepted is in its memory already, but for the last guess, which nothing followed.
        first = executor.plans[before].rows[0]
        assert first.start == len(tokens) - len(first.token_ids)
        assert len(first.token_ids) == (2 if accepted == 4 else 1)


def test_a_long_text_is_caught_up_with_bit_by_bit():
    executor = FakeExecutor(512)
    model = draft_model(executor, context_tokens=2000)
    context, tokens = DraftContext(), prompt(2 * CATCH_UP_TOKENS + 50)
    short = DraftContext()
    answers = []
    while not answers or not answers[-1][0]:
        answers.append(model.draft([DraftRequest(context, tokens, 2), DraftRequest(short, prompt(5), 2)]))
    assert len(answers) == 3
    # The other one does not wait.
    assert all(answer[1] == continuation(5, 2) for answer in answers)
    computed = [sum(len(row.token_ids) for row in plan.rows) for plan in executor.plans]
    assert max(computed) <= CATCH_UP_TOKENS + 2
    whole = make_engine(FakeExecutor(512), context_tokens=2000)
    assert answers[-1][0] == run(whole, (tokens, make_request(max_tokens=2)))[0].token_ids


def test_who_finds_no_blocks_gets_no_guess():
    model = draft_model(FakeExecutor(block_count=4))
    first, second = DraftContext(), DraftContext()
    requests = [DraftRequest(first, prompt(6), 4), DraftRequest(second, prompt(7), 4)]
    assert [bool(guess) for guess in model.draft(requests)] == [True, False]
    assert not model.can_follow(second, prompt(7))
    model.forget(first)
    assert model.can_follow(second, prompt(7))
    assert [bool(guess) for guess in model.draft(requests[1:])] == [True]
    model.check_integrity([second])
    with pytest.raises(RuntimeError, match="disagree"):
        model.check_integrity([])


def test_it_stops_at_its_own_context():
    model = draft_model(context_tokens=12)
    (guess,) = model.draft([DraftRequest(DraftContext(), prompt(9), 8)])
    assert len(guess) == 3
    assert not model.can_follow(DraftContext(), prompt(12))


class PaddedExecutor(FakeExecutor):
    """Its likeliest token is always one that the target does not have."""

    def finish(self, lane: Lane) -> np.ndarray:
        logits = super().finish(lane)
        return np.concatenate([logits, np.full((len(logits), 8), 100, np.float32)], axis=1)


def test_tokens_that_the_target_does_not_have_are_never_guessed():
    (guess,) = draft_model(PaddedExecutor()).draft([DraftRequest(DraftContext(), prompt(9), 4)])
    assert guess == continuation(9, 4)


# Whether to ask it


def candidate(length=20, chance=0.9, generated=100, **changes):
    history = DraftHistory(model=Record(chance * 100, (1 - chance) * 100), **changes)
    return Candidate(prompt(length), history, 100, generated)


@pytest.mark.parametrize(
    ("costs", "chance", "low", "high"),
    [
        (DRAFT, 0.99, 4, 4),
        (DRAFT, 0.5, 1, 3),
        (DRAFT, 0.05, 0, 0),
        (StepCosts(base_s=0.005, row_s=0.0001), 0.9, 1, 4),
        (StepCosts(base_s=0.005, row_s=0.0001), 0.5, 0, 0),
        (TARGET, 0.99, 0, 0),
    ],
    ids=["sure", "half", "hopeless", "dear and sure", "dear and half", "as dear as the target"],
)
def test_it_is_asked_for_as_much_as_pays(costs, chance, low, high):
    (guess,) = speculator(draft_model(costs=costs)).draft([candidate(chance=chance)])
    assert low <= len(guess) <= high


def test_each_sequence_gets_its_own_depth():
    sure, doubtful, hopeless = speculator().draft(
        [candidate(20, 0.99), candidate(21, 0.4), candidate(22, 0.02)]
    )
    assert len(sure) > len(doubtful) > len(hopeless) == 0


def test_it_is_off_under_load_and_beside_another_lane():
    crowd = [candidate(20 + i % 3, 0.6) for i in range(60)]
    costs = StepCosts(base_s=0.010, row_s=0.001)
    assert not any(Speculator(costs, 0, draft_model(), 4).draft(crowd))
    assert any(Speculator(costs, 0, draft_model(), 4).draft(crowd[:2]))
    assert speculator().draft([candidate()], alone=False) == [[]]


def test_catching_up_must_be_worth_it():
    """A text that has just begun may be over soon."""
    assert speculator().draft([candidate(150, generated=1)]) == [[]]
    assert speculator().draft([candidate(150, generated=100)]) != [[]]
    assert speculator().draft([candidate(6, generated=1)]) != [[]]


def test_the_text_is_guessed_from_where_that_promises_more():
    text = [*prompt(20), 5, 6, 7, *prompt(20)]
    model = draft_model()
    both = Speculator(TARGET, 8, model, 4)
    by_text = Candidate(text, DraftHistory(model=Record(1, 1)), 100, 100)
    both.draft([by_text])
    assert by_text.history.record(1, 1) is GuessKind.NGRAM
    by_model = Candidate(text, DraftHistory(model=Record(50, 1)), 100, 100)
    by_model.history.matches[8] = Record(1, 2)
    both.draft([by_model])
    assert by_model.history.record(1, 1) is GuessKind.DRAFT


def test_who_seems_hopeless_is_tried_again_now_and_then():
    guessing = Speculator(TARGET, 0, draft_model(), 4, probe_interval=5)
    hopeless = candidate(8, 0.001)
    assert [len(guessing.draft([hopeless])[0]) for _ in range(10)] == [0, 0, 0, 0, 1] * 2
    dear = Speculator(TARGET, 0, draft_model(costs=TARGET), 4, probe_interval=5)
    assert not any(dear.draft([hopeless])[0] for _ in range(10))


# In the engine


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.9, "seed": 5},
        {"logprobs": 2},
        {"temperature": 0.7, "seed": 5, "presence_penalty": 1.5, "logit_bias": ((3, 2.0),)},
        {"stop": ("<17>",)},
        {"ignore_eos": False},
    ],
    ids=["greedy", "seeded", "logprobs", "penalized", "stop string", "end token"],
)
@pytest.mark.parametrize("blocks", [256, 20], ids=["much memory", "preempting"])
@pytest.mark.parametrize("ngrams", [0, 8], ids=["draft", "ngram+draft"])
def test_same_tokens_drafted_or_not(sampling, blocks, ngrams):
    jobs = [(prompt(6 + i, i), make_request(max_tokens=24 + i, **sampling)) for i in range(6)]
    plain = run(make_engine(FakeExecutor(256)), *jobs)
    drafter = FakeExecutor(256, agreement=0.8)
    engine = make_engine(FakeExecutor(blocks), speculator=speculator(draft_model(drafter), ngrams=ngrams))
    drafted = run(engine, *jobs)
    assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
    assert [r.text for r in drafted] == [r.text for r in plain]
    assert [r.logprobs for r in drafted] == [r.logprobs for r in plain]
    metrics = engine.metrics
    assert 0 < metrics.accepted_tokens["draft"] < metrics.drafted_tokens["draft"]
    assert metrics.draft_failures == 0


def test_a_better_draft_model_saves_more_steps():
    counts = []
    for agreement in (1.0, 0.6, 0.0):
        target = FakeExecutor(256)
        model = draft_model(FakeExecutor(256, agreement=agreement))
        engine = make_engine(target, speculator=speculator(model))
        run(engine, (prompt(6), make_request(max_tokens=100)))
        counts.append(len(target.plans))
        accepted, drafted = (
            c["draft"] for c in (engine.metrics.accepted_tokens, engine.metrics.drafted_tokens)
        )
        if agreement == 1.0:
            assert accepted == drafted
        if agreement == 0.0:
            assert drafted < 15, "guesses that never fit go on"
    assert counts[0] < 30 < counts[1] < 80 < counts[2] <= 101


def test_it_follows_prompts_that_came_out_of_the_cache():
    engine = make_engine(FakeExecutor(256), speculator=speculator())
    request = make_request(max_tokens=40)
    first, second = (run(engine, (prompt(40), request))[0] for _ in range(2))
    assert second.chunks[-1].num_cached_tokens > 0
    assert second.token_ids == first.token_ids
    assert second.chunks[-1].perf_metrics["accepted"] == first.chunks[-1].perf_metrics["accepted"] > 0


class BrokenExecutor(FakeExecutor):
    """Fails from its so-manieth step on, at the start or at the end of it."""

    def __init__(self, after: int, at_start: bool) -> None:
        super().__init__(256)
        self.after = after
        self.at_start = at_start

    def start(self, plan, on_done):
        if self.at_start and len(self.plans) >= self.after:
            raise RuntimeError("cannot start")
        super().start(plan, on_done)

    def finish(self, lane):
        logits = super().finish(lane)
        if len(self.plans) > self.after:
            raise ExecutionError("broken")
        return logits


@pytest.mark.parametrize("at_start", [True, False])
def test_a_broken_draft_model_fails_no_request(at_start):
    jobs = [(prompt(6 + i, i), make_request(max_tokens=24)) for i in range(3)]
    plain = run(make_engine(FakeExecutor(256)), *jobs)
    faults = Faults()
    broken = BrokenExecutor(5, at_start)
    model = draft_model(broken, on_fault=faults.append)
    engine = make_engine(FakeExecutor(256), speculator=speculator(model))
    for _ in range(2):
        assert [r.token_ids for r in run(engine, *jobs)] == [r.token_ids for r in plain]
    assert len(faults) == 1
    assert engine.metrics.draft_failures == 6
    assert 0 < engine.metrics.accepted_tokens["draft"] < 30


def test_stopping_the_engine_frees_the_draft_model():
    executor = FakeExecutor(256)
    engine = make_engine(FakeExecutor(256), speculator=speculator(draft_model(executor)))
    engine.stop()
    assert executor.released


def test_it_sleeps_and_wakes_with_the_target(wait_until):
    executor, faults = FakeExecutor(256, failing_restores=1), Faults()
    guessing = speculator(draft_model(executor, on_fault=faults.append))
    engine = make_engine(FakeExecutor(256), clock=monotonic, sleep_after_s=0.05, speculator=guessing)
    engine.start()
    accepted = []
    for _ in range(2):
        wait_until(lambda: executor.released and engine.metrics.asleep, 10, "sleep")
        recorder = Recorder()
        engine.submit(make_request(max_tokens=24), prompt(8), recorder)
        wait_until(lambda r=recorder: r.finish_reason, 10, "the answer")
        assert recorder.token_ids == continuation(8, 24)
        accepted.append(recorder.chunks[-1].perf_metrics["accepted"])
    engine.stop()
    engine.check_integrity()
    # It did not come back the first time, which no request noticed.
    assert accepted[0] == 0 < accepted[1]
    assert engine.metrics.draft_failures == 1
    assert faults
