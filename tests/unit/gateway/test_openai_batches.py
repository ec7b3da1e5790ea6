"""The official OpenAI client on files and batches; and a gateway that is killed in the middle of one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from uzu.ports import free_ports

ROOT = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 30


def requests(count: int) -> bytes:
    return b"".join(
        json.dumps(
            {
                "custom_id": f"r{n}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "fake", "messages": [{"role": "user", "content": f"word{n}"}]},
            }
        ).encode()
        + b"\n"
        for n in range(count)
    )


async def test_a_batch_from_its_file_to_its_results(live: Callable[..., Any], tmp_path: Path) -> None:
    gateway = live(data_dir=tmp_path / "data")
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as sdk:
        stored = await sdk.files.create(file=("in.jsonl", requests(5)), purpose="batch")
        assert (await sdk.files.retrieve(stored.id)).filename == "in.jsonl"
        batch = await sdk.batches.create(
            input_file_id=stored.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"a": "b"},
        )
        for _ in range(500):
            batch = await sdk.batches.retrieve(batch.id)
            if batch.status == "completed":
                break
            await asyncio.sleep(0.01)
        assert batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (5, 0)
        assert batch.output_file_id is not None
        text = (await sdk.files.content(batch.output_file_id)).text
        answers = {
            item["custom_id"]: item["response"]["body"]["choices"][0]["message"]["content"]
            for item in map(json.loads, text.splitlines())
        }
        assert answers == {f"r{n}": f"word{n}" for n in range(5)}
        assert [item.id async for item in sdk.batches.list()] == [batch.id]
        purposes = [item.purpose async for item in sdk.files.list()]
        assert sorted(purposes) == ["batch", "batch_output"]
        assert (await sdk.files.delete(stored.id)).deleted
        with pytest.raises(openai.BadRequestError):
            await sdk.batches.cancel(batch.id)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Callable[[], tuple[subprocess.Popen[bytes], str]]]:
    """Start a gateway of its own process over one data folder."""
    running: list[subprocess.Popen[bytes]] = []
    path = os.pathsep.join([str(ROOT / "gateway"), str(ROOT / "python_backends")])

    def start() -> tuple[subprocess.Popen[bytes], str]:
        port = free_ports(1)[0]
        arguments = ["--engine", "fake", "--port", str(port), "--log-level", "warning"]
        arguments += ["--data-dir", str(tmp_path / "data"), "--batch-concurrency", "2"]
        process = subprocess.Popen(
            [sys.executable, "-m", "uzu_gateway", *arguments],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        running.append(process)
        return process, f"http://127.0.0.1:{port}/v1"

    yield start
    for process in running:
        process.kill()
        process.wait(timeout=10)


def connect(url: str) -> openai.OpenAI:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            client.models.list()
        except openai.APIConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return client


def test_a_killed_gateway_goes_on_with_its_batch(gateway: Any, tmp_path: Path) -> None:
    count = 1500
    process, url = gateway()
    with connect(url) as sdk:
        stored = sdk.files.create(file=("in.jsonl", requests(count)), purpose="batch")
        batch = sdk.batches.create(
            input_file_id=stored.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        for kill in range(3):
            deadline = time.monotonic() + 20
            done = 0
            while done <= 100 + 200 * kill:
                counts = sdk.batches.retrieve(batch.id).request_counts
                done = 0 if counts is None else counts.completed
                assert time.monotonic() < deadline
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=10)
            written = (tmp_path / "data" / "batches" / batch.id / "output.jsonl").read_bytes()
            assert 0 < written.count(b"\n") < count, "it was killed in the middle"
            process, url = gateway()
            sdk = connect(url)
        deadline = time.monotonic() + 40
        while (batch := sdk.batches.retrieve(batch.id)).status != "completed":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert batch.request_counts is not None
        assert batch.request_counts.completed == count
        assert batch.output_file_id is not None
        lines = [json.loads(raw) for raw in sdk.files.content(batch.output_file_id).text.splitlines()]
        sdk.close()
    assert len(lines) == count
    assert {item["custom_id"] for item in lines} == {f"r{n}" for n in range(count)}
