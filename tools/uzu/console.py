"""What a person sees: notes and progress on stderr; results and the logs of services on stdout."""

from __future__ import annotations

import functools
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TextIO

from tqdm import tqdm

from uzu.errors import UzuError

_COLORS = {"uzu": "35", "triton": "36", "gateway": "32"}
_WIDTH = max(len(name) for name in _COLORS)

Advance = Callable[[int], None]


class OutputClosedError(UzuError):
    """Nobody reads our output any more."""


class Console:
    """Writes whole lines; draws progress bars only on a terminal, else a line at start and end."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, *, color: bool = True) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._color = color
        for stream in (self._out, self._err):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")

    @property
    def interactive(self) -> bool:
        """Whether progress is seen by a person at a terminal."""
        return self._err.isatty()

    def result(self, text: str) -> None:
        """Write what was asked for.

        Raises:
            OutputClosedError: the reader is gone.

        """
        self._write(self._out, text)

    def log(self, name: str, line: str) -> None:
        """Write one line of the service `name`, behind its prefix.

        Raises:
            OutputClosedError: the reader is gone.

        """
        self._write(self._out, self._prefixed(self._out, name, line))

    def note(self, text: str) -> None:
        """Say what uzu is doing."""
        self._write(self._err, self._prefixed(self._err, "uzu", text))

    def error(self, text: str) -> None:
        """Say what went wrong, in one line."""
        self._write(self._err, f"uzu: error: {' '.join(text.split())}")

    @contextmanager
    def progress(self, label: str, total: int | None = None) -> Iterator[Advance]:
        """Show `label` while something runs; call what is yielded with the bytes done since the last call."""
        if self.interactive:
            with tqdm(total=total, desc=label, unit="B", unit_scale=True, file=self._err, leave=False) as bar:
                yield functools.partial(_advance, bar)
            return
        started = time.monotonic()
        self.note(f"{label} …")
        yield _ignore
        self.note(f"{label}: done in {time.monotonic() - started:.1f} s")

    def _prefixed(self, stream: TextIO, name: str, line: str) -> str:
        prefix = f"{name:<{_WIDTH}} | "
        if self._color and stream.isatty():
            prefix = f"\033[{_COLORS.get(name, '33')}m{prefix}\033[0m"
        return prefix + line

    @staticmethod
    def _write(stream: TextIO, text: str) -> None:
        try:
            stream.write(text + "\n")
            stream.flush()
        except (BrokenPipeError, ValueError) as error:
            raise OutputClosedError("the output was closed") from error


def _ignore(_: int) -> None:
    return


def _advance(bar: tqdm[NoReturn], count: int) -> None:
    bar.update(count)
