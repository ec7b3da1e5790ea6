"""Starts services in order, watches them, and stops them in the opposite order."""

from __future__ import annotations

import asyncio
import functools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uzu.console import Console, OutputClosedError
from uzu.errors import ExitCode
from uzu.processes import ManagedProcess, describe_exit

_PROBE_PAUSE_S = 0.2
_STILL_WAITING_S = 15.0
_WATCH_PAUSE_S = 0.5


def last_line(lines: Sequence[str]) -> str:
    """The last line that says anything."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def hides_nothing(line: str) -> bool:  # noqa: ARG001
    """A log of which every line is shown."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """When and how often a service that lives, but not as a whole, is killed and started again.

    Args:
        whole: given the process id of its guardian, whether the service is whole; runs in a thread, for the
            first time when it has become ready.
        clean: removes what the killed service left.
        loss: what is said when it is not whole.
        lost_for_s: from when it is not whole to when it is killed.
        attempts: how many in a row may fail or not last.
        pause_s: before the second attempt in a row; doubles with each.
        steady_s: a service that was whole for so long begins a new row.

    """

    whole: Callable[[int], bool]
    clean: Callable[[], None]
    loss: str
    lost_for_s: float = 2.0
    attempts: int = 3
    pause_s: float = 1.0
    steady_s: float = 60.0


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
        repair: what to do when it is no longer whole; None to notice only its end.

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
    repair: Repair | None = None


@dataclass(slots=True)
class _Running:
    """A service's process: whether it has been ready, since when, and what was tried to mend it."""

    service: Service
    process: ManagedProcess
    ready: bool = False
    ready_at: float = 0.0
    lost_at: float | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class _Failure:
    """A service failed, and how."""

    running: _Running
    how: str


class _Stopped:
    """Stopping was asked for."""


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
        # Who started us under nohup wants hang-ups ignored.
        ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        signals = (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))
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
            self._console.note(f"starting {service.name}")
            self._running.append(_Running(service, await self._start(service)))
            event = await self._bring_up(self._running[-1])
            if event is not None:
                return self._end(event)
        self._announce()
        while True:
            lost = asyncio.create_task(self._until_lost())
            event = await self._first_event(lost)
            if event is None:
                event = await self._mend(lost.result())
            if event is not None:
                return self._end(event)

    async def _start(self, service: Service) -> ManagedProcess:
        return await ManagedProcess.start(
            service.command,
            environment=service.environment,
            grace_s=service.grace_s,
            on_line=functools.partial(self._log, service),
        )

    async def _bring_up(self, running: _Running) -> _Failure | _Stopped | None:
        """Wait until a process that has just started is ready; None when it is."""
        service, started = running.service, time.monotonic()
        ready = asyncio.create_task(self._until_ready(service))
        event = await self._first_event(ready)
        if event is not None:
            return event
        if not ready.result():
            return _Failure(running, f"was not ready after {service.ready_timeout_s:.0f} s; last")
        if service.repair is not None:
            await asyncio.to_thread(service.repair.whole, running.process.pid)
        running.ready, running.ready_at = True, time.monotonic()
        self._console.note(f"{service.name} is ready after {running.ready_at - started:.1f} s")
        return None

    async def _mend(self, running: _Running) -> _Failure | _Stopped | None:
        """Start a service that is not whole again; None when it is ready."""
        service, repair = running.service, running.service.repair
        if repair is None:
            raise ValueError(f"{service.name} cannot be mended")
        how = repair.loss
        if time.monotonic() - running.ready_at >= repair.steady_s:
            running.attempts = 0
        while running.attempts < repair.attempts:
            running.attempts += 1
            attempt = f"attempt {running.attempts} of {repair.attempts}"
            self._console.note(f"{service.name} {how}; starting it again ({attempt})")
            await running.process.kill()
            self._running[:] = [other for other in self._running if other is not running]
            repair.clean()
            pause_s = 0.0 if running.attempts == 1 else repair.pause_s * 2.0 ** (running.attempts - 2)
            event = await self._first_event(asyncio.create_task(asyncio.sleep(pause_s)))
            if event is not None:
                return event
            running.process = await self._start(service)
            running.ready, running.lost_at = False, None
            self._running.insert(self._services.index(service), running)
            event = await self._bring_up(running)
            if not isinstance(event, _Failure) or event.running is not running:
                return event
            how = event.how
        return _Failure(running, f"{how}, after {repair.attempts} attempts to mend it")

    async def _first_event(self, awaited: asyncio.Task[Any]) -> _Failure | _Stopped | None:
        """Wait for a stop, a death or `awaited`, which is cancelled otherwise. None when that came first."""
        stop = asyncio.create_task(self._stop.wait())
        deaths = {asyncio.create_task(running.process.wait()): running for running in self._running}
        try:
            done, _ = await asyncio.wait({stop, awaited, *deaths}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stop, awaited, *deaths):
                task.cancel()
        if stop in done:
            return _Stopped()
        for task, running in deaths.items():
            if task in done:
                return _Failure(running, describe_exit(task.result()))
        return None

    def _end(self, event: _Failure | _Stopped) -> ExitCode:
        """The exit code; how a service failed, and why, is said before."""
        if isinstance(event, _Stopped):
            return ExitCode.OK
        service, lines = event.running.service, event.running.process.recent_lines
        if not event.running.ready:
            for line in lines:
                self._log(service, line, hidden=True)
        self._console.error(f"{service.name} {event.how}: {service.explain(lines)}")
        return service.failure

    async def _until_lost(self) -> _Running:
        """The first service that has not been whole for long enough."""
        while True:
            await asyncio.sleep(_WATCH_PAUSE_S)
            for running in self._running:
                repair = running.service.repair
                if repair is None:
                    continue
                whole = await asyncio.to_thread(repair.whole, running.process.pid)
                now = time.monotonic()
                if whole:
                    running.lost_at = None
                elif running.lost_at is None:
                    running.lost_at = now
                elif now - running.lost_at >= repair.lost_for_s:
                    return running

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
