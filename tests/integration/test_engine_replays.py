"""Bugs that people met with other engines, replayed against the engine in a real tritonserver."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from uzu_contract.request import ChatPrompt, GenerateRequest, TextPrompt
from uzu_contract.response import GenerateChunk
from uzu_contract.sampling import SamplingParams
from uzu_gateway.engine.triton import TritonEngine

OUTPUTS = frozenset(
    {"text_output", "token_ids", "finish_reason", "num_input_tokens", "num_cached_tokens", "perf_metrics"}
)


class Reply:
    """The chunks of one request, with the time of the first."""

    def __init__(self) -> None:
        self.chunks: list[GenerateChunk] = []
        self.began = time.monotonic()
        self.first_s = 0.0

    async def read(self, engine: TritonEngine, request: GenerateRequest) -> Reply:
        self.began = time.monotonic()
        async for chunk in engine.generate("smollm2", request, "replay"):
            if not self.chunks:
                self.first_s = time.monotonic() - self.began
            self.chunks.append(chunk)
        return self

    @property
    def token_ids(self) -> list[int]:
        return [t for chunk in self.chunks for t in chunk.token_ids]

    @property
    def last(self) -> GenerateChunk:
        return self.chunks[-1]


def make_request(prompt, priority=10, **sampling):
    defaults = {"max_tokens": 24, "temperature": 0.0, "ignore_eos": True}
    return GenerateRequest(
        prompt=TextPrompt(prompt) if isinstance(prompt, str) else prompt,
        sampling=SamplingParams(**(defaults | sampling)),
        stream=True,
        outputs=OUTPUTS,
        priority=priority,
    )


@pytest.fixture
async def engine(triton):
    engine = TritonEngine(triton.grpc_address, request_timeout_s=120, models_ttl_s=1)
    yield engine
    await engine.close()


async def test_a_long_prefix_is_computed_once(engine):
    """TensorRT-LLM#2462: proof that the KV cache is reused."""
    words = " ".join(f"item {i} is worth {i * 7 % 101} coins;" for i in range(190))
    request = make_request(f"An inventory: {words} In short,")
    cold = await Reply().read(engine, request)
    warm = await Reply().read(engine, request)
    length = cold.last.num_input_tokens
    assert length > 2000
    assert cold.last.num_cached_tokens == 0
    assert warm.last.num_cached_tokens >= length - 34
    assert warm.first_s < cold.first_s / 2
    assert warm.token_ids == cold.token_ids


async def test_a_seeded_request_is_the_same_beside_unseeded_neighbours(engine):
    """vllm#51226."""
    request = make_request("The old sailor said", temperature=1.0, seed=1234, max_tokens=40)
    alone = await Reply().read(engine, request)
    noise = [make_request(f"Story {i}:", temperature=1.2, max_tokens=40) for i in range(7)]
    replies = await asyncio.gather(*(Reply().read(engine, r) for r in [*noise, request, *noise]))
    assert replies[7].token_ids == alone.token_ids
    assert len({tuple(r.token_ids) for r in replies}) > 10


async def test_speculated_streams_equal_plain_ones(start_triton, engine):
    """tensorrtllm_backend#676: speculation with streaming and batches of four."""
    server = start_triton(options={"speculation": "off", "kv_cache_tokens": 16384})
    plain_engine = TritonEngine(server.grpc_address, request_timeout_s=120, models_ttl_s=1)
    questions = (
        "Write the numbers from 1 to 30.",
        "Repeat five times: red, green, blue.",
        "Say hi.",
        "List days.",
    )
    requests = [
        make_request(
            ChatPrompt(messages=({"role": "user", "content": question},)),
            max_tokens=80,
            temperature=temperature,
            seed=5,
        )
        for question, temperature in zip(questions, (0.0, 0.0, 0.4, 0.0), strict=True)
    ]
    plain = await asyncio.gather(*(Reply().read(plain_engine, r) for r in requests))
    speculated = await asyncio.gather(*(Reply().read(engine, r) for r in requests))
    await plain_engine.close()
    server.close()
    assert [r.token_ids for r in speculated] == [r.token_ids for r in plain]
    assert sum(r.last.perf_metrics["accepted"] for r in speculated) > 10
    assert sum(r.last.perf_metrics["drafted"] for r in plain) == 0


async def test_high_priority_starts_before_low_work_that_waits_and_runs(start_triton):
    """vllm#24365, #40004: the engine is full of low work, and a high request arrives."""
    options = {"max_sequences": 2, "kv_cache_tokens": 16384, "speculation": "off", "check_integrity": True}
    server = start_triton(options=options)
    engine = TritonEngine(server.grpc_address, request_timeout_s=120, models_ttl_s=1)
    order: list[str] = []

    async def run(name: str, request: GenerateRequest) -> Reply:
        reply = await Reply().read(engine, request)
        order.append(name)
        return reply

    low = [make_request(f"Low {i}: once", priority=20, max_tokens=300) for i in range(6)]
    alone = [await Reply().read(engine, request) for request in low[:2]]
    running = [asyncio.create_task(run(f"low {i}", request)) for i, request in enumerate(low)]
    await asyncio.sleep(0.5)
    high = await run("high", make_request("High: once", priority=0, max_tokens=20))
    replies = await asyncio.gather(*running)
    await engine.close()
    server.close()
    assert "the engine's books are wrong" not in server.log
    assert order[0] == "high"
    assert high.last.perf_metrics["queue_ms"] < 500
    assert sum(r.last.perf_metrics["preemptions"] for r in replies) >= 1
    # Those that gave way are the same as undisturbed.
    assert [r.token_ids for r in replies[:2]] == [r.token_ids for r in alone]
    assert order.index("low 0") < order.index("low 5")
    assert order.index("low 1") < order.index("low 5")


BOS = "<|im_start|>"


@pytest.fixture(scope="module")
def beginner(start_triton, prepared_smollm2, tmp_path_factory):
    """A model whose texts begin with BOS, and whose template writes it too."""
    repository = tmp_path_factory.mktemp("bos") / "repository"
    weights = repository / "beginner" / "1" / "weights"
    weights.mkdir(parents=True)
    for file in prepared_smollm2.iterdir():
        (weights / file.name).symlink_to(file)
    config = json.loads((prepared_smollm2 / "tokenizer_config.json").read_text())
    for name, text in (
        ("tokenizer_config.json", json.dumps({**config, "bos_token": BOS, "add_bos_token": True})),
        ("chat_template.jinja", "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"),
    ):
        (weights / name).unlink(missing_ok=True)
        (weights / name).write_text(text)
    (repository / "beginner" / "config.pbtxt").write_text(
        'backend: "uzu"\nmax_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n'
    )
    options = {"model": "weights", "kv_cache_tokens": 8192, "split_lanes": False}
    (repository / "beginner" / "1" / "model.json").write_text(json.dumps(options))
    return start_triton(repository=repository, model="beginner")


async def test_29_a_template_that_writes_bos_gives_exactly_one(beginner):
    """vllm#4688."""
    engine = TritonEngine(beginner.grpc_address, request_timeout_s=120, models_ttl_s=1)
    counts = {}
    for name, prompt in (
        ("written by the template", ChatPrompt(messages=({"role": "user", "content": "Hello there"},))),
        ("added to a text", TextPrompt("Hello there")),
        ("in the text already", TextPrompt(BOS + "Hello there")),
    ):
        request = make_request(prompt, max_tokens=1)
        async for chunk in engine.generate("beginner", request, "replay"):
            counts[name] = chunk.num_input_tokens
    await engine.close()
    assert set(counts.values()) == {3}, counts
