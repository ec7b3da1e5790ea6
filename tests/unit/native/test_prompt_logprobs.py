import pytest
from engine_fixtures import Oracle, make_engine, make_request, prompt, run

from uzu_native.executor import FakeExecutor
from uzu_native.scheduler import MAX_SCORED_TOKENS
from uzu_native.scores import score
from uzu_native.step import Lane, Row, StepPlan


def by_hand(token_ids, count):
    """Each place scored by the logits of a step that computes what comes before it, and nothing else."""
    places = []
    for end in range(1, len(token_ids)):
        executor = FakeExecutor(256)
        executor.start(StepPlan(Lane.ALL, (Row(token_ids[:end], 0, [*range(64)], True),)), lambda lane: None)
        places += score(executor.finish(Lane.ALL), [token_ids[end]], count)
    return [place.spelled(lambda token: f"<{token}>".encode()) for place in places]


def told(recorder):
    first, *others = recorder.chunks
    assert all(chunk.prompt_logprobs is None for chunk in others)
    return first.prompt_logprobs


@pytest.mark.parametrize("length", [1, 2, 3, 17, 65, 66, 130])
def test_each_token_is_scored_given_those_before_it(length):
    (recorder,) = run(make_engine(FakeExecutor(256)), (prompt(length), make_request(prompt_logprobs=3)))
    logprobs = told(recorder)
    assert (logprobs.first_id, logprobs.first_token) == (0, b"<0>")
    assert list(logprobs.rest) == by_hand(prompt(length), 3)
    assert [place.chosen.token_id for place in logprobs.rest] == prompt(length)[1:]
    plain = run(make_engine(FakeExecutor(256)), (prompt(length), make_request()))[0]
    assert plain.token_ids == recorder.token_ids
    assert plain.chunks[0].prompt_logprobs is None


@pytest.mark.parametrize("options", [{"max_step_tokens": n} for n in (16, 17, 64, 512)] + [{"threads": 1}])
def test_the_same_in_chunks_of_any_size_and_among_neighbours(options):
    jobs = [
        (prompt(3 + 20 * i, i), make_request(max_tokens=5 + i, prompt_logprobs=i % 3 or None, logprobs=1))
        for i in range(8)
    ]
    executor = FakeExecutor(512)
    for (token_ids, request), recorder in zip(
        jobs, run(make_engine(executor, **options), *jobs), strict=True
    ):
        count = request.sampling.prompt_logprobs
        logprobs = told(recorder)
        assert (logprobs and list(logprobs.rest)) == (count and by_hand(token_ids, count))
        alone = run(make_engine(FakeExecutor(256)), (token_ids, make_request(max_tokens=12)))[0]
        assert recorder.token_ids[:5] == alone.token_ids[:5]
        assert [place.chosen.token_id for place in recorder.logprobs] == recorder.token_ids
    scored = [sum(len(r.token_ids) for r in p.rows if r.wants_all_logits) for p in executor.plans]
    assert max(scored) > 8
    assert max(scored) <= MAX_SCORED_TOKENS + 1


def test_a_step_scores_no_more_than_it_may_for_all_together():
    executor = FakeExecutor(1024)
    jobs = [(prompt(100, i), make_request(prompt_logprobs=0)) for i in range(6)]
    for recorder in run(make_engine(executor, max_step_tokens=512), *jobs):
        assert len(told(recorder).rest) == 99
    scored = [sum(len(r.token_ids) for r in p.rows if r.wants_all_logits) for p in executor.plans]
    assert max(scored) == MAX_SCORED_TOKENS


def test_what_is_cached_is_computed_anew_and_cached_for_others():
    engine = make_engine(FakeExecutor(256))
    jobs = [(prompt(41), make_request(prompt_logprobs=wanted)) for wanted in (None, 2, None)]
    first, scored, last = (run(engine, job)[0] for job in jobs)
    assert [r.chunks[0].num_cached_tokens for r in (first, scored, last)] == [0, 0, 36]
    assert list(told(scored).rest) == by_hand(prompt(41), 2)
    assert first.token_ids == scored.token_ids == last.token_ids
    together = run(make_engine(FakeExecutor(256)), *jobs)
    assert list(told(together[1]).rest) == by_hand(prompt(41), 2)
    fresh = make_engine(FakeExecutor(256))
    run(fresh, jobs[1])
    assert run(fresh, jobs[0])[0].chunks[0].num_cached_tokens == 36


def test_the_same_when_preempted_in_the_prompt_and_after_it():
    jobs = [(prompt(30, i), make_request(max_tokens=20, prompt_logprobs=1)) for i in range(6)]
    executor = FakeExecutor(block_count=20)
    engine = make_engine(executor, max_step_tokens=16, prefix_cache=False)
    recorders = run(engine, *jobs)
    assert engine.metrics.preemptions > 0
    for (token_ids, request), recorder in zip(jobs, recorders, strict=True):
        assert list(told(recorder).rest) == by_hand(token_ids, 1)
        assert recorder.token_ids == run(make_engine(), (token_ids, request))[0].token_ids
    assert any(row.start == 0 and not row.wants_all_logits for plan in executor.plans for row in plan.rows), (
        "who is computed again after the prompt needs no scores"
    )


def test_whole_answers_have_them_and_speculation_changes_nothing():
    request = make_request(prompt_logprobs=2, stream=False)
    (whole,) = run(make_engine(), (prompt(9), request))
    assert len(whole.chunks) == 1
    speculating = make_engine(speculator=Oracle([prompt(9) + whole.token_ids], 4))
    (speculated,) = run(speculating, (prompt(9), request))
    assert speculating.metrics.accepted_tokens.total() > 0
    assert speculated.chunks[0].prompt_logprobs == whole.chunks[0].prompt_logprobs
    assert speculated.token_ids == whole.token_ids
    (named,) = run(make_engine(), (prompt(9), make_request(outputs=frozenset({"prompt_logprobs"}))))
    assert [place.top for place in told(named).rest] == [()] * 8


def test_they_are_the_models_own():
    request = make_request(
        prompt_logprobs=1, temperature=2.0, seed=1, repetition_penalty=2.0, bad_words=("7",)
    )
    assert list(told(run(make_engine(), (prompt(9), request))[0]).rest) == by_hand(prompt(9), 1)
