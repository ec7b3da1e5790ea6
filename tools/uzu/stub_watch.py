"""Notices that a stub of Triton's Python backend has died, which Triton itself does not mend.

Triton 2.51 goes on saying that the model is ready, fails every request after a second, and never ends streams
that were running (server#3678).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from uzu.guardian import descendants
from uzu.triton import STUB


class StubWatch:
    """Counts the stubs below one Triton's guardian, and knows how many there have been.

    Args:
        is_ready: whether Triton says that every model can be asked; a model that was unloaded on request has
            no stub, and needs none.

    """

    def __init__(self, is_ready: Callable[[], bool]) -> None:
        self._is_ready = is_ready
        self._guardian = 0
        self._expected = 0

    def __call__(self, guardian: int) -> bool:
        """Whether no fewer stubs run below the process `guardian` than when it was asked about first."""
        running = sum(map(_is_stub, descendants(guardian)))
        if guardian != self._guardian:
            self._guardian, self._expected = guardian, running
        return running >= self._expected or not self._is_ready()


def _is_stub(process: int) -> bool:
    try:
        program = Path(f"/proc/{process}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return False
    return program.rpartition(b"/")[2] == STUB.encode()
