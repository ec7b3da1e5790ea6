"""Several instances of a model, and several models, in one real tritonserver."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from serving import answer, resident_bytes, stubs, sum_by, tokens

from uzu_gateway.engine.triton import TritonEngine

PROMPTS = [f"Here are {n} words about the sea:" for n in range(12)]


def cpus_of_threads(process: int) -> list[tuple[int, ...]]:
    """Which CPUs each thread of a process may use."""
    tasks = [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    return [tuple(sorted(os.sched_getaffinity(task))) for task in tasks]


def answers(server, models):
    return asyncio.run(_answers(server, models))


async def _answers(server, models):
    engine = TritonEngine(server.grpc_address, request_timeout_s=120, models_ttl_s=1)
    try:
        jobs = [answer(engine, prompt, model=models[i % len(models)]) for i, prompt in enumerate(PROMPTS)]
        return [tokens(chunks) for chunks in await asyncio.gather(*jobs)]
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def expected(triton):
    return answers(triton, ["smollm2"])


def test_two_instances_serve_and_report_apart(start_triton, wait_until, expected):
    server = start_triton(options={"kv_cache_tokens": 8192}, instances=2)
    assert answers(server, ["smollm2"]) == expected

    def finished():
        return sum_by("instance", server.metrics_url, "uzu_requests_finished_total")

    wait_until(lambda: sum(finished().values()) == len(PROMPTS), 10, "every request is counted")
    assert len(finished()) == 2
    assert min(finished().values()) > 0
    for name in ("uzu_kv_blocks_total", "uzu_time_to_first_token_seconds_count"):
        counts = sum_by("instance", server.metrics_url, name)
        assert set(counts) == set(finished())
    assert counts == finished()
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert server.log.count(f"{share} threads") == 2
    both = stubs(server.process.pid)
    assert len(both) == 2
    server.close()
    assert server.process.returncode == 0
    assert [resident_bytes(stub) for stub in both] == [0, 0]


def test_two_models_serve_side_by_side(start_triton, wait_until, expected):
    server = start_triton(options={"kv_cache_tokens": 8192}, also=["second"])
    assert answers(server, ["smollm2", "second"]) == expected
    wait_until(
        lambda: (
            sum_by("model", server.metrics_url, "uzu_requests_finished_total")
            == {"smollm2": len(PROMPTS) / 2, "second": len(PROMPTS) / 2}
        ),
        10,
        "each model's requests are counted as its own",
    )
    server.close()
    assert server.process.returncode == 0


def control(server, action):
    request = urllib.request.Request(
        f"{server.http_url}/v2/repository/models/smollm2/{action}", data=b"{}", method="POST"
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        assert response.status == 200


def test_unloading_frees_everything_and_loading_reads_the_options_again(start_triton, wait_until, expected):
    server = start_triton(options={"kv_cache_tokens": 8192})
    (loaded,) = stubs(server.process.pid)
    assert resident_bytes(loaded) > 100 << 20
    control(server, "unload")
    wait_until(lambda: resident_bytes(loaded) == 0, 30, "the instance's process ends")
    assert stubs(server.process.pid) == []
    path = server.plan.model_repository / "smollm2" / "1" / "model.json"
    options = json.loads(path.read_text())
    path.write_text(json.dumps({**options, "cpu_set": "4095"}))
    with pytest.raises(urllib.error.HTTPError) as refused:
        control(server, "load")
    assert "option 'cpu_set': this process may not use CPU 4095; it may use " in refused.value.read().decode()
    last = max(os.sched_getaffinity(0))
    path.write_text(json.dumps({**options, "cpu_set": str(last)}))
    control(server, "load")
    assert answers(server, ["smollm2"]) == expected
    (loaded,) = stubs(server.process.pid)
    assert set(cpus_of_threads(loaded)) == {(last,)}
    assert "1 threads" in server.log
    server.close()
    assert server.process.returncode == 0
