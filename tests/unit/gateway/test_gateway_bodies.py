from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.request import ChatPrompt, TextPrompt, TokenPrompt
from uzu_contract.sampling import SamplingParams
from uzu_contract.structured import OutputKind, StructuredOutputs
from uzu_gateway.engine.codec import OUTPUTS, chat_request, chat_requests, completion_plan, sampling_of
from uzu_gateway.schemas.chat import ChatRequest
from uzu_gateway.schemas.completions import CompletionRequest
from uzu_gateway.schemas.parse import parse_body
from uzu_gateway.schemas.refused import IGNORED, REFUSED

HELLO = [{"role": "user", "content": "hello"}]


def completion(**fields: Any) -> CompletionRequest:
    return parse_body({"prompt": "hello", **fields}, CompletionRequest, strict=True)[0]


def chat(**fields: Any) -> ChatRequest:
    return parse_body({"messages": HELLO, **fields}, ChatRequest, strict=True)[0]


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", (TextPrompt("a"),)),
        ("", (TextPrompt(""),)),
        (["a", "b"], (TextPrompt("a"), TextPrompt("b"))),
        ([1, 2], (TokenPrompt((1, 2)),)),
        ([[1], [2, 3]], (TokenPrompt((1,)), TokenPrompt((2, 3)))),
        (["a", [2]], (TextPrompt("a"), TokenPrompt((2,)))),
    ],
)
def test_prompts(given: Any, prompts: Any) -> None:
    plan = completion_plan(completion(prompt=given), max_prompts=8)
    assert tuple(request.prompt for request in plan.requests) == prompts
    assert all(request.outputs == OUTPUTS for request in plan.requests)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "prompt"),
        (1, "prompt"),
        ({}, "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([None], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([1, -1], "prompt[1]"),
        ([1, 2**31], "prompt[1]"),
        ([1, 1.5], "prompt[1]"),
        ([1.0], "prompt[0]"),
        ([True], "prompt[0]"),
        ([1, True], "prompt[1]"),
        ([[1, True]], "prompt[0][1]"),
    ],
)
def test_wrong_prompts(given: Any, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        completion(prompt=given)
    assert (raised.value.code, raised.value.param) == (ErrorCode.INVALID_PARAMETER, param)


def test_too_many_prompts() -> None:
    with pytest.raises(RequestError, match="at most 2 prompts, not 3"):
        completion_plan(completion(prompt=["a"] * 3), max_prompts=2)


def test_sampling_parameters_are_honoured() -> None:
    fields: dict[str, Any] = {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "typical_p": 0.9,
        "seed": -3,
        "stop": ["x", "y"],
        "stop_token_ids": [5],
        "ignore_eos": True,
        "min_tokens": 2,
        "bad_words": ["oh"],
    }
    lists = {"stop": ("x", "y"), "stop_token_ids": (5,), "bad_words": ("oh",)}
    expected = SamplingParams(**{**fields, **lists})
    assert sampling_of(completion(**fields)) == expected
    assert sampling_of(chat(**fields)) == expected


def test_null_is_the_default() -> None:
    names = set(CompletionRequest.model_fields) - {"prompt", "model"}
    assert sampling_of(completion(**dict.fromkeys(names))) == SamplingParams()


@pytest.mark.parametrize("stop", ["x", ["x"]])
def test_stop_is_a_string_or_a_list(stop: Any) -> None:
    assert sampling_of(completion(stop=stop)).stop == ("x",)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2**31}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"seed": 2**64}, "seed"),
        ({"stop": 1}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", 1]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop_token_ids": [1, "a"]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"stream": "true"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": 1}, "stream_options"),
        ({"model": 1}, "model"),
        ({"cache_salt": "x" * 257}, "cache_salt"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": [1]}, "bad_words[0]"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": 1}, "guided_regex"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 1}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]"),
        ({"guided_grammar": "x" * 9000}, "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}},
            "response_format.json_schema.strict",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "mode": 1}}},
            "response_format.json_schema.mode",
        ),
    ],
)
def test_wrong_fields_are_named(fields: dict[str, Any], param: str) -> None:
    for make in (
        lambda: completion_plan(completion(**fields), max_prompts=1),
        lambda: chat_requests(chat(**fields)),
    ):
        with pytest.raises(RequestError) as raised:
            make()
        assert (raised.value.code, raised.value.param) == (ErrorCode.INVALID_PARAMETER, param)
        assert raised.value.message.startswith(f"{param}")


def test_max_completion_tokens_is_max_tokens() -> None:
    assert sampling_of(chat(max_completion_tokens=4)).max_tokens == 4
    assert sampling_of(chat(max_completion_tokens=4, max_tokens=4)).max_tokens == 4


SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("fields", "kind", "source"),
    [
        ({"response_format": {"type": "json_object"}}, OutputKind.JSON_OBJECT, ""),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            OutputKind.JSON,
            json.dumps(SCHEMA, separators=(",", ":")),
        ),
        ({"guided_json": SCHEMA}, OutputKind.JSON, json.dumps(SCHEMA, separators=(",", ":"))),
        ({"guided_json": json.dumps(SCHEMA)}, OutputKind.JSON, json.dumps(SCHEMA, separators=(",", ":"))),
        ({"guided_regex": "a+"}, OutputKind.REGEX, "a+"),
        ({"guided_choice": ["a", "b"]}, OutputKind.CHOICE, ("a", "b")),
        ({"guided_grammar": 'start: "a"'}, OutputKind.GRAMMAR, 'start: "a"'),
        ({"structured_outputs": {"regex": "a+", "json": None}}, OutputKind.REGEX, "a+"),
        ({"response_format": {"type": "text"}, "guided_regex": "a+"}, OutputKind.REGEX, "a+"),
    ],
)
def test_forms_of_the_text(fields: dict[str, Any], kind: OutputKind, source: str | tuple[str, ...]) -> None:
    for body in (completion(**fields), chat(**fields)):
        assert sampling_of(body).structured_outputs == StructuredOutputs(kind, source)


def test_no_form_of_the_text() -> None:
    for fields in ({}, {"response_format": {"type": "text"}}, {"response_format": None}):
        assert sampling_of(chat(**fields)).structured_outputs is None


WRONG_VALUES: dict[str, Any] = {
    "tools": [{"type": "function"}],
    "tool_choice": "auto",
    "suffix": "end",
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_unsupported_fields_are_refused_by_name(name: str) -> None:
    for make in (completion, chat):
        with pytest.raises(RequestError) as raised:
            make(**{name: WRONG_VALUES[name]})
        assert (raised.value.code, raised.value.param) == (ErrorCode.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize("name", REFUSED)
def test_every_refused_field_refuses_something_and_accepts_its_neutral_values(name: str) -> None:
    with pytest.raises(RequestError) as raised:
        completion(**{name: "no neutral value is this"})
    assert (raised.value.code, raised.value.param) == (ErrorCode.UNSUPPORTED_PARAMETER, name)
    for value in REFUSED[name]:
        completion(**{name: value})


def test_one_is_not_true() -> None:
    for fields in ({"n": True}, {"logprobs": True}, {"use_beam_search": 0}):
        with pytest.raises(RequestError):
            completion(**fields)


@pytest.mark.parametrize("name", IGNORED)
def test_harmless_fields_are_accepted(name: str) -> None:
    assert parse_body({"prompt": "a", name: object()}, CompletionRequest, strict=True)[1] == 0


def test_no_field_is_in_two_lists() -> None:
    # What one route honours the other may refuse.
    honoured = set(CompletionRequest.model_fields) & set(ChatRequest.model_fields)
    assert not honoured & (set(REFUSED) | set(IGNORED))
    assert not set(REFUSED) & set(IGNORED)


def test_unknown_fields() -> None:
    raw = {"prompt": "a", "surprise": 1, "another": 2}
    assert parse_body(raw, CompletionRequest, strict=False)[1] == 2
    with pytest.raises(RequestError) as raised:
        parse_body(raw, CompletionRequest, strict=True)
    assert raised.value.param == "surprise"


def test_choices_have_consecutive_seeds_and_are_in_the_order_of_the_prompts() -> None:
    plan = completion_plan(completion(prompt=["a", "b"], n=3, best_of=3, seed=2**64 - 2), max_prompts=2)
    assert [request.prompt for request in plan.requests] == [TextPrompt("a")] * 3 + [TextPrompt("b")] * 3
    assert [request.sampling.seed for request in plan.requests] == [2**64 - 2, 2**64 - 1, 0] * 2
    assert [request.sampling.seed for request in chat_requests(chat(n=2))] == [None, None]


@pytest.mark.parametrize("count", [None, 0, 20])
def test_logprobs(count: int | None) -> None:
    (request,) = completion_plan(completion(logprobs=count), max_prompts=1).requests
    other = chat_request(chat(logprobs=count is not None, top_logprobs=count))
    for made in (request, other):
        assert made.sampling.logprobs == made.logprob_count == count
        assert ("logprobs" in made.outputs) == (count is not None)
    assert chat_request(chat(logprobs=True)).sampling.logprobs == 0


@pytest.mark.parametrize(
    ("make", "code", "param"),
    [
        (lambda: completion_plan(completion(logprobs=21), max_prompts=1), "invalid_parameter", "logprobs"),
        (
            lambda: completion_plan(completion(prompt_logprobs=1, stream=True), max_prompts=1),
            "unsupported_parameter",
            "prompt_logprobs",
        ),
        (
            lambda: completion_plan(completion(prompt_logprobs=-1, logprobs=3, echo=True), max_prompts=1),
            "invalid_parameter",
            "prompt_logprobs",
        ),
        (
            lambda: chat_requests(chat(prompt_logprobs=0, stream=True)),
            "unsupported_parameter",
            "prompt_logprobs",
        ),
        (lambda: completion(top_logprobs=1), "unsupported_parameter", "top_logprobs"),
        (lambda: chat_request(chat(top_logprobs=1)), "invalid_parameter", "top_logprobs"),
        (lambda: chat_request(chat(logprobs=True, top_logprobs=21)), "invalid_parameter", "top_logprobs"),
        (lambda: chat(logprobs=3), "invalid_parameter", "logprobs"),
    ],
)
def test_wrong_logprobs(make: Callable[[], object], code: str, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        make()
    assert (raised.value.code, raised.value.param) == (code, param)


def test_choices_are_bounded() -> None:
    with pytest.raises(RequestError) as raised:
        completion_plan(completion(prompt=["a"] * 9, n=128), max_prompts=9)
    assert (raised.value.code, raised.value.param) == (ErrorCode.INVALID_PARAMETER, "n")
    for fields in ({"n": 2, "best_of": 3}, {"best_of": 2}):
        with pytest.raises(RequestError) as raised:
            chat_requests(chat(**fields))
        assert (raised.value.code, raised.value.param) == (ErrorCode.UNSUPPORTED_PARAMETER, "best_of")
    for fields, code in (
        ({"n": 3, "best_of": 2}, ErrorCode.INVALID_PARAMETER),
        ({"best_of": 129}, ErrorCode.INVALID_PARAMETER),
        ({"best_of": 0}, ErrorCode.INVALID_PARAMETER),
        ({"prompt": ["a"] * 9, "best_of": 128}, ErrorCode.INVALID_PARAMETER),
        ({"best_of": 2, "stream": True}, ErrorCode.UNSUPPORTED_PARAMETER),
    ):
        with pytest.raises(RequestError) as raised:
            completion_plan(completion(**fields), max_prompts=9)
        assert (raised.value.code, raised.value.param) == (code, "best_of")
    completion_plan(completion(n=2, best_of=2, stream=True), max_prompts=1)


def test_candidates_are_scored_and_only_the_first_of_a_prompt_reports_on_it() -> None:
    fields: dict[str, Any] = {"prompt": ["a", "b"], "n": 1, "best_of": 2, "echo": True, "logprobs": 3}
    plan = completion_plan(completion(**fields, prompt_logprobs=1, seed=5), max_prompts=2)
    assert (plan.choices_per_prompt, plan.kept_per_prompt) == (2, 1)
    assert [request.sampling.seed for request in plan.requests] == [5, 6, 5, 6]
    assert [request.sampling.prompt_logprobs for request in plan.requests] == [3, None, 3, None]
    assert ["prompt_logprobs" in request.outputs for request in plan.requests] == [True, False] * 2
    unasked = completion_plan(completion(best_of=2), max_prompts=1).requests
    assert [(r.sampling.logprobs, r.logprob_count) for r in unasked] == [(None, 0)] * 2
    streamed = completion_plan(completion(echo=True, logprobs=0, n=2, stream=True), max_prompts=1).requests
    assert [request.prompt_logprob_count for request in streamed] == [0, 0]
    assert [r.prompt_logprob_count for r in chat_requests(chat(prompt_logprobs=2, n=2))] == [2, None]


def test_echo() -> None:
    plan = completion_plan(completion(prompt=["a", [1]], echo=True), max_prompts=2)
    assert plan.echoes == ("a", "")
    assert [request.echo_prompt for request in plan.requests] == [False, True]
    with pytest.raises(RequestError) as raised:
        completion_plan(completion(prompt=[1], echo=True, stream=True), max_prompts=1)
    assert (raised.value.code, raised.value.param) == (ErrorCode.UNSUPPORTED_PARAMETER, "echo")


def test_chat_prompt() -> None:
    prompt = chat_request(chat(chat_template_kwargs={"x": 1})).prompt
    assert prompt == ChatPrompt(tuple(HELLO), chat_template_kwargs={"x": 1})
    resumed = chat_request(chat(continue_final_message=True)).prompt
    assert isinstance(resumed, ChatPrompt)
    assert resumed.continue_final_message
    assert not resumed.add_generation_prompt


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": None}, "invalid_parameter", "messages"),
        ({"messages": []}, "invalid_parameter", "messages"),
        ({"messages": "hello"}, "invalid_parameter", "messages"),
        ({"messages": [1]}, "invalid_parameter", "messages[0]"),
        ({"messages": [*HELLO, {"role": 1, "content": "x"}]}, "invalid_parameter", "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "invalid_parameter", "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "unsupported_parameter",
            "messages[0].content[0]",
        ),
        ({"chat_template_kwargs": []}, "invalid_parameter", "chat_template_kwargs"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "invalid_parameter",
            "continue_final_message",
        ),
    ],
)
def test_wrong_chats(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(RequestError) as raised:
        chat_request(chat(**fields))
    assert (raised.value.code, raised.value.param) == (code, param)


def test_a_body_without_its_required_field() -> None:
    with pytest.raises(RequestError, match="prompt: is required"):
        parse_body({}, CompletionRequest, strict=False)
    with pytest.raises(RequestError, match="messages: is required"):
        parse_body({}, ChatRequest, strict=False)


def test_salt_and_trace_context_are_passed_on() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    request = chat_request(chat(cache_salt="s"), traceparent=trace)
    assert (request.cache_salt, request.traceparent) == ("s", trace)
    assert chat_request(chat(), traceparent="nonsense\n").traceparent is None
