"""`uzu triton`: a tritonserver that a person could have started by hand."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
from uzu_process import STOP_TIMEOUT_S, UzuProcess

from uzu.errors import ExitCode
from uzu.ports import free_ports
from uzu.resources import model_repository
from uzu.rundir import RunDirectory
from uzu.settings import Settings


def test_it_serves_a_repository_as_it_is(
    uzu_command: list[str],
    settings: Settings,
    prepared_smollm2: Path,
    tmp_path: Path,
    wait_until: Callable[..., None],
) -> None:
    repository = tmp_path / "models"
    shutil.copytree(model_repository(), repository, ignore=shutil.ignore_patterns("weights"))
    (repository / "smollm2" / "1" / "weights").symlink_to(prepared_smollm2)
    before = sorted(repository.rglob("*"))
    http, grpc, metrics = free_ports(3)
    arguments = ["triton", "--repository", str(repository), "--", f"--http-port={http}"]
    arguments += ["--grpc-port", str(grpc), f"--metrics-port={metrics}"]
    with UzuProcess(uzu_command, settings, tmp_path / "triton.log", arguments) as triton:
        triton.wait_for("Triton serves")
        body = {
            "text_input": "The capital of France is",
            "sampling_parameters": '{"max_tokens": 8, "temperature": 0}',
        }
        answer = httpx.post(f"http://127.0.0.1:{http}/v2/models/smollm2/generate", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        assert "Paris" in answer.json()["text_output"]
        assert "uzu_requests_running" in httpx.get(f"http://127.0.0.1:{metrics}/metrics").text
        assert f"http 127.0.0.1:{http}, grpc 127.0.0.1:{grpc}, metrics 127.0.0.1:{metrics}" in triton.log
        os.kill(triton.process.pid, signal.SIGINT)
        assert triton.process.wait(timeout=STOP_TIMEOUT_S) == ExitCode.OK, triton.log
        wait_until(lambda: not triton.processes(), STOP_TIMEOUT_S, "every process is gone")
    run = RunDirectory(settings.home / "run" / str(triton.process.pid))
    assert not run.path.exists()
    assert not list(Path("/dev/shm").glob(f"{run.shared_memory_prefix}*"))
    assert sorted(repository.rglob("*")) == before


def test_an_option_that_triton_does_not_know_ends_it(
    uzu_command: list[str], settings: Settings, tmp_path: Path
) -> None:
    ports = [
        f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)
    ]
    arguments = ["triton", "--repository", str(tmp_path / "models"), "--", *ports, "--no-such-option"]
    (tmp_path / "models").mkdir()
    with UzuProcess(uzu_command, settings, tmp_path / "triton.log", arguments) as triton:
        assert triton.process.wait(timeout=60) == ExitCode.TRITON_FAILED, triton.log
        assert "triton ended with exit code 1: unrecognized option '--no-such-option'" in triton.log
