"""The one table of errors, and the making of every error body.

A code's row says its status, its type, whether a client should send the request again, and after how long.
Anything that can go wrong is turned into a `GatewayError` by `as_gateway_error`; the text of exceptions that
are not ours never reaches a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from uzu_contract.errors import ErrorCode, RequestError
from uzu_gateway.engine.port import (
    EngineFaultError,
    EngineTimeoutError,
    EngineUnavailableError,
    ModelControlError,
    ModelNotFoundError,
)

ErrorType = Literal[
    "invalid_request_error", "authentication_error", "permission_error", "rate_limit_error", "server_error"
]


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """One row of the table.

    Args:
        status: HTTP status.
        type: OpenAI's coarse kind.
        should_retry: the value of `x-should-retry`: whether the same request may succeed later.
        meaning: one line for the docs.
        retry_after_s: the value of `Retry-After`, seconds.

    """

    status: int
    type: ErrorType
    should_retry: bool
    meaning: str
    retry_after_s: int | None = None


def _client(status: int, meaning: str) -> ErrorSpec:
    return ErrorSpec(status, "invalid_request_error", False, meaning)


def _server(status: int, meaning: str, retry_after_s: int | None = None) -> ErrorSpec:
    return ErrorSpec(status, "server_error", True, meaning, retry_after_s)


ERRORS: Mapping[str, ErrorSpec] = {
    "invalid_json": _client(400, "the body is empty, no JSON object, or JSON that cannot be trusted"),
    "invalid_content_type": _client(400, "the body is not declared as `application/json`"),
    ErrorCode.INVALID_REQUEST: _client(400, "the fields as a whole make no valid request"),
    ErrorCode.INVALID_PARAMETER: _client(400, "`param` has a wrong type or a value out of range"),
    ErrorCode.UNSUPPORTED_PARAMETER: _client(400, "`param` is known, but not supported"),
    ErrorCode.UNSUPPORTED_OPERATION: _client(400, "the model, or this gateway, cannot do what was asked for"),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: _client(400, "prompt and `max_tokens` do not fit the model's context"),
    "model_required": _client(400, "`model` was left out and there is more than one to choose from"),
    "invalid_api_key": ErrorSpec(401, "authentication_error", False, "no key was sent, or a wrong one"),
    "permission_denied": ErrorSpec(
        403, "permission_error", False, "the gateway is not configured to allow it"
    ),
    "model_not_found": _client(404, "no model of that name is served"),
    "not_found": _client(404, "no such route"),
    "method_not_allowed": _client(405, "the route exists, but not with this method; see `Allow`"),
    "body_too_large": _client(413, "the body is longer than the gateway accepts"),
    ErrorCode.OVERLOADED: ErrorSpec(429, "rate_limit_error", True, "the engine's waiting queue is full", 1),
    ErrorCode.CANCELLED: _server(502, "the backend cancelled the request, although its client waited"),
    "internal_error": _server(500, "a fault of the gateway; its log has the request id"),
    ErrorCode.ENGINE_FAILED: _server(502, "the engine failed while serving the request"),
    "model_load_failed": _server(502, "the backend could not load the model; its log says why"),
    "upstream_error": _server(502, "the backend failed, or answered what makes no sense"),
    "no_backend": _server(503, "no backend is reachable, or none is ready", 2),
    "store_unavailable": _server(503, "what the gateway keeps cannot be reached, or has no room", 2),
    ErrorCode.SHUTTING_DOWN: _server(503, "the model or the server is being stopped", 2),
    ErrorCode.DEADLINE_EXCEEDED: _server(504, "the request's own deadline passed"),
    "upstream_timeout": _server(504, "the backend did not finish within the gateway's limit"),
}
"""Every code a client can meet. The values are stable."""

_PUBLIC_NAMES = {"text_input": "prompt", "input_ids": "prompt"}


class GatewayError(Exception):
    """An error as the client sees it.

    Args:
        code: a key of `ERRORS`.
        message: for people; it never holds internals.
        param: the field to blame.
        headers: further headers of the response.

    """

    def __init__(
        self, code: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.headers = headers or {}

    @property
    def spec(self) -> ErrorSpec:
        """The code's row of the table."""
        return ERRORS[self.code]

    def body(self) -> dict[str, Any]:
        """The JSON object of the response, or of the event in a stream that has begun."""
        return {
            "error": {
                "message": _printable(self.message),
                "type": self.spec.type,
                "param": None if self.param is None else _printable(self.param),
                "code": str(self.code),
            }
        }

    def response(self) -> JSONResponse:
        """The response, with its retry headers."""
        headers = {"x-should-retry": "true" if self.spec.should_retry else "false", **self.headers}
        if self.spec.retry_after_s is not None:
            headers.setdefault("retry-after", str(self.spec.retry_after_s))
        return JSONResponse(self.body(), self.spec.status, headers)


ANTHROPIC_PATH = "/v1/messages"
"""Below it, answers and errors have Anthropic's shape."""
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def is_anthropic(path: str) -> bool:
    """Whether a path is one of Anthropic's API."""
    return path == ANTHROPIC_PATH or path.startswith(ANTHROPIC_PATH + "/")


def anthropic_body(error: GatewayError) -> dict[str, Any]:
    """The error in Anthropic's shape."""
    status = error.spec.status
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.body()["error"]["message"]}}


def error_response(error: GatewayError, path: str) -> JSONResponse:
    """The response for an error, in the shape of the API that `path` belongs to."""
    response = error.response()
    if not is_anthropic(path):
        return response
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return JSONResponse(anthropic_body(error), response.status_code, headers)


def as_gateway_error(error: BaseException) -> GatewayError:
    """What a client is told about an exception, whatever it is."""
    match error:
        case GatewayError():
            return error
        case RequestError():
            return _from_contract(error)
        case ModelNotFoundError():
            return GatewayError("model_not_found", f"model: no model {error.model!r:.80} is served", "model")
        case ModelControlError(disabled=True):
            return GatewayError(
                ErrorCode.UNSUPPORTED_OPERATION,
                "This backend loads and unloads no models on request: start tritonserver with "
                "--model-control-mode=explicit.",
            )
        case ModelControlError():
            return GatewayError(
                "model_load_failed",
                f"model: {error.model!r:.80} could not be loaded; the log says why",
                "model",
            )
        case EngineUnavailableError():
            return GatewayError("no_backend", "No backend is ready to serve this request. Try again shortly.")
        case EngineTimeoutError():
            return GatewayError("upstream_timeout", "The backend did not finish in time.")
        case EngineFaultError():
            return GatewayError("upstream_error", "The backend failed while serving this request.")
        case HTTPException():
            return _from_http(error)
        case asyncio.CancelledError():
            # Nothing but the server's own stop cancels a request that still has a client.
            return GatewayError(ErrorCode.SHUTTING_DOWN, "The server is being stopped.")
    return GatewayError("internal_error", "The gateway failed while serving this request.")


def _from_contract(error: RequestError) -> GatewayError:
    param, message = error.param, error.message
    if param in _PUBLIC_NAMES:
        message = message.replace(f"{param}:", f"{_PUBLIC_NAMES[param]}:", 1)
        param = _PUBLIC_NAMES[param]
    return GatewayError(error.code.value, message, param)


def _from_http(error: HTTPException) -> GatewayError:
    match error.status_code:
        case 404:
            return GatewayError("not_found", "There is no such route; /openapi.json lists them.")
        case 405:
            allowed = dict(error.headers or {})
            methods = allowed.get("Allow", "another method")
            return GatewayError("method_not_allowed", f"This route takes {methods}.", None, allowed)
        case 413:
            return GatewayError("body_too_large", "The body is too large.")
        case status if 400 <= status < 500:
            return GatewayError("invalid_request", "The request could not be understood.")
    return GatewayError("internal_error", "The gateway failed while serving this request.")


def _printable(text: str) -> str:
    """The text without what UTF-8 cannot carry: a client's own words may be quoted in it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
