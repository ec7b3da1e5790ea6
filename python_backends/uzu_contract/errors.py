"""Error codes that cross from a backend to its client, and how they travel in a Triton error message."""

from __future__ import annotations

import re
from enum import StrEnum


class ErrorCode(StrEnum):
    """Why a request failed. The values are stable: clients and dashboards may match on them."""

    INVALID_REQUEST = "invalid_request"
    """The inputs as a whole make no valid request (two prompts, broken JSON)."""
    INVALID_PARAMETER = "invalid_parameter"
    """One named field has a wrong type or a value out of range, or its name is unknown."""
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    """One named field is known but this model or backend does not support it."""
    UNSUPPORTED_OPERATION = "unsupported_operation"
    """The backend cannot do the `operation` that was asked for."""
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    """Prompt, or prompt plus `max_tokens`, is longer than the model's context."""
    OVERLOADED = "overloaded"
    """The engine's waiting queue is full."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """`uzu_deadline_ms` passed before the request finished."""
    CANCELLED = "cancelled"
    """The client went away."""
    ENGINE_FAILED = "engine_failed"
    """A fault of the engine, not of the request."""
    SHUTTING_DOWN = "shutting_down"
    """The model is being unloaded or the server stopped."""

    @property
    def triton_status(self) -> str:
        """Name of the `pb_utils.TritonError` constant that carries this code."""
        return _TRITON_STATUS[self]


_TRITON_STATUS = {
    ErrorCode.INVALID_REQUEST: "INVALID_ARG",
    ErrorCode.INVALID_PARAMETER: "INVALID_ARG",
    ErrorCode.UNSUPPORTED_PARAMETER: "UNSUPPORTED",
    ErrorCode.UNSUPPORTED_OPERATION: "UNSUPPORTED",
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: "INVALID_ARG",
    ErrorCode.OVERLOADED: "UNAVAILABLE",
    ErrorCode.DEADLINE_EXCEEDED: "UNAVAILABLE",
    ErrorCode.CANCELLED: "CANCELLED",
    ErrorCode.ENGINE_FAILED: "INTERNAL",
    ErrorCode.SHUTTING_DOWN: "UNAVAILABLE",
}

_WIRE = re.compile(r"(?P<message>.*) \[uzu:(?P<code>[a-z_]+)(?::(?P<param>[^\]\s]+))?\]\s*$", re.DOTALL)
_PARAM = re.compile(r"[^\]\s]+")


class RequestError(Exception):
    """A request that cannot be served, with its code and, where one is to blame, the field's name.

    `str(error)` is safe to show to the client: it never holds internals.
    """

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param

    def to_wire(self) -> str:
        """The text of the Triton error: the message for people, then code and field for programs."""
        param = f":{self.param}" if self.param and _PARAM.fullmatch(self.param) else ""
        return f"{self.message} [uzu:{self.code}{param}]"

    @classmethod
    def from_wire(cls, text: str) -> RequestError | None:
        """The error that `to_wire` wrote, also behind a prefix of Triton's; None when not ours."""
        match = _WIRE.match(text)
        if match is None or match["code"] not in _TRITON_STATUS:
            return None
        return cls(ErrorCode(match["code"]), match["message"], match["param"])


def invalid(param: str, message: str) -> RequestError:
    """An `INVALID_PARAMETER` error whose message begins with the field's name."""
    return RequestError(ErrorCode.INVALID_PARAMETER, f"{param}: {message}", param)


def unsupported(param: str, message: str) -> RequestError:
    """An `UNSUPPORTED_PARAMETER` error whose message begins with the field's name."""
    return RequestError(ErrorCode.UNSUPPORTED_PARAMETER, f"{param}: {message}", param)
