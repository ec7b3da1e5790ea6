"""Notices that a stub of Triton's Python backend has died, which Triton itself does not mend.

Triton 2.51 goes on saying that the model is ready, fails every request after a second, and never ends streams
that were running (server#3678).
"""

from __future__ import annotations

from pathlib import Path

from uzu.guardian import descendants
from uzu.triton import STUB


class StubWatch:
    """Counts the stubs below one Triton's guardian, and knows how many there have been."""

    def __init__(self) -> None:
        self._guardian = 0
        self._expected = 0

    def __call__(self, guardian: int) -> bool:
        """Whether no fewer stubs run below the process `guardian` than when it was asked about first."""
        running = sum(map(_is_stub, descendants(guardian)))
        if guardian != self._guardian:
            self._guardian, self._expected = guardian, running
        return running >= self._expected


def _is_stub(process: int) -> bool:
    try:
        program = Path(f"/proc/{process}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        return False
    return program.rpartition(b"/")[2] == STUB.encode()
