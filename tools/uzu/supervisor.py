"""Starts services in order, watches them, and stops them in the opposite order."""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from uzu.console import Console, OutputClosedError
from uzu.errors import ExitCode
from uzu.processes import ManagedProcess, describe_exit

_PROBE_PAUSE_S = 0.2
_STILL_WAITING_S = 15.0


def last_line(lines: Sequence[str]) -> str:
    """The last line that says anything."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def hides_nothing(line: str) -> bool:  # noqa: ARG001
    """A log of which every line is shown."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One process to supervise.

    Args:
        name: in messages and before its log lines.
        command: program and arguments.
        environment: all of it.
        ready: asks once whether it serves; runs in a thread and returns within a few seconds.
        ready_timeout_s: from its start.
        grace_s: from SIGTERM to SIGKILL.
        failure: exit code of `uzu` when this service fails.
        explain: picks from its last lines what says why it failed.
        hides: whether a line of its log is shown only when it does not become ready.

    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool]
    ready_timeout_s: float
    grace_s: float
    failure: ExitCode
    explain: Callable[[Sequence[str]], str] = field(default=last_line)
    hides: Callable[[str], bool] = field(default=hides_nothing)


@dataclass(slots=True)
class _Running:
    """A service's process, and whether it has been ready."""

    service: Service
    process: ManagedProcess
    ready: bool = False


class Supervisor:
    """Runs services until one ends or a signal asks to stop: SIGINT, SIGTERM, SIGHUP; twice means at once."""

    def __init__(self, services: Sequence[Service], console: Console, announce: Callable[[], None]) -> None:
        self._services = services
        self._console = console
        self._announce = announce
        self._running: list[_Running] = []
        self._stop = asyncio.Event()

    async def run(self) -> ExitCode:
        """Serve until the end. No process that it started is left when it returns.

        Returns:
            OK when stopping was asked for, else the code of the service that failed.

        """
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in signals:
            loop.add_signal_handler(number, self._on_signal)
        try:
            return await self._serve()
        except OutputClosedError:
            return ExitCode.OK
        finally:
            for running in reversed(self._running):
                self._note(f"stopping {running.service.name}")
                await running.process.stop()
            for number in signals:
                loop.remove_signal_handler(number)

    async def _serve(self) -> ExitCode:
        for service in self._services:
            outcome = await self._start(service)
            if outcome is not None:
                return outcome
        self._announce()
        outcome = await self._first_event(None)
        return ExitCode.OK if outcome is None else outcome

    async def _start(self, service: Service) -> ExitCode | None:
        """Start a service and wait until it is ready; None when it is."""
        self._console.note(f"starting {service.name}")
        started = time.monotonic()
        process = await ManagedProcess.start(
            service.command,
            environment=service.environment,
            grace_s=service.grace_s,
            on_line=functools.partial(self._log, service),
        )
        running = _Running(service, process)
        self._running.append(running)
        ready = asyncio.create_task(self._until_ready(service))
        try:
            outcome = await self._first_event(ready)
        finally:
            ready.cancel()
        if outcome is not None:
            return outcome
        if not ready.result():
            return self._fail(running, f"was not ready after {service.ready_timeout_s:.0f} s; last")
        running.ready = True
        self._console.note(f"{service.name} is ready after {time.monotonic() - started:.1f} s")
        return None

    async def _first_event(self, ready: asyncio.Task[bool] | None) -> ExitCode | None:
        """Wait for a stop, a death or `ready`. None when `ready` came first."""
        stop = asyncio.create_task(self._stop.wait())
        deaths = {asyncio.create_task(running.process.wait()): running for running in self._running}
        watched: set[asyncio.Task[bool] | asyncio.Task[int]] = {stop, *deaths}
        if ready is not None:
            watched.add(ready)
        try:
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stop, *deaths):
                task.cancel()
        if stop in done:
            return ExitCode.OK
        for task, running in deaths.items():
            if task in done:
                return self._fail(running, describe_exit(task.result()))
        return None

    def _fail(self, running: _Running, how: str) -> ExitCode:
        """Say how a service failed, and why."""
        service, lines = running.service, running.process.recent_lines
        if not running.ready:
            for line in lines:
                self._log(service, line, hidden=True)
        self._console.error(f"{service.name} {how}: {service.explain(lines)}")
        return service.failure

    async def _until_ready(self, service: Service) -> bool:
        started = said = time.monotonic()
        while True:
            if await asyncio.to_thread(service.ready):
                return True
            now = time.monotonic()
            if now - started > service.ready_timeout_s:
                return False
            if now - said > _STILL_WAITING_S:
                said = now
                self._console.note(f"still waiting for {service.name} ({now - started:.0f} s)")
            await asyncio.sleep(_PROBE_PAUSE_S)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            for running in self._running:
                running.process.signal_stop()
        self._stop.set()

    def _log(self, service: Service, line: str, *, hidden: bool = False) -> None:
        if service.hides(line) != hidden:
            return
        try:
            self._console.log(service.name, line)
        except OutputClosedError:
            self._stop.set()

    def _note(self, text: str) -> None:
        try:
            self._console.note(text)
        except OutputClosedError:
            self._stop.set()
