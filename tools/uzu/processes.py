"""Child processes that cannot be orphaned: each runs under a guardian (see `uzu.guardian`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from uzu import guardian

_RECENT_LINES = 1000
_OUTPUT_AFTER_END_S = 1.0
_LONGEST_LINE_BYTES = 16 * 1024


def guarded(command: Sequence[str], grace_s: float) -> list[str]:
    """The command line that runs `command` under a guardian of this process."""
    return [
        sys.executable,
        "-I",
        "-S",
        str(Path(guardian.__file__)),
        str(os.getpid()),
        str(grace_s),
        *command,
    ]


def describe_exit(code: int) -> str:
    """How a process ended, in words."""
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(code - 128).name}"
    return f"ended with exit code {code}"


class ManagedProcess:
    """A running service: its output line by line, its end, and the means to end it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: asyncio.StreamReader,
        pipe: asyncio.ReadTransport,
        on_line: Callable[[str], None],
    ) -> None:
        self._process = process
        self._output = output
        self._pipe = pipe
        self._on_line = on_line
        self._recent: deque[str] = deque(maxlen=_RECENT_LINES)
        self._ended = asyncio.create_task(self._follow())

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        grace_s: float,
        on_line: Callable[[str], None],
    ) -> ManagedProcess:
        """Start `command` in a session of its own.

        Args:
            command: program and arguments.
            environment: all of it.
            grace_s: from SIGTERM to SIGKILL.
            on_line: gets each line of stdout and stderr.

        """
        # A pipe of our own can be closed when the process has ended, whoever else still holds it.
        read_end, write_end = os.pipe()
        output = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb", buffering=0)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *guarded(command, grace_s),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )
        except BaseException:
            pipe.close()
            raise
        finally:
            os.close(write_end)
        return cls(process, output, pipe, on_line)

    @property
    def pid(self) -> int:
        """The guardian's; the service runs below it."""
        return self._process.pid

    @property
    def recent_lines(self) -> Sequence[str]:
        """The last lines of output, oldest first."""
        return tuple(self._recent)

    async def wait(self) -> int:
        """The exit code, once the process and all it started are gone and its output is read."""
        return await asyncio.shield(self._ended)

    async def stop(self) -> int:
        """End it: SIGTERM, and SIGKILL after the grace."""
        self.signal_stop()
        return await self.wait()

    async def kill(self) -> int:
        """End it at once."""
        self.signal_stop()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                # Another signal than before: two of a kind may arrive as one.
                self._process.send_signal(signal.SIGINT)
        return await self.wait()

    def signal_stop(self) -> None:
        """Send SIGTERM; sent again, it kills at once."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    async def _follow(self) -> int:
        try:
            rest = b""
            while data := await self._read():
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._emit(line)
                if len(rest) > _LONGEST_LINE_BYTES:
                    self._emit(rest)
                    rest = b""
            if rest:
                self._emit(rest)
            return await self._process.wait()
        finally:
            self._pipe.close()

    async def _read(self) -> bytes:
        """More output, or nothing at its end."""
        while True:
            try:
                return await asyncio.wait_for(self._output.read(65536), _OUTPUT_AFTER_END_S)
            except TimeoutError:
                # When the guardian itself is killed, what it guarded may live on and hold the pipe open.
                if self._process.returncode is not None:
                    return b""

    def _emit(self, line: bytes) -> None:
        text = line.rstrip(b"\r").decode("utf-8", "replace")
        self._recent.append(text)
        self._on_line(text)


def run_lines(
    command: Sequence[str], *, environment: Mapping[str, str], grace_s: float = 2.0
) -> Iterator[str]:
    """Run a short command to its end, yielding its output's lines.

    The process is ended when the iterator is closed early or an exception passes.

    Raises:
        subprocess.CalledProcessError: it failed; `output` holds the last lines.

    """
    recent: deque[str] = deque(maxlen=_RECENT_LINES)
    with subprocess.Popen(
        guarded(command, grace_s),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                recent.append(line.rstrip("\n"))
                yield recent[-1]
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command), output="\n".join(recent))
