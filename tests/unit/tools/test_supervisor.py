import asyncio
import io
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from uzu.console import Console
from uzu.errors import ExitCode
from uzu.supervisor import Repair, Service, Supervisor

# Writes its pid, then says "up", and on SIGTERM says "down" after a moment.
POLITE = """
import os, signal, sys, time
def down(*_):
    print("down", flush=True)
    time.sleep(0.2)
    sys.exit(0)
signal.signal(signal.SIGTERM, down)
open(sys.argv[1], "w").write(str(os.getpid()))
print("up", flush=True)
while True:
    time.sleep(60)
"""
FAILING = "import sys; print('first'); print('the reason', file=sys.stderr); sys.exit(9)"
STUBBORN = POLITE.replace(
    "signal.signal(signal.SIGTERM, down)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
)


class Run:
    """A supervisor of small real processes, run in this process's event loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out, self.err = io.StringIO(), io.StringIO()
        self.announced = asyncio.Event()

    def service(
        self,
        name: str,
        program: str,
        failure: ExitCode,
        *,
        ready: Callable[[], bool] | None = None,
        ready_timeout_s: float = 10.0,
        grace_s: float = 5.0,
        **options: Any,
    ) -> Service:
        pid_file = self.folder / name
        return Service(
            name=name,
            command=[sys.executable, "-c", program, str(pid_file)],
            environment=os.environ,
            ready=ready or (lambda: pid_file.exists() and bool(pid_file.read_text())),
            ready_timeout_s=ready_timeout_s,
            grace_s=grace_s,
            failure=failure,
            **options,
        )

    async def supervise(self, *services: Service) -> ExitCode:
        console = Console(self.out, self.err)
        return await Supervisor(services, console, self.announced.set).run()

    def pid(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def gone(self, name: str) -> bool:
        return not Path(f"/proc/{self.pid(name)}").exists()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def two_polite(run: Run) -> tuple[Service, Service]:
    return (
        run.service("triton", POLITE, ExitCode.TRITON_FAILED),
        run.service("gateway", POLITE, ExitCode.GATEWAY_FAILED),
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_stops_both_in_opposite_order(run: Run, number: int) -> None:
    task = asyncio.create_task(run.supervise(*two_polite(run)))
    await asyncio.wait_for(run.announced.wait(), 10)
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(task, 10) == ExitCode.OK
    assert run.out.getvalue().splitlines() == [
        "triton  | up",
        "gateway | up",
        "gateway | down",
        "triton  | down",
    ]
    assert run.gone("triton")
    assert run.gone("gateway")


@pytest.mark.parametrize(
    ("victim", "other", "code"),
    [("triton", "gateway", ExitCode.TRITON_FAILED), ("gateway", "triton", ExitCode.GATEWAY_FAILED)],
)
async def test_when_one_dies_the_other_is_stopped_and_the_code_says_which(
    run: Run, victim: str, other: str, code: ExitCode
) -> None:
    task = asyncio.create_task(run.supervise(*two_polite(run)))
    await asyncio.wait_for(run.announced.wait(), 10)
    os.kill(run.pid(victim), signal.SIGKILL)
    assert await asyncio.wait_for(task, 10) == code
    assert f"uzu: error: {victim} was killed by SIGKILL: up" in run.err.getvalue()
    assert run.gone(other)


async def test_a_first_service_that_fails_is_explained_and_the_second_never_starts(run: Run) -> None:
    first = run.service("triton", FAILING, ExitCode.TRITON_FAILED, ready=lambda: False)
    second = run.service("gateway", POLITE, ExitCode.GATEWAY_FAILED)
    assert await asyncio.wait_for(run.supervise(first, second), 10) == ExitCode.TRITON_FAILED
    assert "uzu: error: triton ended with exit code 9: the reason" in run.err.getvalue()
    assert not (run.folder / "gateway").exists()
    assert not run.announced.is_set()


async def test_a_second_service_that_fails_stops_the_first(run: Run) -> None:
    first = run.service("triton", POLITE, ExitCode.TRITON_FAILED)
    second = run.service("gateway", FAILING, ExitCode.GATEWAY_FAILED, ready=lambda: False)
    assert await asyncio.wait_for(run.supervise(first, second), 10) == ExitCode.GATEWAY_FAILED
    assert run.gone("triton")


async def test_never_ready_is_a_failure(run: Run) -> None:
    service = run.service("triton", POLITE, ExitCode.TRITON_FAILED, ready=lambda: False, ready_timeout_s=1.0)
    assert await asyncio.wait_for(run.supervise(service), 10) == ExitCode.TRITON_FAILED
    assert re.search(r"error: triton was not ready after 1 s; last: up", run.err.getvalue())
    assert run.gone("triton")


async def test_a_signal_while_starting_stops(run: Run, wait_until: Callable[..., None]) -> None:
    service = run.service("triton", POLITE, ExitCode.TRITON_FAILED, ready=lambda: False)
    task = asyncio.create_task(run.supervise(service))
    await asyncio.to_thread(wait_until, (run.folder / "triton").exists, 10, "it started")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 10) == ExitCode.OK
    assert run.gone("triton")


async def test_a_second_signal_kills_at_once(run: Run) -> None:
    service = run.service("triton", STUBBORN, ExitCode.TRITON_FAILED, grace_s=60.0)
    task = asyncio.create_task(run.supervise(service))
    await asyncio.wait_for(run.announced.wait(), 10)
    started = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.5)
    assert not task.done()
    os.kill(os.getpid(), signal.SIGINT)
    assert await asyncio.wait_for(task, 10) == ExitCode.OK
    assert time.monotonic() - started < 8
    assert run.gone("triton")


async def test_an_orphan_that_holds_the_output_does_not_hide_a_death(run: Run) -> None:
    family = (
        "import os, subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
        "open(sys.argv[1], 'w').write(f'{os.getppid()} {child.pid}'); time.sleep(60)"
    )
    service = run.service("triton", family, ExitCode.TRITON_FAILED)
    task = asyncio.create_task(run.supervise(service))
    await asyncio.wait_for(run.announced.wait(), 10)
    guardian, orphan = map(int, (run.folder / "triton").read_text().split())
    try:
        os.kill(guardian, signal.SIGKILL)
        assert await asyncio.wait_for(task, 10) == ExitCode.TRITON_FAILED
    finally:
        os.kill(orphan, signal.SIGKILL)


async def test_a_closed_output_stops(run: Run) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    service = run.service("triton", POLITE, ExitCode.TRITON_FAILED)
    supervisor = Supervisor([service], Console(Closed(), run.err), run.announced.set)
    assert await asyncio.wait_for(supervisor.run(), 10) == ExitCode.OK
    assert run.gone("triton")


async def test_endless_and_binary_lines_pass(run: Run) -> None:
    program = (
        "import sys; w = sys.stdout.buffer.write; w(b'x' * 40000 + b'\\n'); w(b'\\xff\\xfe\\r\\n'); "
        "w(b'no end'); sys.stdout.flush(); sys.exit(4)"
    )
    service = run.service("triton", program, ExitCode.TRITON_FAILED, ready=lambda: False)
    assert await asyncio.wait_for(run.supervise(service), 10) == ExitCode.TRITON_FAILED
    lines = run.out.getvalue().splitlines()
    assert "".join(line.removeprefix("triton  | ") for line in lines[:-2]) == "x" * 40000
    assert lines[-2:] == ["triton  | \ufffd\ufffd", "triton  | no end"]


async def test_hidden_lines_are_shown_when_a_service_does_not_come_up(run: Run) -> None:
    def hides(line: str) -> bool:
        return line == "first"

    options: dict[str, Any] = {"hides": hides}
    failing = run.service("triton", FAILING, ExitCode.TRITON_FAILED, ready=lambda: False, **options)
    await asyncio.wait_for(run.supervise(failing), 10)
    assert sorted(run.out.getvalue().splitlines()) == ["triton  | first", "triton  | the reason"]


async def test_hidden_lines_stay_hidden_once_a_service_was_ready(run: Run) -> None:
    service = run.service("triton", POLITE, ExitCode.TRITON_FAILED, hides=lambda line: line == "up")
    task = asyncio.create_task(run.supervise(service))
    await asyncio.wait_for(run.announced.wait(), 10)
    os.kill(run.pid("triton"), signal.SIGKILL)
    assert await asyncio.wait_for(task, 10) == ExitCode.TRITON_FAILED
    assert run.out.getvalue() == ""
    assert "was killed by SIGKILL: up" in run.err.getvalue()


def repair(run: Run, **changes: Any) -> Repair:
    """Of a service that is whole while its `broken` file is absent; starting anew does not remove that."""
    options: dict[str, Any] = {
        "whole": lambda guardian: not (run.folder / "broken").exists(),
        "clean": lambda: (run.folder / "triton").unlink(),
        "loss": "lost its stub",
        "lost_for_s": 0.1,
        "pause_s": 0.1,
    }
    return Repair(**{**options, **changes})


async def test_a_service_that_is_not_whole_is_started_again(
    run: Run, wait_until: Callable[..., None]
) -> None:
    def clean() -> None:
        for name in ("triton", "broken"):
            (run.folder / name).unlink()

    first = run.service("triton", STUBBORN, ExitCode.TRITON_FAILED, repair=repair(run, clean=clean))
    second = run.service("gateway", POLITE, ExitCode.GATEWAY_FAILED)
    task = asyncio.create_task(run.supervise(first, second))
    await asyncio.wait_for(run.announced.wait(), 10)
    was, beside = run.pid("triton"), run.pid("gateway")
    process = Path(f"/proc/{was}")
    (run.folder / "broken").touch()
    again = "triton is ready after"
    await asyncio.to_thread(wait_until, lambda: run.err.getvalue().count(again) == 2, 10, "it is mended")
    assert run.pid("triton") != was
    assert not await asyncio.to_thread(process.exists)
    assert run.pid("gateway") == beside
    assert "triton lost its stub; starting it again (attempt 1 of 3)" in run.err.getvalue()
    os.kill(run.pid("triton"), signal.SIGKILL)
    assert await asyncio.wait_for(task, 10) == ExitCode.TRITON_FAILED
    assert run.gone("gateway")


async def test_mending_that_does_not_last_ends_after_its_attempts(run: Run) -> None:
    service = run.service("triton", POLITE, ExitCode.TRITON_FAILED, repair=repair(run))
    task = asyncio.create_task(run.supervise(service))
    await asyncio.wait_for(run.announced.wait(), 10)
    (run.folder / "broken").touch()
    assert await asyncio.wait_for(task, 30) == ExitCode.TRITON_FAILED
    assert run.out.getvalue().splitlines().count("triton  | up") == 4
    assert "error: triton lost its stub, after 3 attempts to mend it: " in run.err.getvalue()
    assert run.gone("triton")


async def test_mending_that_fails_is_tried_again(run: Run) -> None:
    starts = "import sys; p = open(sys.argv[1] + '.starts', 'a'); p.write('x'); p.close();"
    once = "sys.exit(9) if len(open(sys.argv[1] + '.starts').read()) > 1 else None"
    service = run.service(
        "triton", f"{starts}{once}{POLITE}", ExitCode.TRITON_FAILED, repair=repair(run, clean=lambda: None)
    )
    task = asyncio.create_task(run.supervise(service))
    await asyncio.wait_for(run.announced.wait(), 10)
    (run.folder / "triton").unlink()
    (run.folder / "broken").touch()
    assert await asyncio.wait_for(task, 30) == ExitCode.TRITON_FAILED
    assert (run.folder / "triton.starts").read_text() == "x" * 4
    assert "triton ended with exit code 9; starting it again (attempt 3 of 3)" in run.err.getvalue()
    assert "error: triton ended with exit code 9, after 3 attempts to mend it" in run.err.getvalue()


async def test_a_service_that_was_whole_for_long_begins_a_new_row(run: Run) -> None:
    service = run.service(
        "triton", POLITE, ExitCode.TRITON_FAILED, repair=repair(run, attempts=1, steady_s=0.0)
    )
    task = asyncio.create_task(run.supervise(service))
    await asyncio.wait_for(run.announced.wait(), 10)
    (run.folder / "broken").touch()
    while run.err.getvalue().count("is ready after") < 4:
        assert not task.done()
        await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 10) == ExitCode.OK


async def test_a_signal_while_mending_stops(run: Run, wait_until: Callable[..., None]) -> None:
    service = run.service("triton", POLITE, ExitCode.TRITON_FAILED, repair=repair(run, pause_s=60.0))
    task = asyncio.create_task(run.supervise(service))
    await asyncio.wait_for(run.announced.wait(), 10)
    (run.folder / "broken").touch()
    await asyncio.to_thread(wait_until, lambda: "attempt 2" in run.err.getvalue(), 10, "it pauses")
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(task, 10) == ExitCode.OK
