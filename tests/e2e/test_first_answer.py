"""What the README promises a newcomer, against the default model."""

import json
import re
import subprocess
from typing import Any

import openai
from uzu_process import UzuServe

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


def curl(served: UzuServe, path: str, body: dict[str, Any]) -> dict[str, Any]:
    result = subprocess.run(
        [
            *("curl", "--silent", "--show-error", "--fail-with-body", "--noproxy", "*"),
            *(f"{served.url}{path}", "-H", "Content-Type: application/json", "-d", json.dumps(body)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr + result.stdout
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_curl_completes_a_prompt_without_naming_a_model(served: UzuServe) -> None:
    answer = curl(served, "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 100})
    assert answer["object"] == "text_completion"
    assert answer["model"] == "smollm2"
    choice = answer["choices"][0]
    assert choice["text"]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 100 or choice["finish_reason"] == "stop"


def test_the_printed_curl_works(served: UzuServe) -> None:
    printed = re.findall(r"^  (curl .*)$", served.log, re.MULTILINE)
    answers = []
    for command in printed:
        result = subprocess.run(
            ["bash", "-c", f"{command} --silent --fail-with-body --noproxy '*'"],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        answers.append(json.loads(result.stdout)["choices"][0])
    completion, chat = answers
    assert completion["text"]
    assert "Paris" in chat["message"]["content"]


def test_the_capital_of_france(served: UzuServe) -> None:
    answer = curl(served, "/v1/chat/completions", {"messages": QUESTION, "temperature": 0})
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_the_official_client(served: UzuServe) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["smollm2"]
        whole = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0)
        text = whole.choices[0].message.content
        assert text is not None
        assert "Paris" in text
        stream = client.chat.completions.create(
            model="smollm2",
            messages=QUESTION,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert len(pieces) > 3
    assert "".join(pieces) == text
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


async def test_the_official_asynchronous_client(served: UzuServe) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.completions.create(
            model="smollm2", prompt="The capital of France is", max_tokens=8, temperature=0
        )
        stream = await client.completions.create(
            model="smollm2", prompt="The capital of France is", max_tokens=8, temperature=0, stream=True
        )
        pieces = [chunk.choices[0].text async for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].text
    assert "Paris" in whole.choices[0].text


def test_health_and_metrics(served: UzuServe) -> None:
    for path in ("/health/live", "/health/ready", "/metrics"):
        assert served.get(path) == 200


def test_output_that_goes_to_a_file_has_no_control_characters(served: UzuServe) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", served.log)
    assert re.search(r"^triton  \| ", served.log, re.MULTILINE)
    assert re.search(r"^gateway \| ", served.log, re.MULTILINE)
