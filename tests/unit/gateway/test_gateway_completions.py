from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.logprobs import ScoredToken, TokenLogprobs
from uzu_contract.request import GenerateRequest, TextPrompt, TokenPrompt
from uzu_contract.response import FinishReason, GenerateChunk
from uzu_gateway.engine.fake import FakeBehaviour, FakeEngine, token_id
from uzu_gateway.engine.port import EngineFaultError

URL = "/v1/completions"
Events = Callable[[str], list[Any]]


async def test_one_prompt(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    response = await client.post(URL, json={"prompt": "Once upon a time", "model": "fake"})
    body = response.json()
    assert response.status_code == 200
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["model"] == "fake"
    assert isinstance(body["created"], int)
    assert body["system_fingerprint"] is None
    assert body["choices"] == [
        {"index": 0, "text": "Once upon a time", "logprobs": None, "finish_reason": "stop"}
    ]
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 4,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    model, request, request_id = engine.requests[0]
    assert (model, request.prompt, request.stream) == ("fake", TextPrompt("Once upon a time"), False)
    assert request_id == response.headers["x-request-id"]


async def test_max_tokens_is_a_length_stop(client: httpx.AsyncClient) -> None:
    body = (await client.post(URL, json={"prompt": "a b c d", "max_tokens": 3})).json()
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("a b c", "length")
    assert body["usage"]["completion_tokens"] == 3


async def test_prompts_of_every_form_are_indexed(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = (await client.post(URL, json={"prompt": ["a b", [7, 8], "c"]})).json()
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "a b"),
        (1, " 7 8"),
        (2, "c"),
    ]
    assert body["usage"]["total_tokens"] == 10
    identities = {request_id for _, _, request_id in engine.requests}
    assert len(identities) == 3
    assert engine.requests[1][1].prompt == TokenPrompt((7, 8))


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_of_prompts(client: httpx.AsyncClient, events: Events, stream: bool) -> None:
    body = {"prompt": ["a b", "c d e"], "n": 2, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
        *chunks, last, _ = events((await client.post(URL, json=body)).text)
        texts = ["", "", "", ""]
        for chunk in chunks:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        usage = last["usage"]
        indices = [chunk["choices"][0]["index"] for chunk in chunks]
        assert indices != sorted(indices)
    else:
        answer = (await client.post(URL, json=body)).json()
        texts = [choice["text"] for choice in answer["choices"]]
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        usage = answer["usage"]
    assert texts == ["a b", "a b", "c d e", "c d e"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 10)


async def test_logprobs_of_a_completion(client: httpx.AsyncClient, events: Events) -> None:
    body = {"prompt": "Gr\u00fc\u00dfe an alle", "logprobs": 2}
    choice = (await client.post(URL, json=body)).json()["choices"][0]
    logprobs = choice["logprobs"]
    half, quarter = pytest.approx(math.log(0.5)), pytest.approx(math.log(0.25))
    assert logprobs == {
        "tokens": ["Gr\u00fc\u00dfe", " an", " alle"],
        "token_logprobs": [half, half, half],
        "top_logprobs": [{word: half, word + "'": quarter} for word in ("Gr\u00fc\u00dfe", " an", " alle")],
        "text_offset": [0, 5, 8],
    }
    streamed: dict[str, list[Any]] = {name: [] for name in logprobs}
    for chunk in events((await client.post(URL, json={**body, "stream": True})).text)[:-1]:
        for name, values in chunk["choices"][0]["logprobs"].items():
            streamed[name] += values
    assert streamed == logprobs
    only = (await client.post(URL, json={**body, "logprobs": 0})).json()["choices"][0]["logprobs"]
    assert only["top_logprobs"][1] == {" an": half}


async def test_echo_has_the_logprobs_of_the_prompt(client: httpx.AsyncClient, events: Events) -> None:
    body = {"prompt": "Gr\u00fc\u00dfe an alle", "logprobs": 1, "echo": True, "max_tokens": 2, "n": 2}
    answer = (await client.post(URL, json=body)).json()
    half = pytest.approx(math.log(0.5))
    for choice in answer["choices"]:
        assert choice["text"] == "Gr\u00fc\u00dfe an alleGr\u00fc\u00dfe an"
        assert choice["logprobs"] == {
            "tokens": ["Gr\u00fc\u00dfe", " an", " alle", "Gr\u00fc\u00dfe", " an"],
            "token_logprobs": [None, half, half, half, half],
            "top_logprobs": [None, *({word: half} for word in (" an", " alle", "Gr\u00fc\u00dfe", " an"))],
            "text_offset": [0, 5, 8, 13, 18],
        }
        assert "prompt_logprobs" not in choice
    streamed: list[dict[str, list[Any]]] = [{name: [] for name in choice["logprobs"]} for _ in range(2)]
    for chunk in events((await client.post(URL, json={**body, "stream": True})).text)[:-1]:
        for name, values in chunk["choices"][0]["logprobs"].items():
            streamed[chunk["choices"][0]["index"]][name] += values
    assert streamed == [choice["logprobs"] for choice in answer["choices"]]
    tokens = (await client.post(URL, json={**body, "prompt": [7, 8], "n": 1})).json()["choices"][0]
    assert tokens["logprobs"]["tokens"] == [" 7", " 8", " 7", " 8"]
    assert tokens["logprobs"]["text_offset"] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("fields", "shown"), [({}, 2), ({"echo": True, "logprobs": 5}, 2), ({"n": 2, "best_of": 3}, 2)]
)
async def test_logprobs_of_prompts(client: httpx.AsyncClient, fields: dict[str, Any], shown: int) -> None:
    body = {"prompt": ["a b", "c d"], "prompt_logprobs": shown, **fields}
    choices = (await client.post(URL, json=body)).json()["choices"]
    assert len(choices) == 2 * fields.get("n", 1)
    for choice, word in zip(choices, sorted([" b", " d"] * fields.get("n", 1)), strict=True):
        nothing, place = choice["prompt_logprobs"]
        assert nothing is None
        assert [entry["decoded_token"] for entry in place.values()] == [word, word + "'"]
        assert place[str(token_id(word))] == {
            "logprob": pytest.approx(math.log(0.5)),
            "rank": 1,
            "decoded_token": word,
        }
        assert (choice["logprobs"] is None) == ("logprobs" not in fields)


class Unequal(FakeEngine):
    """Answers whose likelihood is told by their seed: of three the second is the likeliest."""

    async def generate(
        self, model: str, request: GenerateRequest, request_id: str
    ) -> AsyncGenerator[GenerateChunk, None]:
        seed = request.sampling.seed or 0
        async for chunk in super().generate(model, request, request_id):
            count = 1 + seed % 3
            chosen = ScoredToken(seed, b"x", (-3.0, -1.0, -2.0)[seed % 3], 1)
            places = (TokenLogprobs(chosen),) * count
            asked = request.logprob_count is not None
            yield replace(
                chunk, text=f"{seed}", token_ids=(seed,) * count, logprobs=places if asked else None
            )


async def test_the_best_by_mean_logprob(open_client: Any) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "best_of": 3, "seed": 0}
    async with open_client(Unequal()) as client:
        answer = (await client.post(URL, json=body)).json()
        with_logprobs = (await client.post(URL, json={**body, "logprobs": 0})).json()
        all_of_them = (await client.post(URL, json={**body, "n": 3})).json()
    assert [(c["index"], c["text"], c["logprobs"]) for c in answer["choices"]] == [
        (0, "1", None),
        (1, "2", None),
        (2, "1", None),
        (3, "2", None),
    ]
    # All that were made are counted, as OpenAI does.
    assert answer["usage"]["completion_tokens"] == 2 * (1 + 2 + 3)
    assert answer["usage"]["prompt_tokens"] == 2
    assert [c["logprobs"]["token_logprobs"] for c in with_logprobs["choices"]] == [[-1.0] * 2, [-2.0] * 3] * 2
    assert [c["text"] for c in all_of_them["choices"]] == ["0", "1", "2"] * 2


async def test_prompts_run_at_once(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(first_chunk_delay_s=0.2)
    response = await client.post(URL, json={"prompt": ["x"] * 20})
    assert response.elapsed.total_seconds() < 2
    assert len(response.json()["choices"]) == 20


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_cancels_the_siblings(
    open_client: Any, assert_error: Callable[..., Any], stream: bool
) -> None:
    too_long = RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "text_input: too long", "text_input")

    class OneFails(FakeEngine):
        def behaviour_for(self, request: GenerateRequest) -> FakeBehaviour:
            if request.prompt == TextPrompt("bad"):
                return FakeBehaviour(failure=too_long)
            return FakeBehaviour(chunk_delay_s=30)

    engine = OneFails()
    async with open_client(engine) as client:
        response = await client.post(URL, json={"prompt": ["a b c", "bad", "d e f"], "stream": stream})
    assert_error(response, 400, "context_length_exceeded", "prompt")
    assert (engine.started, engine.failed, engine.cancelled, engine.running) == (3, 1, 2, 0)


@pytest.mark.parametrize("prompt", ["a b c", ["a b", "c d e", "f"], [1, 2, 3]])
@pytest.mark.parametrize("fields", [{}, {"max_tokens": 2}, {"stop": "b"}])
async def test_a_stream_is_the_text_in_pieces(
    client: httpx.AsyncClient, events: Events, prompt: Any, fields: dict[str, Any]
) -> None:
    whole = (await client.post(URL, json={"prompt": prompt, **fields})).json()
    response = await client.post(URL, json={"prompt": prompt, "stream": True, **fields})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        assert [piece["finish_reason"] for piece in own] == [None] * (len(own) - 1) + [
            choice["finish_reason"]
        ]


async def test_usage_in_a_stream_comes_last_and_only_on_demand(
    client: httpx.AsyncClient, events: Events
) -> None:
    plain = events((await client.post(URL, json={"prompt": "a b", "stream": True})).text)
    assert all("usage" not in chunk for chunk in plain[:-1])
    body = {"prompt": ["a b", "c"], "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last, done = events((await client.post(URL, json=body)).text)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == (await client.post(URL, json={"prompt": ["a b", "c"]})).json()["usage"]


async def test_echo_streamed_or_not(client: httpx.AsyncClient, engine: FakeEngine, events: Events) -> None:
    engine.behaviour = FakeBehaviour(reply=" there was")
    body = {"prompt": ["Once", "Twice"], "echo": True}
    whole = (await client.post(URL, json=body)).json()
    assert [choice["text"] for choice in whole["choices"]] == ["Once there was", "Twice there was"]
    chunks = events((await client.post(URL, json={**body, "stream": True})).text)[:-1]
    first = "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == 0)
    assert first == "Once there was"
    tokens = (await client.post(URL, json={"prompt": [1, 2], "echo": True})).json()
    assert tokens["choices"][0]["text"] == " 1 2 there was"


async def test_an_empty_answer_is_an_answer(
    client: httpx.AsyncClient, engine: FakeEngine, events: Events
) -> None:
    engine.behaviour = FakeBehaviour(reply="")
    body = (await client.post(URL, json={"prompt": "a"})).json()
    assert (body["choices"][0]["text"], body["choices"][0]["finish_reason"]) == ("", "stop")
    chunk, done = events((await client.post(URL, json={"prompt": "a", "stream": True})).text)
    assert (chunk["choices"][0]["finish_reason"], done) == ("stop", "[DONE]")


@pytest.mark.parametrize(
    "failure", [EngineFaultError("secret"), RequestError(ErrorCode.ENGINE_FAILED, "engine died")]
)
async def test_a_failure_in_a_stream_ends_it_without_done(
    client: httpx.AsyncClient, engine: FakeEngine, events: Events, failure: Exception
) -> None:
    engine.behaviour = FakeBehaviour(failure=failure, failure_after=2)
    response = await client.post(URL, json={"prompt": "a b c", "stream": True})
    assert response.status_code == 200
    *chunks, last = events(response.text)
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a", " b"]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    assert set(last) == {"error"}
    assert last["error"]["code"] in ("upstream_error", "engine_failed")
    assert "secret" not in response.text


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR, None])
async def test_an_end_that_is_none_is_a_failure(
    client: httpx.AsyncClient,
    engine: FakeEngine,
    events: Events,
    assert_error: Callable[..., Any],
    reason: FinishReason | None,
) -> None:
    engine.behaviour = FakeBehaviour(finish_reason=reason)
    assert_error(await client.post(URL, json={"prompt": "a b"}), 502, "upstream_error")
    last = events((await client.post(URL, json={"prompt": "a b", "stream": True})).text)[-1]
    assert last["error"]["code"] == "upstream_error"


async def test_fields_that_others_know_are_no_error(client: httpx.AsyncClient) -> None:
    body = {
        "prompt": "a",
        "service_tier": "auto",
        "store": True,
        "metadata": {"a": "b"},
        "user": "u",
        "top_k": 5,
        "surprise": [1],
    }
    assert (await client.post(URL, json=body)).status_code == 200
    metrics = (await client.get("/metrics")).text
    assert "uzu_gateway_unknown_fields_total 1.0" in metrics
    assert "surprise" not in metrics


async def test_a_large_prompt_passes(client: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.behaviour = FakeBehaviour(reply="ok")
    text = "x" * (20 << 20)
    response = await client.post(URL, json={"prompt": text})
    assert response.status_code == 200
    assert engine.requests[0][1].prompt == TextPrompt(text)
