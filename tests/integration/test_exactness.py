"""The engine's promise on the real model: the same tokens however a request is run."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from native_engine import RealEngine, random_prompt, real_engine

from uzu_contract.request import ChatPrompt
from uzu_contract.sampling import SamplingParams, parse_sampling

LENGTHS = (1, 2, 3, 31, 32, 33, 34, 48, 65, 90, 129, 200, 300, 700, 1100, 2000)
PROMPTS = [random_prompt(length, length) for length in LENGTHS]
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
SEEDED = SamplingParams(max_tokens=24, temperature=0.8, top_p=0.95, seed=11, ignore_eos=True)
JOBS = [(prompt, sampling) for prompt in PROMPTS for sampling in (GREEDY, SEEDED)]
SPECULATIONS = ("off", "ngram")
"""The first is what the others must equal. Those by a draft model are in test_draft_model.py."""


def assert_all_alike(answers: dict[str, list[list[int]]]) -> None:
    for speculation in SPECULATIONS:
        assert answers[speculation] == answers[SPECULATIONS[0]], speculation


@pytest.fixture(scope="module")
def plain(prepared_smollm2: Path) -> Iterator[RealEngine]:
    """Neither guesses nor caches."""
    with real_engine(prepared_smollm2, prefix_cache=False, speculation="off") as engine:
        yield engine


@pytest.fixture(scope="module")
def speculating(prepared_smollm2: Path) -> Iterator[dict[str, RealEngine]]:
    """An engine for each of `SPECULATIONS`."""
    with ExitStack() as stack:
        yield {
            speculation: stack.enter_context(real_engine(prepared_smollm2, speculation=speculation))
            for speculation in SPECULATIONS
        }


@pytest.fixture(scope="module")
def reference(plain: RealEngine) -> list[list[int]]:
    """Each job alone, with nothing cached."""
    return [plain.run(job)[0].token_ids for job in JOBS]


def guesses(engine: RealEngine) -> Counter[str]:
    metrics = engine.engine.metrics
    return Counter(drafted=metrics.drafted_tokens.total(), accepted=metrics.accepted_tokens.total())


def shuffled(order: list[int], seed: str) -> list[int]:
    return random.Random(seed).sample(order, len(order))


@pytest.mark.parametrize(
    ("options", "longest"),
    [
        ({"threads": 1}, 2000),
        ({"max_step_tokens": 16, "prefill_tokens_beside_decode": 5}, 1100),
        ({"max_step_tokens": 64, "prefill_tokens_beside_decode": 17, "prefix_cache": False}, 1100),
        ({"max_step_tokens": 190}, 2000),
        ({"max_sequences": 8, "max_step_tokens": 512, "split_lanes": False}, 2000),
    ],
    ids=[
        "one thread",
        "chunks of 16",
        "chunks of 64",
        "chunks of 190",
        "8 together, no halves, chunks of 512",
    ],
)
def test_together_as_alone(prepared_smollm2, reference, options, longest):
    chosen = [i for i, (prompt, _) in enumerate(JOBS) if len(prompt) <= longest]
    order = shuffled(chosen, repr(options))
    with real_engine(prepared_smollm2, **options) as engine:
        answers = engine.run(*(JOBS[i] for i in order))
    for i, answer in zip(order, answers, strict=True):
        assert answer.token_ids == reference[i], f"prompt of {len(JOBS[i][0])} tokens"


def test_32_together_as_alone_and_warm_as_cold(prepared_smollm2, reference):
    with real_engine(prepared_smollm2) as engine:
        for round_, warm in (("cold", False), ("warm", True)):
            order = shuffled(list(range(len(JOBS))), round_)
            answers = engine.run(*(JOBS[i] for i in order))
            assert [a.token_ids for a in answers] == [reference[i] for i in order], round_
            cached = [a.chunks[-1].num_cached_tokens for a in answers]
            most = [max(0, len(JOBS[i][0]) - 2) // 32 * 32 for i in order]
            # A prompt is there twice, so half of it may be warm in the first round already.
            assert cached == most if warm else sum(cached) <= sum(most) / 2


@pytest.mark.parametrize(
    "options",
    [{"kv_cache_precision": "bf16"}, {"kv_cache_precision": "f32", "inference_precision": "f32"}],
    ids=["bf16", "f32"],
)
def test_other_precisions_together_as_alone(prepared_smollm2, options):
    jobs = [job for job in JOBS if len(job[0]) in (33, 300, 1100)]
    with real_engine(prepared_smollm2, kv_cache_tokens=16384, split_lanes=False, **options) as engine:
        alone = [engine.run(job)[0].token_ids for job in jobs]
        assert [a.token_ids for a in engine.run(*jobs)] == alone


def test_the_comparison_notices_what_is_not_exact(prepared_smollm2):
    """The negative control: with OpenVINO's own settings, long contexts round differently in company."""
    options = {"determinism": "fast", "prefix_cache": False, "speculation": "off", "split_lanes": False}
    long = [job for job in JOBS if len(job[0]) >= 700 and job[1] is SEEDED]
    short = [job for job in JOBS if len(job[0]) < 70]
    with real_engine(prepared_smollm2, **options) as engine:
        alone = [engine.run(job)[0].token_ids for job in long]
        together = [answer.token_ids for answer in engine.run(*long, *short)[: len(long)]]
    assert together != alone
    assert all(len(tokens) == 24 for tokens in (*alone, *together))


@pytest.mark.parametrize(
    ("lengths", "max_tokens", "blocks", "options"),
    [
        ((31, 32), 80, 5, {"speculation": "off", "split_lanes": False}),
        ((31, 32), 80, 5, {"speculation": "ngram"}),
        ((700,), 64, 45, {"speculation": "ngram"}),
    ],
    ids=["short", "short and guessing", "long"],
)
def test_preempted_as_undisturbed(prepared_smollm2, plain, lengths, max_tokens, blocks, options):
    """All that are admitted into so few blocks need more of them before the first has ended."""
    jobs = [
        (prompt, replace(sampling, max_tokens=max_tokens))
        for prompt, sampling in JOBS
        if len(prompt) in lengths
    ]
    alone = [plain.run(job)[0].token_ids for job in jobs]
    with real_engine(prepared_smollm2, kv_cache_tokens=32 * blocks, prefix_cache=False, **options) as engine:
        answers = engine.run(*jobs)
        assert engine.engine.metrics.preemptions > 0
        assert engine.engine.metrics.recomputed_tokens > 0
    assert [a.token_ids for a in answers] == alone


COPYING = (
    "Repeat this list, and then repeat it again: alpha, beta, gamma, delta, epsilon, zeta, eta, theta, iota.",
    "Write the numbers from 1 to 40, one a line.",
    "def add(a, b):\n    return a + b\n\nRewrite this function five times without changing it.",
)


def test_speculated_as_not(speculating):
    """tensorrtllm_backend#676: batches, streams, greedy and seeded, and guesses that are right and wrong."""
    answers: dict[str, list[list[int]]] = {}
    for speculation in SPECULATIONS:
        engine = speculating[speculation]
        before = guesses(engine)
        jobs = [
            (
                engine.prompts.encode(ChatPrompt(messages=({"role": "user", "content": text},))),
                SamplingParams(max_tokens=96, temperature=temperature, seed=3),
            )
            for text in COPYING
            for temperature in (0, 0.3)
        ]
        answers[speculation] = [a.token_ids for job in jobs for a in engine.run(job)]
        assert [a.token_ids for a in engine.run(*jobs)] == answers[speculation]
        made = guesses(engine) - before
        assert (made["accepted"] > 20) == (speculation != "off")
        assert (made["drafted"] > made["accepted"]) == (speculation != "off")
    assert_all_alike(answers)


ADDRESSES = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "city": {"enum": ["Paris", "Rome", "Kraków", "東京"]},
            "number": {"type": "integer", "minimum": 1, "maximum": 99},
        },
        "required": ["city", "number"],
        "additionalProperties": False,
    },
    "minItems": 3,
    "maxItems": 3,
}
FORMS = ({"json": ADDRESSES}, {"regex": "(a[bc]d ?){20}"}, {"choice": ["yes", "yes, indeed"]})


def test_structured_together_as_alone_and_speculated_as_not(speculating):
    answers: dict[str, list[list[int]]] = {}
    for speculation in SPECULATIONS:
        engine = speculating[speculation]
        before = guesses(engine)
        question = {"role": "user", "content": "Write three addresses as JSON."}
        prompt = engine.prompts.encode(ChatPrompt(messages=(question,)))
        jobs = [
            (prompt, replace(parse_sampling({"structured_outputs": form}), temperature=t, seed=5))
            for form in FORMS
            for t in (0.0, 1.0)
        ]
        alone = [engine.run(job)[0] for job in jobs]
        answers[speculation] = [a.token_ids for a in alone]
        assert [a.token_ids for a in engine.run(*jobs)] == answers[speculation]
        assert ((guesses(engine) - before)["accepted"] > 20) == (speculation != "off")
        texts = ["".join(chunk.text for chunk in a.chunks) for a in alone]
        assert all(len(json.loads(text)) == 3 for text in texts[:2])
        assert all(re.fullmatch(FORMS[1]["regex"], text) for text in texts[2:4])
        assert {*texts[4:]} <= {"yes", "yes, indeed"}
    assert_all_alike(answers)


def test_different_seeds_differ(plain):
    jobs = [(PROMPTS[5], SamplingParams(max_tokens=24, seed=seed)) for seed in range(4)]
    assert len({tuple(a.token_ids) for a in plain.run(*jobs)}) == 4


def test_bad_words_are_not_written_speculated_or_not(speculating):
    answers: dict[str, list[list[int]]] = {}
    words = ("alpha", "beta, beta", "return", "15", "\n\n")
    for speculation in SPECULATIONS:
        engine = speculating[speculation]
        before = guesses(engine)
        free, kept = (
            [
                (
                    engine.prompts.encode(ChatPrompt(messages=({"role": "user", "content": text},))),
                    SamplingParams(max_tokens=64, temperature=t, seed=3, bad_words=bad),
                )
                for text in COPYING
                for t in (0, 0.3)
            ]
            for bad in ((), words)
        )
        texts = ["".join(chunk.text for chunk in a.chunks) for a in engine.run(*free)]
        assert all(any(word in text for text in texts) for word in words)
        answers[speculation] = [a.token_ids for job in kept for a in engine.run(job)]
        assert [a.token_ids for a in engine.run(*kept)] == answers[speculation]
        assert ((guesses(engine) - before)["accepted"] > 20) == (speculation != "off")
        for tokens in answers[speculation]:
            for word in words:
                for text in (word, " " + word):
                    ids = engine.prompts.encode_word(text)
                    assert not any(tokens[i : i + len(ids)] == ids for i in range(len(tokens)))
    assert_all_alike(answers)


def test_prompts_are_scored_alike_in_chunks_of_any_size_warm_and_among_neighbours(
    prepared_smollm2, plain, speculating
):
    prompts = [random_prompt(length, length) for length in (1, 2, 33, 65, 300)]
    jobs = [(prompt, SamplingParams(max_tokens=8, temperature=0, prompt_logprobs=2)) for prompt in prompts]
    unscored = [(prompt, replace(sampling, prompt_logprobs=None)) for prompt, sampling in jobs]
    alone = [plain.run(job)[0] for job in jobs]
    assert [a.token_ids for a in alone] == [plain.run(job)[0].token_ids for job in unscored]
    reference = [answer.chunks[0].prompt_logprobs for answer in alone]
    for prompt, told in zip(prompts, reference, strict=True):
        assert told is not None
        assert [told.first_id, *(place.chosen.token_id for place in told.rest)] == prompt
    with real_engine(prepared_smollm2, max_step_tokens=16, split_lanes=False) as in_chunks:
        for engine in (*speculating.values(), in_chunks):
            engine.run(*unscored)
            answers = engine.run(*jobs, *JOBS[:12])[: len(jobs)]
            assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in alone]
            assert [answer.chunks[0].prompt_logprobs for answer in answers] == reference


def test_a_prompt_is_scored_about_as_it_was_generated(plain):
    """Prefill and decoding round differently, so the numbers are near and not the same."""
    prompt = plain.prompts.encode(ChatPrompt(messages=({"role": "user", "content": COPYING[2]},)))
    (generated,) = plain.run((prompt, SamplingParams(max_tokens=48, temperature=0, logprobs=1)))
    whole = prompt + generated.token_ids
    (scored,) = plain.run((whole, SamplingParams(max_tokens=1, prompt_logprobs=1)))
    told = scored.chunks[0].prompt_logprobs
    assert told is not None
    there = [place.chosen for chunk in generated.chunks for place in chunk.logprobs or ()]
    here = [place.chosen for place in told.rest[len(prompt) - 1 :]]
    assert [token.token_id for token in here] == [token.token_id for token in there]
    differences = [abs(a.logprob - b.logprob) for a, b in zip(here, there, strict=True)]
    assert sum(differences) / len(differences) < 0.1
    assert max(differences) < 1
