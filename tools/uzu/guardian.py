"""Runs one command so that nothing of it outlives the process that started this.

    python -I -S guardian.py STARTER_PID GRACE_S COMMAND...

It ends the command when it is told to (SIGTERM; a second one kills at once) and when its starter dies, also
by SIGKILL. Whatever the command leaves behind (it adopts orphans, also those of other sessions) is killed.
It exits with the command's code, 128 + the number of the signal when one ended it. Standard library only,
since it starts before everything else and must not take long.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ORPHANS_GRACE_S = 2.0
_KILL_AGAIN_S = 0.5
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Comes once for every thread of a dying starter, so it must differ from what somebody sends twice on purpose.
STARTER_DIED = signal.SIGUSR1
_WATCHED = {*_STOP_SIGNALS, STARTER_DIED, signal.SIGCHLD}


def main(arguments: list[str]) -> int:
    """Run and watch; the result is the exit code."""
    starter, grace_s, command = int(arguments[0]), float(arguments[1]), arguments[2:]
    libc = ctypes.CDLL(None)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    libc.prctl(_PR_SET_PDEATHSIG, STARTER_DIED)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != starter:
        return 128 + signal.SIGTERM

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

    try:
        # Signals stay as Python has them: with SIGPIPE ignored, a service whose reader was killed can still
        # say its last words and end in order.
        child = subprocess.Popen(command, preexec_fn=in_child, restore_signals=False)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        return 127
    code = _watch(child.pid, grace_s)
    child.returncode = code
    return code


def _watch(child: int, grace_s: float, kill: Callable[[int], None] | None = None) -> int:
    kill = kill or _kill
    code: int | None = None
    kill_at: float | None = None
    while True:
        wait_s = 3600.0 if kill_at is None else max(0.0, kill_at - time.monotonic())
        event = signal.sigtimedwait(_WATCHED, min(wait_s, 0.1) if code is not None else wait_s)
        if event is not None and event.si_signo != signal.SIGCHLD:
            if kill_at is None and code is None:
                kill_at = time.monotonic() + grace_s
                os.kill(child, signal.SIGTERM)
            elif event.si_signo != STARTER_DIED:
                kill_at = time.monotonic()
        ended, left = _reap(child)
        if ended is not None:
            code = ended
            kill_at = time.monotonic() + _ORPHANS_GRACE_S
        if code is not None and not left:
            return code
        if kill_at is not None and time.monotonic() >= kill_at:
            for process in descendants(os.getpid()):
                kill(process)
            # One that cannot die at once (it is in the middle of a system call) is not waited for in a spin.
            kill_at = time.monotonic() + _KILL_AGAIN_S


def _reap(child: int) -> tuple[int | None, bool]:
    """Collect the dead. The child's exit code if it was among them, and whether any child is left."""
    code = None
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, False
        if process == 0:
            return code, True
        if process == child:
            ended = os.waitstatus_to_exitcode(status)
            code = ended if ended >= 0 else 128 - ended


def descendants(root: int) -> list[int]:
    """Every process below the process `root`."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found: list[int] = []
    ahead = [root]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
