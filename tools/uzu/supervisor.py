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

    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    ready: Callable[[], bool]
    ready_timeout_s: float
    grace_s: float
    failure: ExitCode
    explain: Callable[[Sequence[str]], str] = field(default=last_line)


class Supervisor:
    """Runs services until one ends or a signal asks to stop: SIGINT, SIGTERM, SIGHUP; twice means at once."""

    def __init__(self, services: Sequence[Service], console: Console, announce: Callable[[], None]) -> None:
        self._services = services
        self._console = console
        self._announce = announce
        self._running: list[tuple[Service, ManagedProcess]] = []
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
            for service, process in reversed(self._running):
                self._note(f"stopping {service.name}")
                await process.stop()
            for number in signals:
                loop.remove_signal_handler(number)

    async def _serve(self) -> ExitCode:
        for service in self._services:
            self._console.note(f"starting {service.name}")
            started = time.monotonic()
            process = await ManagedProcess.start(
                service.command,
                environment=service.environment,
                grace_s=service.grace_s,
                on_line=functools.partial(self._log, service.name),
            )
            self._running.append((service, process))
            ready = asyncio.create_task(self._until_ready(service))
            try:
                outcome = await self._first_event(ready)
            finally:
                ready.cancel()
            if outcome is not None:
                return outcome
            if not ready.result():
                reason = service.explain(process.recent_lines)
                self._console.error(
                    f"{service.name} was not ready after {service.ready_timeout_s:.0f} s; last: {reason}"
                )
                return service.failure
            self._console.note(f"{service.name} is ready after {time.monotonic() - started:.1f} s")
        self._announce()
        outcome = await self._first_event(None)
        return ExitCode.OK if outcome is None else outcome

    async def _first_event(self, ready: asyncio.Task[bool] | None) -> ExitCode | None:
        """Wait for a stop, a death or `ready`. None when `ready` came first."""
        stop = asyncio.create_task(self._stop.wait())
        deaths = {
            asyncio.create_task(process.wait()): (service, process) for service, process in self._running
        }
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
        for task, (service, process) in deaths.items():
            if task in done:
                reason = service.explain(process.recent_lines)
                self._console.error(f"{service.name} {describe_exit(task.result())}: {reason}")
                return service.failure
        return None

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
            for _, process in self._running:
                process.signal_stop()
        self._stop.set()

    def _log(self, name: str, line: str) -> None:
        try:
            self._console.log(name, line)
        except OutputClosedError:
            self._stop.set()

    def _note(self, text: str) -> None:
        try:
            self._console.note(text)
        except OutputClosedError:
            self._stop.set()
