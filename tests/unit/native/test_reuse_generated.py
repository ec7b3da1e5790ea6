"""Blocks of answers: never used by default, and found by the next turn of a chat where that is wanted."""

import pytest
from engine_fixtures import Oracle, make_engine, make_request, prompt, run

from uzu_native.executor import FakeExecutor

BLOCK = 4
ANSWER = 21


def first_turn(engine, length=10, **changes):
    request = make_request(max_tokens=ANSWER, **changes)
    return run(engine, (prompt(length), request))[0].token_ids


def second_turn(engine, answer, length=10, **changes):
    text = [*prompt(length), *answer, 50, 51, 52]
    (recorder,) = run(engine, (text, make_request(**changes)))
    return recorder.token_ids, recorder.chunks[-1].num_cached_tokens


def test_by_default_a_block_of_an_answer_serves_nobody():
    engine = make_engine()
    answer = first_turn(engine)
    cold = second_turn(make_engine(), answer)
    assert second_turn(engine, answer) == (cold[0], 10 // BLOCK * BLOCK)


@pytest.mark.parametrize("speculates", [False, True])
def test_the_next_turn_finds_the_answer(speculates):
    plain = first_turn(make_engine())
    oracle = Oracle([[*prompt(10), *plain]], wrong_every=4) if speculates else None
    engine = make_engine(reuse_generated=True, speculator=oracle)
    answer = first_turn(engine)
    assert answer == plain
    assert (engine.metrics.accepted_tokens.total() > 0) == speculates
    cold = second_turn(make_engine(), answer)
    if oracle:
        oracle.texts = [[*prompt(10), *answer, 50, 51, 52, *cold[0]]]
    # The answer's last token was never computed.
    computed = 10 + ANSWER - 1
    assert second_turn(engine, answer) == (cold[0], computed // BLOCK * BLOCK)
    assert engine.metrics.cached_tokens == computed // BLOCK * BLOCK


def test_another_answer_or_salt_finds_only_what_is_its_own():
    engine = make_engine(reuse_generated=True)
    answer = first_turn(engine)
    changed = [*answer[:7], 1 + answer[7] % 50, *answer[8:]]
    assert second_turn(engine, changed)[1] == (10 + 7) // BLOCK * BLOCK
    assert second_turn(engine, answer, cache_salt="somebody else's")[1] == 0


def test_guesses_behind_the_end_of_a_text_are_not_part_of_it():
    reference = first_turn(make_engine())
    # The text ends within a block, and the guesses go on.
    end = next(i for i in range(4, 12) if (10 + i + 1) % BLOCK == 2 and reference.index(reference[i]) == i)
    oracle = Oracle([[*prompt(10), *reference]], wrong_every=1000)
    engine = make_engine(reuse_generated=True, speculator=oracle)
    request = make_request(max_tokens=ANSWER, stop_token_ids=(reference[end],))
    answer = run(engine, (prompt(10), request))[0].token_ids
    assert answer == reference[: end + 1]
    assert engine.metrics.accepted_tokens.total() > 0
    cold = second_turn(make_engine(), answer)
    oracle.texts = [[*prompt(10), *answer, 50, 51, 52, *cold[0]]]
    assert second_turn(engine, answer) == (cold[0], (10 + end) // BLOCK * BLOCK)


def test_preempted_as_undisturbed():
    jobs = [(prompt(6 + i, i), make_request(max_tokens=30, temperature=0.8, seed=i)) for i in range(6)]
    plain = [r.token_ids for r in run(make_engine(FakeExecutor(256)), *jobs)]
    engine = make_engine(FakeExecutor(20), reuse_generated=True)
    for _ in range(2):
        assert [r.token_ids for r in run(engine, *jobs)] == plain
    assert engine.metrics.preemptions > 0
