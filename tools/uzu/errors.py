"""What goes wrong in the `uzu` command, and the exit code that says so."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of `uzu`. The values are stable; docs/configuration.md lists them."""

    OK = 0
    """Done, or serving was stopped on request."""
    FAULT = 1
    """A fault of uzu itself."""
    CANNOT_START = 2
    """What was asked for, or this machine, does not fit; nothing was started."""
    TRITON_FAILED = 3
    """tritonserver ended, was not ready in time, or lost its Python stub again and again."""
    GATEWAY_FAILED = 4
    """The gateway ended, or was not ready in time."""
    PREPARATION_FAILED = 5
    """A model or tritonserver could not be downloaded, checked or converted; nothing was started."""


class UzuError(Exception):
    """An error whose text is one line for the person at the terminal: what, where, how to mend."""

    exit_code = ExitCode.FAULT


class UsageError(UzuError):
    """Something that the person who started `uzu` can mend: an option, a path, the machine."""

    exit_code = ExitCode.CANNOT_START


class PreparationError(UzuError):
    """A download, its checksum or a conversion failed."""

    exit_code = ExitCode.PREPARATION_FAILED
