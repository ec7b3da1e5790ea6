from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from uzu.ports import free_ports
from uzu_gateway.__main__ import parse_arguments
from uzu_gateway.settings import Settings

ROOT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "uzu_gateway", "--engine", "fake", "--port", "0"]


def test_defaults_and_options() -> None:
    assert parse_arguments([]) == Settings()
    given = parse_arguments(
        [
            "--host",
            "::1",
            "--port",
            "81",
            "--triton-url",
            "triton:8001",
            "--strict-fields",
            "--default-model",
            "m",
            "--shutdown-grace-s",
            "2.5",
        ]
    )
    assert (given.host, given.port, given.triton_url) == ("::1", 81, "triton:8001")
    assert (given.strict_fields, given.default_model, given.shutdown_grace_s) == (True, "m", 2.5)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--port", "70000"], "--port '70000': Input should be less than or equal to 65535"),
        (["--port", "x"], "--port 'x'"),
        (["--triton-url", "http://x:1"], "--triton-url"),
        (["--max-body-bytes", "0"], "--max-body-bytes"),
        (["--engine", "other"], "--engine"),
        (["--por", "1"], "unrecognized arguments: --por"),
        (["--unknown", "1"], "unrecognized arguments"),
    ],
)
def test_wrong_options(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse_arguments(arguments)
    assert raised.value.code == 2
    assert reason in capsys.readouterr().err


class Process:
    """The gateway's own process, and the lines that it logs."""

    def __init__(self, *options: str) -> None:
        path = os.pathsep.join([str(ROOT / "gateway"), str(ROOT / "python_backends")])
        self.process = subprocess.Popen(
            [*COMMAND, *options],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(json.loads(line))

    def url(self) -> str:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for line in list(self.lines):
                if found := re.search(r"running on (http://\S+)", line["message"]):
                    return found[1]
            time.sleep(0.02)
        raise AssertionError(f"the gateway did not start: {self.lines}")

    def end(self) -> int:
        code = self.process.wait(20)
        self._reader.join(5)
        return code

    def close(self) -> None:
        self.process.kill()
        self.end()
        assert self.process.stderr is not None
        self.process.stderr.close()


@pytest.fixture
def start(request: pytest.FixtureRequest) -> Callable[..., Process]:
    def started(*options: str) -> Process:
        process = Process(*options)
        request.addfinalizer(process.close)
        return process

    return started


def test_one_line_for_each_request_and_never_a_prompt(start: Callable[..., Process]) -> None:
    gateway = start()
    url = gateway.url()
    body = {"prompt": "my secret words", "model": "fake"}
    httpx.post(f"{url}/v1/completions", json=body, headers={"x-request-id": "first"}).raise_for_status()
    httpx.post(f"{url}/v1/completions", json={**body, "suffix": "end"}, headers={"x-request-id": "second"})
    httpx.get(f"{url}/health/live?q=secret", headers={"x-request-id": "third"})
    gateway.process.terminate()
    gateway.end()
    requests = {line["request_id"]: line for line in gateway.lines if line["message"] == "request"}
    assert set(requests) == {"first", "second", "third"}
    first = requests["first"]
    assert (first["method"], first["path"], first["model"]) == ("POST", "/v1/completions", "fake")
    assert (first["status"], first["prompt_tokens"], first["completion_tokens"]) == (200, 3, 3)
    assert first["ms"] >= 0
    assert (requests["second"]["status"], requests["second"]["error"]) == (400, "unsupported_parameter")
    assert "secret" not in json.dumps(gateway.lines)


def test_at_level_warning_only_what_goes_wrong_is_logged(start: Callable[..., Process]) -> None:
    port, nobody = free_ports(2)
    triton = f"127.0.0.1:{nobody}"
    gateway = start(
        "--log-level", "warning", "--engine", "triton", "--triton-url", triton, "--port", str(port)
    )
    transport = httpx.HTTPTransport(retries=8)
    with httpx.Client(transport=transport, base_url=f"http://127.0.0.1:{port}") as client:
        assert client.get("/health/live").status_code == 200
        assert gateway.lines == []
        assert client.post("/v1/completions", json={"prompt": "p"}).status_code == 503
    gateway.process.terminate()
    gateway.end()
    assert [line["level"] for line in gateway.lines] == ["warning"]
    assert gateway.lines[0]["message"].startswith("EngineUnavailableError")


def test_a_stop_lets_streams_finish(start: Callable[..., Process]) -> None:
    gateway = start("--shutdown-grace-s", "10")
    url = gateway.url()
    # 1.5 MB of events are more than sockets buffer, so the stream is running while it is not read.
    body = {"prompt": "word " * 50, "max_tokens": 6000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
        gateway.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health/live")
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert len(rest) == 6000
    assert gateway.end() in (0, -signal.SIGTERM)


def test_a_client_that_reads_nothing_holds_no_stop(start: Callable[..., Process]) -> None:
    gateway = start("--shutdown-grace-s", "1")
    url = gateway.url()
    body = {"prompt": "word " * 50, "max_tokens": 60_000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
        assert response.status_code == 200
        gateway.process.send_signal(signal.SIGTERM)
        stopped = time.monotonic()
        assert gateway.end() in (0, -signal.SIGTERM)
    assert time.monotonic() - stopped < 8
    assert not [line for line in gateway.lines if "traceback" in line]


def test_a_busy_port_is_one_line(start: Callable[..., Process]) -> None:
    first = start()
    port = first.url().rpartition(":")[2]
    second = start("--port", port)
    assert second.end() != 0
    assert any("address already in use" in line["message"] for line in second.lines)
    assert not [line for line in second.lines if "traceback" in line]
