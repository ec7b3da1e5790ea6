"""Triton's errors, which are a gRPC status and a text, as exceptions of the port or of the contract."""

from __future__ import annotations

import re

from tritonclient.utils import InferenceServerException

from uzu_contract.errors import ErrorCode, RequestError
from uzu_gateway.engine.port import (
    EngineFaultError,
    EngineTimeoutError,
    EngineUnavailableError,
    ModelNotFoundError,
)

_UNKNOWN_MODEL = re.compile(r"unknown model|is not found|has no available versions", re.IGNORECASE)
_QUEUE_FULL = re.compile(r"exceeds maximum queue size", re.IGNORECASE)
_DEAD_BACKEND = re.compile(r"is not healthy|not ready|unavailable", re.IGNORECASE)


def status_name(error: InferenceServerException) -> str:
    """The gRPC status of an error, `UNAVAILABLE`, or empty."""
    return (error.status() or "").removeprefix("StatusCode.")


def translate(status: str, text: str, model: str) -> Exception:
    """The exception for a failed call.

    Args:
        status: name of the gRPC status (`UNAVAILABLE`), or empty when Triton gave only a text.
        text: Triton's message.
        model: the model that was called.

    """
    ours = RequestError.from_wire(text)
    if ours is not None:
        return ours
    if status == "NOT_FOUND" or _UNKNOWN_MODEL.search(text):
        return ModelNotFoundError(model)
    if status == "RESOURCE_EXHAUSTED" or _QUEUE_FULL.search(text):
        return RequestError(ErrorCode.OVERLOADED, "The backend's queue is full. Try again shortly.")
    match status:
        case "UNAVAILABLE":
            return EngineUnavailableError(text)
        case "DEADLINE_EXCEEDED":
            return EngineTimeoutError(text)
    if _DEAD_BACKEND.search(text):
        return EngineUnavailableError(text)
    return EngineFaultError(f"{status or 'no status'}: {text}")
