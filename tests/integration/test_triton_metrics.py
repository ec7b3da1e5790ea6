"""The engine's metrics as a real tritonserver shows them."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from prometheus_client.parser import text_string_to_metric_families
from serving import answer

from uzu.ports import free_ports
from uzu_contract.metrics import METRICS
from uzu_gateway.engine.triton import TritonEngine


def series(triton):
    with urllib.request.urlopen(triton.metrics_url) as answer:
        text = answer.read().decode()
    found = {}
    text_names = {line.partition("{")[0] for line in text.splitlines()}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("uzu_"):
                labels = {k: v for k, v in sample.labels.items() if k not in ("model", "instance")}
                # The parser puts `_total` behind the name of every counter.
                name = sample.name if sample.name in text_names else sample.name.removesuffix("_total")
                found[name, tuple(labels.items())] = sample.value
                assert sample.labels["model"] == "smollm2"
                assert sample.labels["instance"].startswith("smollm2")
    return found, text


@pytest.fixture(scope="module")
def triton(start_triton):
    return start_triton(options={"kv_cache_tokens": 8192})


def test_metrics_agree_with_what_was_served(triton):
    with triton_grpc.InferenceServerClient(triton.grpc_address) as client:
        config = client.get_model_config("smollm2").config
        assert config.model_transaction_policy.decoupled
        done: list[object] = []
        client.start_stream(lambda result, error: done.append(error or result))
        for index in range(3):
            text = triton_grpc.InferInput("text_input", [1], "BYTES")
            text.set_data_from_numpy(np.array([f"Tell me {index} things".encode()], np.object_))
            sampling = triton_grpc.InferInput("sampling_parameters", [1], "BYTES")
            content = json.dumps({"temperature": 0, "max_tokens": 8, "ignore_eos": True})
            sampling.set_data_from_numpy(np.array([content.encode()], np.object_))
            client.async_stream_infer("smollm2", [text, sampling])
        deadline = time.monotonic() + 60
        while len(done) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        client.stop_stream()
    while series(triton)[0].get(("uzu_requests_finished_total", (("reason", "length"),))) != 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    found, text = series(triton)
    assert found["uzu_generated_tokens_total", ()] == 24
    assert found["uzu_time_to_first_token_seconds_count", ()] == 3
    assert found["uzu_inter_token_seconds_count", ()] <= 21
    assert found["uzu_requests_waiting", (("class", "interactive"),)] == 0
    assert found["uzu_kv_blocks_used", ()] == 0
    for spec in METRICS:
        if spec.kind == "histogram":
            by_bound = {
                float(labels[0][1]): count
                for (name, labels), count in found.items()
                if name == f"{spec.name}_bucket"
            }
            assert sorted(by_bound) == [*spec.buckets, float("inf")]
            counts = [by_bound[bound] for bound in sorted(by_bound)]
            assert counts == sorted(counts)
            assert counts[-1] == found[f"{spec.name}_count", ()]
    promtool = shutil.which("promtool")
    if promtool is not None:
        ours = "\n".join(line for line in text.splitlines() if "uzu_" in line) + "\n"
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=ours, capture_output=True, text=True, check=False
        )
        # It wants histograms to be typed as such, which is style; what it cannot parse it calls an error.
        assert "error" not in checked.stderr.lower(), checked.stderr


PROMETHEUS_CONFIG = """
global:
  scrape_interval: 1s
scrape_configs:
  - job_name: triton
    static_configs:
      - targets: ["{target}"]
"""


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs a Prometheus (Debian: prometheus)")
def test_a_real_prometheus_computes_quantiles_of_what_it_scrapes(triton, spawn, wait_until, tmp_path):
    target = triton.metrics_url.removeprefix("http://").removesuffix("/metrics")
    config = tmp_path / "prometheus.yml"
    config.write_text(PROMETHEUS_CONFIG.format(target=target))
    (port,) = free_ports(1)
    with (tmp_path / "prometheus.log").open("wb") as log:
        spawn(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )

    def query(expression):
        url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=5) as response:
                return [(r["metric"], float(r["value"][1])) for r in json.load(response)["data"]["result"]]
        except OSError:
            return []

    def is_positive(expression):
        (value,) = [value for _, value in query(expression)] or [float("nan")]
        return value > 0

    wait_until(lambda: is_positive("up"), 30, "the first scrape")
    before = sum(value for _, value in query("uzu_generated_tokens_total"))

    async def ask():
        engine = TritonEngine(triton.grpc_address, request_timeout_s=120, models_ttl_s=1)
        try:
            await asyncio.gather(*(answer(engine, f"Count to {n}:", max_tokens=8) for n in range(4)))
        finally:
            await engine.close()

    # Prometheus sees a rate between two scrapes, and the counters' beginning is not one.
    asyncio.run(ask())
    for name in ("queue", "time_to_first_token", "inter_token", "step"):
        rate = f"sum by (le) (rate(uzu_{name}_seconds_bucket[1m]))"
        wait_until(
            lambda r=rate: is_positive(f"histogram_quantile(0.9, {r})"),
            20,
            f"a quantile of uzu_{name}_seconds",
        )
    wait_until(
        lambda: [v for _, v in query("sum(uzu_generated_tokens_total)")] == [before + 32], 20, "the tokens"
    )
    mean = "sum(uzu_time_to_first_token_seconds_sum) / sum(uzu_time_to_first_token_seconds_count)"
    ((_, seconds),) = query(mean)
    assert 0 < seconds < 60
    classes = {metric["class"] for metric, _ in query("sum by (class) (uzu_requests_waiting)")}
    assert classes == {"interactive", "default", "batch"}
