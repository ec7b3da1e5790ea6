"""Starting, stopping and dying: nothing may be left, and the exit code says what happened."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from uzu_process import SMOLLM2_ENTRIES, STOP_TIMEOUT_S, ServeFactory, UzuServe

from uzu.errors import ExitCode
from uzu.ports import check_port
from uzu.rundir import RunDirectory
from uzu.settings import Settings
from uzu.store import RECORD, Store
from uzu.triton import STUB

SECOND_START_S = 30.0
OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "HF_HUB_OFFLINE": "1",
}
WaitUntil = Callable[..., None]


def nothing_left(serve: UzuServe, wait_until: WaitUntil) -> None:
    wait_until(lambda: not serve.processes(), STOP_TIMEOUT_S, "every process is gone")
    check_port("127.0.0.1", serve.port, "--port")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_code_0(
    uzu_serve: ServeFactory, wait_until: WaitUntil, settings: Settings, number: int
) -> None:
    serve = uzu_serve()
    serve.wait_ready()
    assert len(serve.processes()) >= 5
    run = settings.home / "run" / str(serve.process.pid)
    assert run.is_dir()
    os.kill(serve.process.pid, number)
    assert serve.process.wait(timeout=STOP_TIMEOUT_S) == ExitCode.OK, serve.log
    nothing_left(serve, wait_until)
    assert not run.exists()
    assert serve.log.index("stopping gateway") < serve.log.index("stopping triton")


def test_instances_are_processes_that_answer(uzu_serve: ServeFactory, wait_until: WaitUntil) -> None:
    serve = uzu_serve("--instances", "2", "--option", "kv_cache_tokens=4096")
    serve.wait_ready()
    assert sum(STUB in command.split()[0] for command in serve.processes().values()) == 2
    body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    answers = [httpx.post(f"{serve.url}/v1/completions", json=body, timeout=60) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1
    os.kill(serve.process.pid, signal.SIGTERM)
    assert serve.process.wait(timeout=STOP_TIMEOUT_S) == ExitCode.OK, serve.log
    nothing_left(serve, wait_until)


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        ("tritonserver", ExitCode.TRITON_FAILED, "error: triton was killed by SIGKILL"),
        ("uzu_gateway", ExitCode.GATEWAY_FAILED, "error: gateway was killed by SIGKILL"),
    ],
)
def test_when_a_part_is_killed_the_rest_ends(
    uzu_serve: ServeFactory,
    wait_until: WaitUntil,
    settings: Settings,
    program: str,
    code: ExitCode,
    says: str,
) -> None:
    serve = uzu_serve()
    serve.wait_ready()
    os.kill(serve.pid_of(program), signal.SIGKILL)
    assert serve.process.wait(timeout=STOP_TIMEOUT_S) == code, serve.log
    assert says in serve.log
    nothing_left(serve, wait_until)
    run = RunDirectory(settings.home / "run" / str(serve.process.pid))
    assert not run.path.exists()
    assert not list(Path("/dev/shm").glob(f"{run.shared_memory_prefix}*"))


def test_a_killed_stub_is_replaced_and_running_streams_end(
    uzu_serve: ServeFactory, wait_until: WaitUntil, settings: Settings
) -> None:
    serve = uzu_serve()
    serve.wait_ready()
    url = f"{serve.url}/v1/completions"
    body = {"prompt": "1 2 3", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", url, json=body, timeout=30) as response:
        lines = (line for line in response.iter_lines() if line)
        assert '"text"' in next(lines)
        stub = serve.pid_of("triton_python_backend_stub")
        os.kill(stub, signal.SIGKILL)
        killed = time.monotonic()
        *_, last = lines
    assert '"code":"no_backend"' in last
    assert time.monotonic() - killed < 10
    answer = {"prompt": "1 2 3", "max_tokens": 4}
    wait_until(lambda: httpx.post(url, json=answer, timeout=30).status_code == 200, 40, "it answers again")
    assert serve.pid_of("triton_python_backend_stub") != stub
    assert "triton lost its Python stub; starting it again (attempt 1 of 3)" in serve.log
    assert serve.get("/health/ready") == 200
    run = RunDirectory(settings.home / "run" / str(serve.process.pid))
    regions = set(Path("/dev/shm").glob(f"{run.shared_memory_prefix}*"))
    assert len(regions) == 1
    serve.process.terminate()
    assert serve.process.wait(timeout=STOP_TIMEOUT_S) == ExitCode.OK, serve.log
    nothing_left(serve, wait_until)


def test_when_uzu_is_killed_the_rest_ends_in_order(
    uzu_serve: ServeFactory, wait_until: WaitUntil, settings: Settings
) -> None:
    serve = uzu_serve()
    serve.wait_ready()
    os.kill(serve.process.pid, signal.SIGKILL)
    serve.process.wait()
    nothing_left(serve, wait_until)
    run = RunDirectory(settings.home / "run" / str(serve.process.pid))
    assert not list(Path("/dev/shm").glob(f"{run.shared_memory_prefix}*"))


def test_a_signal_while_starting_ends_it(uzu_serve: ServeFactory, wait_until: WaitUntil) -> None:
    serve = uzu_serve()
    wait_until(lambda: "starting triton" in serve.log, 60, "it starts triton")
    serve.process.terminate()
    assert serve.process.wait(timeout=STOP_TIMEOUT_S) == ExitCode.OK, serve.log
    nothing_left(serve, wait_until)
    assert "Try it" not in serve.log


def test_a_second_start_downloads_and_converts_nothing(
    uzu_serve: ServeFactory, settings: Settings, store: Store, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    for name in SMOLLM2_ENTRIES:
        source, target = settings.home / "packages" / name, home / "packages" / name
        shutil.copytree(source, target, copy_function=os.link)
    environment = {**OFFLINE, "UZU_HOME": str(home)}

    def start() -> tuple[str, float, dict[Path, int]]:
        serve = uzu_serve(environment=environment)
        took_s = serve.wait_ready()
        serve.process.terminate()
        assert serve.process.wait(timeout=STOP_TIMEOUT_S) == ExitCode.OK
        made = {path: path.stat().st_mtime_ns for path in home.rglob(RECORD)}
        return serve.log, took_s, made

    first_log, _, first_made = start()
    assert "downloading" not in first_log
    assert first_log.count("for OpenVINO: done") == 1
    assert len(first_made) == 3
    second_log, took_s, second_made = start()
    assert "downloading" not in second_log
    assert "converting" not in second_log
    assert second_made == first_made
    assert took_s < SECOND_START_S
    assert not any((home / "tmp").iterdir())


def test_a_busy_port_is_refused_before_anything_starts(
    served: UzuServe, uzu_command: list[str], settings: Settings
) -> None:
    started = time.monotonic()
    result = subprocess.run(
        [*uzu_command, "serve", "--port", str(served.port)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=dict(settings.environment),
    )
    assert result.returncode == ExitCode.CANNOT_START
    assert result.stderr.count("\n") == 1
    assert f"--port: cannot listen on 127.0.0.1:{served.port}" in result.stderr
    assert time.monotonic() - started < 10
    assert served.get("/health/ready") == 200


def test_an_engine_that_cannot_start_is_explained(uzu_serve: ServeFactory, wait_until: WaitUntil) -> None:
    serve = uzu_serve("--option", "kv_cache_tokens=1073741824")
    assert serve.process.wait(timeout=60) == ExitCode.TRITON_FAILED
    last_error = next(line for line in serve.log.splitlines() if line.startswith("uzu: error: "))
    assert "failed to load 'smollm2'" in last_error
    nothing_left(serve, wait_until)


def test_a_folder_is_served_under_a_name_of_choice(
    uzu_serve: ServeFactory, prepared_smollm2: Path, tmp_path: Path
) -> None:
    serve = uzu_serve(
        *("--model", str(prepared_smollm2), "--served-name", "my-model", "--log-level", "warning"),
        *("--run-dir", str(tmp_path / "run"), "--keep", "--option", "context_tokens=1024"),
    )
    serve.wait_ready()
    assert "Uzu serves my-model at" in serve.log
    assert (tmp_path / "run" / "model_repository" / "my-model" / "1" / "model.json").is_file()
    assert serve.get("/health/ready") == 200
    serve.process.terminate()
    assert serve.process.wait(timeout=STOP_TIMEOUT_S) == ExitCode.OK
    assert (tmp_path / "run" / "backends" / "python").is_dir()
