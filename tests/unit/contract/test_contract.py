import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.logprobs import PromptLogprobs, ScoredToken, TokenLogprobs
from uzu_contract.request import (
    MAX_DEADLINE_MS,
    ChatPrompt,
    GenerateRequest,
    Operation,
    TextPrompt,
    TokenPrompt,
    decode_request,
    encode_request,
)
from uzu_contract.response import (
    FinishReason,
    GenerateChunk,
    ModelDetails,
    decode_chunk,
    encode_chunk,
    select_outputs,
)
from uzu_contract.sampling import NEUTRAL_VALUES, SamplingParams, parse_sampling
from uzu_contract.tensors import INPUTS, OUTPUT_NAMES, OUTPUTS, RETURN_FLAGS


def strings(value):
    return np.array([value.encode() if isinstance(value, str) else value], dtype=np.object_)


def decode(parameters=None, outputs=OUTPUT_NAMES, **tensors):
    return decode_request(tensors, parameters or {}, outputs)


prompts = st.one_of(
    st.builds(TextPrompt, st.text()),
    st.builds(TokenPrompt, st.lists(st.integers(0, 2**31 - 1), min_size=1).map(tuple)),
    st.builds(
        ChatPrompt,
        messages=st.lists(
            st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": st.text()}),
            min_size=1,
        ).map(tuple),
        chat_template_kwargs=st.dictionaries(st.text(), st.booleans()),
        add_generation_prompt=st.booleans(),
    ),
)
samplings = st.builds(
    SamplingParams,
    max_tokens=st.none() | st.integers(1, 999),
    temperature=st.just(0.0) | st.floats(1e-4, 100),
    top_p=st.floats(0.01, 1),
    top_k=st.integers(0, 99),
    typical_p=st.floats(0.01, 1),
    seed=st.none() | st.integers(0, 2**63),
    stop=st.lists(st.text(min_size=1), max_size=16).map(tuple),
    ignore_eos=st.booleans(),
    bad_words=st.lists(st.text(min_size=1), max_size=3).map(tuple),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.01, 2),
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100)).map(
        lambda biases: tuple(sorted(biases.items()))
    ),
    logprobs=st.none() | st.integers(0, 20),
    prompt_logprobs=st.none() | st.integers(0, 20),
)
scored_tokens = st.builds(
    ScoredToken, st.integers(0, 2**31), st.binary(max_size=9), st.floats(-9999, 0), st.integers(1, 99)
)
places = st.builds(TokenLogprobs, scored_tokens, st.lists(scored_tokens, max_size=3).map(tuple))


@given(
    prompts,
    samplings,
    st.sets(st.sampled_from(OUTPUT_NAMES[:-1])),
    st.integers(-1000, 1000),
    st.none() | st.integers(0, 10**6) | st.just(MAX_DEADLINE_MS),
    st.text(max_size=9),
)
def test_requests_survive_the_wire(prompt, sampling, outputs, priority, deadline_ms, salt):
    asked = [name for name in ("logprobs", "prompt_logprobs") if getattr(sampling, name) is not None]
    request = GenerateRequest(
        prompt=prompt,
        sampling=sampling,
        stream=True,
        outputs=frozenset({"text_output", *outputs, *asked}),
        priority=priority,
        deadline_ms=deadline_ms,
        cache_salt=salt,
    )
    tensors, parameters = encode_request(request)
    assert decode_request(tensors, parameters, request.outputs) == request
    known = {spec.name: spec for spec in INPUTS}
    assert set(tensors) <= set(known)


@given(
    st.text(),
    st.lists(st.integers(0, 2**31 - 1)).map(tuple),
    st.none() | st.sampled_from(FinishReason),
    st.none() | st.text(min_size=1),
    st.none() | st.lists(places, max_size=3).map(tuple),
    st.none()
    | st.builds(
        PromptLogprobs, st.integers(0, 2**31), st.binary(max_size=9), st.lists(places, max_size=3).map(tuple)
    ),
)
def test_responses_survive_the_wire(text, token_ids, finish, stop, logprobs, prompt_logprobs):
    chunk = GenerateChunk(
        text=text,
        token_ids=token_ids,
        finish_reason=finish,
        stop_reason=stop,
        num_input_tokens=7,
        num_cached_tokens=3,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        perf_metrics={"queue_ms": 1.5},
    )
    arrays = encode_chunk(chunk, OUTPUT_NAMES)
    assert decode_chunk(arrays) == chunk
    kinds = {"BYTES": np.object_, "INT32": np.int32, "UINT32": np.uint32}
    for spec in OUTPUTS:
        if spec.name in arrays:
            assert arrays[spec.name].dtype == kinds[spec.datatype], spec.name


def test_outputs_are_sent_when_named_or_flagged():
    assert select_outputs(OUTPUT_NAMES, []) == {"text_output"}
    assert select_outputs(OUTPUT_NAMES, ["finish_reason"]) == {"text_output", "finish_reason"}
    assert select_outputs(["token_ids"], []) == {"text_output", "token_ids"}
    for flag, output in RETURN_FLAGS.items():
        assert output in decode(text_input=strings("a"), **{flag: np.array([True])}).outputs


def test_logprobs_are_asked_for_by_parameter_or_output():
    by_parameter = decode(
        text_input=strings("a"), sampling_parameters=strings('{"logprobs": 3}'), outputs=["text_output"]
    )
    by_output = decode(text_input=strings("a"), outputs=["text_output", "logprobs"])
    by_flag = decode(text_input=strings("a"), return_logprobs=np.array([True]))
    assert [r.logprob_count for r in (by_parameter, by_output, by_flag)] == [3, 0, 0]
    assert all("logprobs" in r.outputs for r in (by_parameter, by_output, by_flag))
    assert decode(text_input=strings("a")).logprob_count is None


def test_logprobs_are_json_for_people_and_programs():
    place = TokenLogprobs(ScoredToken(7, "é".encode()[:1], -0.25, 2), (ScoredToken(5, b"a", -0.125, 1),))
    arrays = encode_chunk(GenerateChunk(text="", logprobs=(place,)), OUTPUT_NAMES)
    best = {"token_id": 5, "token": "a", "bytes": [97], "logprob": -0.125, "rank": 1}
    chosen = {"token_id": 7, "token": "\ufffd", "bytes": [195], "logprob": -0.25, "rank": 2}
    assert json.loads(arrays["logprobs"][0]) == [{**chosen, "top": [best]}]


def test_those_of_a_prompt_begin_with_a_token_that_has_none():
    prompt = PromptLogprobs(5, b"a", (TokenLogprobs(ScoredToken(7, b"b", -0.25, 1)),))
    arrays = encode_chunk(GenerateChunk(text="", prompt_logprobs=prompt), OUTPUT_NAMES)
    first = {"token_id": 5, "token": "a", "bytes": [97], "logprob": None, "rank": None, "top": []}
    second = {"token_id": 7, "token": "b", "bytes": [98], "logprob": -0.25, "rank": 1, "top": []}
    assert json.loads(arrays["prompt_logprobs"][0]) == [first, second]
    asked = strings('{"prompt_logprobs": 3}')
    by_parameter = decode(text_input=strings("a"), sampling_parameters=asked, outputs=["text_output"])
    by_flag = decode(text_input=strings("a"), return_prompt_logprobs=np.array([True]))
    assert [r.prompt_logprob_count for r in (by_parameter, by_flag)] == [3, 0]
    assert all("prompt_logprobs" in r.outputs for r in (by_parameter, by_flag))
    assert decode(text_input=strings("a")).prompt_logprob_count is None


def test_text_prompts_echo_unless_told_or_streaming():
    text = strings("a")
    assert decode(text_input=text).echo_prompt
    assert not decode(text_input=text, stream=np.array([True])).echo_prompt
    assert not decode(text_input=text, exclude_input_in_output=np.array([True])).echo_prompt
    assert not decode(input_ids=np.array([1], np.int32)).echo_prompt
    with pytest.raises(RequestError, match="exclude_input_in_output"):
        decode(text_input=text, stream=np.array([True]), exclude_input_in_output=np.array([False]))


MESSAGES = json.dumps({"messages": [{"role": "user", "content": "hi"}]})


@pytest.mark.parametrize(
    ("tensors", "code", "param"),
    [
        ({}, "invalid_request", None),
        ({"text_input": strings("a"), "messages": strings(MESSAGES)}, "invalid_request", None),
        ({"text_input": strings(b"\xff")}, "invalid_parameter", "text_input"),
        ({"text_input": np.array([], dtype=np.object_)}, "invalid_parameter", "text_input"),
        ({"unknown": strings("a")}, "invalid_parameter", "unknown"),
        ({"text_input": strings("a"), "operation": strings("embed")}, "invalid_parameter", "operation"),
        ({"text_input": strings("a"), "operation": strings("fly")}, "invalid_parameter", "operation"),
        (
            {"text_input": strings("a"), "sampling_parameters": strings("{")},
            "invalid_parameter",
            "sampling_parameters",
        ),
        (
            {"text_input": strings("a"), "sampling_parameters": strings("[]")},
            "invalid_parameter",
            "sampling_parameters",
        ),
        (
            {"text_input": strings("a"), "sampling_parameters": strings('{"tempo": 1}')},
            "invalid_parameter",
            "tempo",
        ),
        ({"messages": strings("[" * 100_000)}, "invalid_parameter", "messages"),
        ({"messages": strings('{"messages": []}')}, "invalid_parameter", "messages"),
        ({"messages": strings('{"messages": [3]}')}, "invalid_parameter", "messages[0]"),
        (
            {"messages": strings('{"messages": [{"role": "user"}]}')},
            "invalid_parameter",
            "messages[0].content",
        ),
        ({"messages": strings('{"messages": [{"content": "a"}]}')}, "invalid_parameter", "messages[0].role"),
        (
            {"messages": strings('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}')},
            "unsupported_parameter",
            "messages[0].content[0]",
        ),
    ],
)
def test_bad_requests_name_the_field(tensors, code, param):
    with pytest.raises(RequestError) as caught:
        decode(**tensors)
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize(
    ("parameters", "param"),
    [
        ({"uzu_priority": "high"}, "uzu_priority"),
        ({"uzu_priority": True}, "uzu_priority"),
        ({"uzu_priority": 10**9}, "uzu_priority"),
        ({"uzu_deadline_ms": -1}, "uzu_deadline_ms"),
        ({"uzu_deadline_ms": 2**53}, "uzu_deadline_ms"),
        ({"uzu_cache_salt": 3}, "uzu_cache_salt"),
    ],
)
def test_bad_request_parameters_are_named(parameters, param):
    with pytest.raises(RequestError) as caught:
        decode(parameters, text_input=strings("a"))
    assert caught.value.param == param


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = decode(messages=strings(json.dumps({"messages": [{"role": "user", "content": parts}]})))
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.messages[0]["content"] == "ab"


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**64}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"n": 2}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 2.1}, "repetition_penalty"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"1": None}}, "logit_bias"),
        ({"logit_bias": {"1": 5, "01": 5}}, "logit_bias"),
        ({"bad_words": ["x", ""]}, "bad_words"),
        ({"bad_words": ["x"] * 1025}, "bad_words"),
        ({"bad_words": 3}, "bad_words"),
        ({"structured_outputs": 1}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json": [1]}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"enum": [float("nan")]}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": {"enum": ["x" * 131_072]}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": '{"a":' * 65 + "1" + "}" * 65}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "\ud800"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a" * 8193}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": "ab"}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a", ""]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a"] * 1001}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": ["a" * 20_000] * 2}}, "structured_outputs.choice"),
        ({"structured_outputs": {"Regex": "a"}}, "structured_outputs.Regex"),
    ],
)
def test_bad_sampling_parameters_are_named(raw, param):
    with pytest.raises(RequestError) as caught:
        parse_sampling(raw)
    assert caught.value.param == param
    assert param in caught.value.message


@pytest.mark.parametrize(
    "raw",
    [
        {"json": '{"type":"object","properties":{"b":{},"a":{}}}'},
        {"json": '{"a":' * 63 + "{}" + "}" * 63},
        {"json_object": True},
        {"regex": "a+"},
        {"choice": ["a", "ä"]},
        {"grammar": 'start: "a"'},
    ],
)
def test_structured_outputs_are_kept(raw):
    sampling = parse_sampling({"structured_outputs": raw | {"regex": raw.get("regex")}})
    assert sampling.to_json_object() == {"structured_outputs": raw}


def test_neutral_and_null_values_ask_for_nothing():
    neutral = {name: values[0] for name, values in NEUTRAL_VALUES.items()}
    assert parse_sampling(neutral | {"temperature": None, "top_k": -1}) == SamplingParams()
    assert parse_sampling({"temperature": 1e-46}) == SamplingParams(temperature=0)


@given(st.sampled_from(ErrorCode), st.text(), st.none() | st.from_regex(r"[a-z_\[\]0-9.]+", fullmatch=True))
def test_errors_survive_the_wire(code, message, param):
    error = RequestError(code, message, param)
    decoded = RequestError.from_wire("[StatusCode.INTERNAL] " + error.to_wire())
    assert decoded is not None
    assert decoded.code is code
    assert decoded.message.endswith(message)
    if param is None or "]" not in param:
        assert decoded.param == param


def test_foreign_errors_are_not_ours():
    assert RequestError.from_wire("Stub process is not healthy.") is None
    assert RequestError.from_wire("nice try [uzu:root_access]") is None


@pytest.mark.parametrize(
    ("operation", "prompt"),
    [
        (Operation.TOKENIZE, TextPrompt("a b")),
        (Operation.TOKENIZE, ChatPrompt(({"role": "user", "content": "x"},))),
        (Operation.DETOKENIZE, TokenPrompt((1, 2))),
        (Operation.DESCRIBE, TextPrompt("")),
    ],
)
@pytest.mark.parametrize("special", [True, False])
def test_questions_travel(operation, prompt, special):
    request = GenerateRequest(
        prompt=prompt, operation=operation, add_special_tokens=special, priority=3, cache_salt="s"
    )
    tensors, parameters = encode_request(request)
    decoded = decode_request(tensors, parameters, OUTPUT_NAMES)
    expected = {"text_output", "token_ids", "finish_reason", "num_input_tokens", "details"}
    assert decoded.outputs == expected
    assert decoded == replace(request, outputs=decoded.outputs)


@pytest.mark.parametrize(
    ("tensors", "param"),
    [
        ({"operation": strings("tokenize")}, "operation"),
        ({"operation": strings("tokenize"), "input_ids": np.array([1], np.int32)}, "operation"),
        ({"operation": strings("detokenize"), "text_input": strings("a")}, "operation"),
        ({"operation": strings("describe"), "text_input": strings("a")}, "operation"),
        (
            {"operation": strings("tokenize"), "text_input": strings("a"), "stream": np.array([True])},
            "stream",
        ),
    ],
)
def test_questions_with_a_wrong_prompt(tensors, param):
    with pytest.raises(RequestError) as raised:
        decode_request(tensors, {}, OUTPUT_NAMES)
    assert raised.value.param == param


def test_details_travel():
    details = ModelDetails(
        context_tokens=9, operations=("generate",), has_chat_template=True, tokens=("a", "\u0120b")
    )
    for sent in (details, replace(details, tokens=None)):
        chunk = GenerateChunk(text="x", details=sent)
        assert decode_chunk(encode_chunk(chunk, {"text_output", "details"})).details == sent
    assert "details" not in encode_chunk(GenerateChunk(text="x"), OUTPUT_NAMES)
