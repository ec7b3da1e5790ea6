"""The APIs beside completions, with their official clients, against the default model in a real Triton."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel
from uzu_process import UzuServe

from uzu.settings import Settings

CAPITAL = "What is the capital of France?"
KEY = {"authorization": "Bearer secret"}


class Capital(BaseModel):
    city: str


@pytest.fixture(scope="module")
def served(
    uzu_command: list[str],
    settings: Settings,
    prepared_smollm2: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[UzuServe]:
    """An `uzu serve` with an administrator's key and a data folder of its own."""
    folder = tmp_path_factory.mktemp("apis")
    (folder / "key").write_text("secret\n")
    serve = UzuServe(
        uzu_command,
        settings,
        folder / "serve.log",
        *("--gateway-option", f"admin_key_file={folder / 'key'}"),
        *("--gateway-option", f"data_dir={folder / 'data'}"),
    )
    try:
        serve.wait_ready()
        yield serve
    finally:
        serve.close()


@pytest.fixture
def sdk(served: UzuServe) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_responses(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(model="smollm2", input=CAPITAL, temperature=0)
    assert "Paris" in first.output_text
    assert first.status == "completed"
    second = sdk.responses.create(
        model="smollm2", input="Which city did I ask for?", previous_response_id=first.id, temperature=0
    )
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens
    with sdk.responses.stream(model="smollm2", input=CAPITAL, temperature=0) as stream:
        pieces = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert len(pieces) > 3
    assert "".join(pieces) == final.output_text == first.output_text
    cut = sdk.responses.create(model="smollm2", input=CAPITAL, temperature=0, max_output_tokens=3)
    assert cut.incomplete_details is not None
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    parsed = sdk.responses.parse(
        model="smollm2", input=CAPITAL, text_format=Capital, temperature=0, max_output_tokens=60
    )
    assert isinstance(parsed.output_parsed, Capital)
    counted = sdk.responses.input_tokens.count(model="smollm2", input=CAPITAL)
    assert counted.input_tokens == first.usage.input_tokens


def test_a_background_response(sdk: openai.OpenAI) -> None:
    queued = sdk.responses.create(model="smollm2", input=CAPITAL, background=True, temperature=0)
    deadline = time.monotonic() + 60
    while (made := sdk.responses.retrieve(queued.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "Paris" in made.output_text
    endless: dict[str, Any] = {"ignore_eos": True}
    queued = sdk.responses.create(model="smollm2", input="1 2 3", background=True, extra_body=endless)
    time.sleep(0.5)
    assert sdk.responses.cancel(queued.id).status == "cancelled"


def test_truncation_drops_what_is_oldest(sdk: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "word " * 6000}, {"role": "assistant", "content": "yes"}] * 2
    items: Any = [*long, {"role": "user", "content": CAPITAL}]
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.responses.create(model="smollm2", input=items, max_output_tokens=20)
    assert raised.value.code == "context_length_exceeded"
    made = sdk.responses.create(
        model="smollm2", input=items, max_output_tokens=20, truncation="auto", temperature=0
    )
    assert made.usage is not None
    assert 6000 < made.usage.input_tokens <= 8192 - 20


def test_messages(served: UzuServe) -> None:
    messages: Any = [{"role": "user", "content": CAPITAL}]
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        greedy = {"temperature": 0}
        asked: dict[str, Any] = {"model": "smollm2", "max_tokens": 60, "messages": messages}
        asked["extra_body"] = greedy
        made = client.messages.create(**asked)
        assert made.content[0].type == "text"
        assert "Paris" in made.content[0].text
        assert made.stop_reason == "end_turn"
        with client.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == made.content[0].text
        total = made.usage.input_tokens + (made.usage.cache_read_input_tokens or 0)
        assert client.messages.count_tokens(model="smollm2", messages=messages).input_tokens == total
        stopped = client.messages.create(**asked, stop_sequences=["Paris"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "Paris")
        prefilled = client.messages.create(
            **{**asked, "messages": [*messages, {"role": "assistant", "content": "The capital of France is"}]}
        )
        assert prefilled.content[0].type == "text"
        assert prefilled.content[0].text.startswith(" Paris")
        with pytest.raises(anthropic.BadRequestError, match="context of 8192 tokens"):
            client.messages.create(**{**asked, "max_tokens": 9000})


def test_tokens(served: UzuServe) -> None:
    with httpx.Client(base_url=served.url) as client:
        made = client.post("/tokenize", json={"prompt": "Once upon a time", "return_token_strs": True}).json()
        assert (made["count"], made["max_model_len"]) == (4, 8192)
        assert made["token_strs"] == ["Once", "Ġupon", "Ġa", "Ġtime"]
        assert client.post("/detokenize", json={"tokens": made["tokens"]}).json() == {
            "prompt": "Once upon a time"
        }
        wrong = client.post("/detokenize", json={"tokens": [10**6]})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "tokens")
        (model,) = client.get("/v1/models").json()["data"]
        assert model["max_model_len"] == 8192
        assert model["capabilities"] == ["chat", "completion", "tokenize"]
        for path, body in (
            ("embeddings", {"input": "a"}),
            ("rerank", {"query": "a", "documents": ["b"]}),
            ("score", {"text_1": "a", "text_2": "b"}),
        ):
            assert client.post(f"/v1/{path}", json=body).json()["error"]["code"] == "unsupported_operation"


def test_a_batch(sdk: openai.OpenAI) -> None:
    lines = [
        {
            "custom_id": f"r{n}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": CAPITAL}], "temperature": 0, "max_tokens": 20},
        }
        for n in range(6)
    ]
    raw = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    stored = sdk.files.create(file=("in.jsonl", raw), purpose="batch")
    batch = sdk.batches.create(
        input_file_id=stored.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    deadline = time.monotonic() + 120
    while (batch := sdk.batches.retrieve(batch.id)).status != "completed":
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
    assert batch.output_file_id is not None
    answers = [json.loads(line) for line in sdk.files.content(batch.output_file_id).text.splitlines()]
    texts = {a["custom_id"]: a["response"]["body"]["choices"][0]["message"]["content"] for a in answers}
    assert set(texts) == {f"r{n}" for n in range(6)}
    assert len(set(texts.values())) == 1
    assert "Paris" in texts["r0"]


def test_models_are_unloaded_and_loaded(served: UzuServe) -> None:
    """server#7588: readiness and the list follow; and the supervisor takes it for no accident."""
    triton = served.pid_of("tritonserver")
    with httpx.Client(base_url=served.url, timeout=120) as client:
        assert client.post("/v1/models/smollm2/unload").status_code == 401
        assert client.post("/v1/models/smollm2/unload", headers=KEY).status_code == 200
        assert client.get("/v1/models").json()["data"] == []
        assert client.get("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
        # Longer than it takes to notice a stub that died.
        time.sleep(5)
        assert client.post("/v1/completions", json={"prompt": "a"}).status_code == 404
        assert client.post("/v1/models/smollm2/load", headers=KEY).status_code == 200
        assert client.get("/health/ready").status_code == 200
        made = client.post("/v1/completions", json={"prompt": "Once upon a time", "max_tokens": 3})
        assert made.status_code == 200
        assert client.post("/v1/models/other/load", headers=KEY).status_code == 404
    assert served.pid_of("tritonserver") == triton
