"""The engine's metrics as a real tritonserver shows them."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from prometheus_client.parser import text_string_to_metric_families

from uzu_contract.metrics import METRICS


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
