"""The log: JSON lines on stderr, one for each request, which never hold a prompt or an answer."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from typing import Any

from uzu_gateway.engine.port import EngineError, ModelNotFoundError
from uzu_gateway.errors import as_gateway_error
from uzu_gateway.telemetry import RequestRecord

MAX_PATH_LENGTH = 200
MAX_TEXT_LENGTH = 500
_requests = logging.getLogger("uzu_gateway.requests")
_failures = logging.getLogger("uzu_gateway.failures")


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object; `extra={"fields": {…}}` adds to it."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class WithoutCancelled(logging.Filter):
    """Drops uvicorn's traceback for requests that it cancelled itself, when their grace was over."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def log_config(level: str) -> dict[str, Any]:
    """The configuration of logging, for `logging.config.dictConfig`, from `level` (as in `Settings`) on."""
    logger = {"handlers": ["stderr"], "level": level.upper(), "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": "uzu_gateway.request_log.JsonLines"}},
        "filters": {"without_cancelled": {"()": "uzu_gateway.request_log.WithoutCancelled"}},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "formatter": "json",
                "filters": ["without_cancelled"],
                "stream": "ext://sys.stderr",
            }
        },
        "loggers": {"uzu_gateway": logger, "uvicorn": logger},
    }


def log_request(record: RequestRecord, method: str, path: str) -> None:
    """Log that a request has ended."""
    fields = {
        "request_id": record.request_id,
        "method": method,
        "path": path[:MAX_PATH_LENGTH],
        "model": record.model or None,
        "status": record.status,
        "error": record.error_code,
        "ms": round(record.elapsed_s * 1000, 1),
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
    }
    _requests.info("request", extra={"fields": fields})


def log_failure(record: RequestRecord, error: BaseException) -> None:
    """Log what a client is not told: a backend's own words, and the traceback of what nobody expected."""
    fields = {"request_id": record.request_id, "model": record.model or None}
    if isinstance(error, ModelNotFoundError):
        return
    if isinstance(error, EngineError):
        text = str(error)[:MAX_TEXT_LENGTH]
        _failures.warning("%s: %s", type(error).__name__, text, extra={"fields": fields})
    elif as_gateway_error(error).code == "internal_error":
        _failures.error("unexpected failure", exc_info=error, extra={"fields": fields})
