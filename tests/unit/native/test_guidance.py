import json
import re

import numpy as np
import pytest
from engine_fixtures import Oracle, make_engine, make_request, run
from text_fixtures import byte_level, llama_metaspace, unigram

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.response import FinishReason
from uzu_contract.sampling import SamplingParams, parse_sampling
from uzu_native.detokenizer import Detokenizer
from uzu_native.executor import FakeExecutor
from uzu_native.guidance import GuideCompiler
from uzu_native.sampler import Draw, sample
from uzu_native.tokenizer import Tokenizer

END = 0
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "pets": {"type": "array", "items": {"enum": ["cat", "dög", "渦"]}, "maxItems": 2},
    },
    "required": ["name", "age", "pets"],
    "additionalProperties": False,
}
BRACKETS = 'start: "(" start ")" | WORD\nWORD: /[a-c]{1,3}/'


def is_person(text):
    person = json.loads(text)
    return (
        list(person) == ["name", "age", "pets"]
        and len(person["name"]) <= 6
        and 0 <= person["age"] <= 150
        and {*person["pets"]} <= {"cat", "dög", "渦"}
    )


def is_balanced(text):
    return re.fullmatch(r"(\(*)[a-c]{1,3}(\)*)", text) is not None and text.count("(") == text.count(")")


FORMS = [
    ({"json": PERSON}, is_person),
    ({"regex": r"[a-f]{2,8}-\d{4}é?"}, lambda t: re.fullmatch(r"[a-f]{2,8}-[0-9]{4}é?", t)),
    (
        {"choice": ["yes", "yes, but", "no\n", '"\\', "渦"]},
        {"yes", "yes, but", "no\n", '"\\', "渦"}.__contains__,
    ),
    ({"grammar": BRACKETS}, is_balanced),
]
SAMPLINGS = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 1.2, "seed": 3, "top_k": 40, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer(byte_level().write(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GuideCompiler(byte_level().source, frozenset({END}), tokenizer.vocab_size)


@pytest.fixture
def make(tokenizer):
    def made(blocks=256, **changes):
        return make_engine(
            FakeExecutor(blocks, vocabulary_size=tokenizer.vocab_size),
            end_token=END,
            make_text_stream=lambda stop: Detokenizer(tokenizer, stop),
            **({"context_tokens": 400} | changes),
        )

    return made


def wanted(form, **changes):
    parsed = parse_sampling({"structured_outputs": form}).structured_outputs
    return make_request(**({"max_tokens": None, "ignore_eos": False, "structured_outputs": parsed} | changes))


def jobs(sampling, **changes):
    return [([3 + i, 4, 5, 6], wanted(form, **(sampling | changes))) for i, (form, _) in enumerate(FORMS * 2)]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "seeded", "filtered", "penalized"])
def test_texts_have_their_form_and_the_same_tokens_however_they_are_run(make, compiler, sampling):
    all_jobs = jobs(sampling)
    alone = [run(make(), job, compile_guide=compiler.compile)[0] for job in all_jobs]
    for recorder, (_, check) in zip(alone, FORMS * 2, strict=True):
        assert recorder.finish_reason == FinishReason.STOP
        assert check(recorder.text), recorder.text
    assert len({r.text for r in alone}) > len(FORMS)
    expected = [r.token_ids for r in alone]
    assert [r.token_ids for r in run(make(), *all_jobs, compile_guide=compiler.compile)] == expected
    longest = max(len(tokens) for tokens in expected) + 4
    starved = make(max(16, longest // 4 + 2))
    assert [r.token_ids for r in run(starved, *all_jobs, compile_guide=compiler.compile)] == expected
    assert starved.metrics.preemptions > 0
    texts = [p + tokens for (p, _), tokens in zip(all_jobs, expected, strict=True)]
    guessing = make(speculator=Oracle(texts, wrong_every=4))
    speculated = run(guessing, *all_jobs, compile_guide=compiler.compile)
    assert [r.token_ids for r in speculated] == expected
    assert [r.text for r in speculated] == [r.text for r in alone]
    assert 0 < guessing.metrics.accepted_tokens.total() < guessing.metrics.drafted_tokens.total()


def test_without_a_form_neighbours_keep_their_tokens(make, compiler):
    free = ([3, 4, 5, 6], make_request(max_tokens=20))
    (alone,) = run(make(), free)
    assert run(make(), free, *jobs({}), compile_guide=compiler.compile)[0].token_ids == alone.token_ids


def test_json_object_is_an_object_or_cut_by_length(make, compiler):
    finished = 0
    for seed in range(12):
        request = wanted({"json_object": True}, temperature=1.5, seed=seed, max_tokens=150)
        (recorder,) = run(make(), ([3, 4], request), compile_guide=compiler.compile)
        if recorder.finish_reason == FinishReason.STOP:
            assert isinstance(json.loads(recorder.text), dict)
            finished += 1
        else:
            assert recorder.finish_reason == FinishReason.LENGTH
    assert finished


def test_white_space_in_json_comes_to_an_end(make, compiler, tokenizer):
    spaces = [tokenizer.encode_text(text)[0] for text in (" ", "\n")]
    request = wanted({"json": PERSON}, logit_bias=tuple((token, 50.0) for token in sorted(spaces)))
    (recorder,) = run(make(context_tokens=900), ([3, 4], request), compile_guide=compiler.compile)
    assert is_person(recorder.text)
    assert max(len(gap) for gap in re.findall(r"\s+", recorder.text)) == 64


def test_a_text_may_end_as_soon_as_it_is_whole(make, compiler):
    request = wanted({"regex": "a*"}, logit_bias=((END, 100.0),))
    (recorder,) = run(make(), ([3, 4], request), compile_guide=compiler.compile)
    assert (recorder.text, recorder.token_ids, recorder.finish_reason) == ("", [END], FinishReason.STOP)


@pytest.mark.parametrize(
    "changes", [{"ignore_eos": True}, {"min_tokens": 30}, {"min_tokens": 30, "ignore_eos": True}]
)
def test_a_complete_text_ends_whatever_else_was_asked_for(make, compiler, changes):
    (recorder,) = run(
        make(), ([3, 4], wanted({"choice": ["yes"]}, **changes)), compile_guide=compiler.compile
    )
    assert (recorder.text, recorder.finish_reason) == ("yes", FinishReason.STOP)
    assert END not in recorder.token_ids


def test_min_tokens_and_ignore_eos_keep_the_end_away_where_the_text_can_go_on(make, compiler):
    bias = ((END, 100.0),)
    request = wanted({"regex": "a*"}, min_tokens=5, logit_bias=bias)
    (recorder,) = run(make(), ([3, 4], request), compile_guide=compiler.compile)
    assert (recorder.text, len(recorder.token_ids)) == ("a" * len(recorder.text), 6)
    request = wanted({"regex": "a*"}, ignore_eos=True, logit_bias=bias, max_tokens=9)
    (recorder,) = run(make(), ([3, 4], request), compile_guide=compiler.compile)
    assert (recorder.finish_reason, len(recorder.token_ids)) == (FinishReason.LENGTH, 9)
    assert END not in recorder.token_ids


def test_a_stop_string_cuts_the_text(make, compiler):
    (recorder,) = run(
        make(), ([3, 4], wanted({"regex": "aaa-bbb"}, stop=("-",))), compile_guide=compiler.compile
    )
    assert (recorder.text, recorder.finish_reason) == ("aaa", FinishReason.STOP)
    assert recorder.chunks[-1].stop_reason == "-"


BAD = [
    ({"regex": "(a" + "b" * 500}, "structured_outputs.regex", "invalid regular expression: unclosed group"),
    ({"regex": "(?=a)b"}, "structured_outputs.regex", "look-around"),
    ({"grammar": "start: a"}, "structured_outputs.grammar", "unknown name"),
    ({"grammar": "start: x\nx: x"}, "structured_outputs.grammar", "no text matches"),
    ({"grammar": "start: " + "(" * 4000}, "structured_outputs.grammar", "too deeply nested"),
    ({"json": {"type": "person"}}, "structured_outputs.json", "Invalid type"),
    ({"json": {"not": {}}}, "structured_outputs.json", "Unimplemented"),
    ({"json": {"$ref": "http://127.0.0.1/schema"}}, "structured_outputs.json", "does not fetch"),
    ({"json": {"enum": []}}, "structured_outputs.json", "nsatisfiable"),
]


@pytest.mark.parametrize(("form", "param", "reason"), BAD)
def test_bad_grammars_are_named_with_the_reason(compiler, form, param, reason):
    with pytest.raises(RequestError) as raised:
        compiler.compile(parse_sampling({"structured_outputs": form}))
    assert (raised.value.code, raised.value.param) == (ErrorCode.INVALID_PARAMETER, param)
    assert raised.value.message.startswith(f"{param}: ")
    assert reason in raised.value.message
    assert "\n" not in raised.value.message
    assert len(raised.value.message) < 400


def test_a_grammar_that_grows_too_hard_fails_its_own_request(make, compiler):
    hard = "(.{0,3000}a){0,3000}"
    request = wanted({"regex": hard}, ignore_eos=True, temperature=2.0, seed=1, max_tokens=390)
    engine = make()
    recorders = run(engine, ([3, 4], request), *jobs({})[:4], compile_guide=compiler.compile)
    assert recorders[0].error is not None
    assert (recorders[0].error.code, recorders[0].error.param) == (
        ErrorCode.INVALID_PARAMETER,
        "structured_outputs.regex",
    )
    assert all(r.finish_reason == FinishReason.STOP for r in recorders[1:])


def test_no_form_needs_no_guide(compiler):
    assert compiler.compile(SamplingParams()) is None


def test_a_tokenizer_that_the_library_cannot_read_serves_other_requests():
    compiler = GuideCompiler(unigram().source, frozenset({1}), 78)
    assert compiler.compile(SamplingParams()) is None
    with pytest.raises(RequestError) as raised:
        compiler.compile(parse_sampling({"structured_outputs": {"regex": "a"}}))
    assert (raised.value.code, raised.value.param) == (ErrorCode.UNSUPPORTED_PARAMETER, "structured_outputs")


@pytest.mark.parametrize("rows", [-40, 0, 1000], ids=["fewer rows than tokens", "as many", "more"])
def test_only_tokens_with_logits_are_allowed(rows):
    kind = llama_metaspace()
    vocabulary = kind.library.get_vocab_size() + rows
    compiler = GuideCompiler(kind.source, frozenset({2}), vocabulary)
    guide = compiler.compile(parse_sampling({"structured_outputs": {"regex": "(.|\n)*"}}))
    allowed = guide.allowed()
    assert 100 < len(allowed) <= vocabulary
    assert allowed[-1] < min(vocabulary, kind.library.get_vocab_size())
    assert 2 in allowed


def test_the_choice_is_made_among_what_is_allowed(compiler, tokenizer):
    logits = np.random.default_rng(5).normal(0, 3, (1, tokenizer.vocab_size)).astype(np.float32)
    for sampling in (
        SamplingParams(temperature=0),
        SamplingParams(seed=1, top_k=50),
        SamplingParams(top_p=0.5),
    ):
        guide = compiler.compile(parse_sampling({"structured_outputs": {"regex": "[b-d]{9}"}}))
        allowed = guide.allowed()
        (tokens,) = sample(logits, [Draw(sampling, 1, 0, guide=guide)])
        assert tokens[0] in allowed
        if sampling.temperature == 0:
            assert tokens[0] == allowed[logits[0][allowed].argmax()]


def test_what_is_prepared_is_what_is_allowed(compiler):
    form = parse_sampling({"structured_outputs": {"json": PERSON}})
    eager, lazy = compiler.compile(form), compiler.compile(form)
    for _ in range(30):
        eager.prepare()
        assert eager.allowed().tolist() == lazy.allowed().tolist()
        token = int(lazy.allowed()[-1])
        eager.advance(token)
        lazy.advance(token)
        if lazy.is_complete:
            break
