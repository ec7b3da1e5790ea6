"""What the gateway counts. Labels hold route templates, statuses and model names, never a client's words."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PRIORITY_KEY = "uzu.priority"
"""Where the ASGI scope of a request that the gateway sends itself holds the priority of its generations."""
UNMATCHED = "unmatched"
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(slots=True)
class RequestRecord:
    """What becomes of one HTTP request; handlers fill it in, and the log line and the metrics are made of it.

    Args:
        request_id: the client's, or made.
        started: monotonic seconds.
        model: of those served; empty until it is resolved.
        status: what was sent; 499 when the client left before the end.
        prompt_tokens: tokens of all prompts.
        completion_tokens: tokens generated.
        error_code: of the error that was sent, also inside a stream.
        priority: of its generations; None leaves them the one that they have.

    """

    request_id: str
    started: float
    model: str = ""
    status: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error_code: str | None = None
    priority: int | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the request came."""
        return monotonic() - self.started


class Telemetry:
    """The metric families of one gateway, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "uzu_gateway_requests",
            "HTTP requests that ended, by route template and status (499: the client left)",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self.requests_in_flight = Gauge(
            "uzu_gateway_requests_in_flight",
            "HTTP requests that have begun and not ended",
            registry=self._registry,
        )
        self.generations_in_flight = Gauge(
            "uzu_gateway_generations_in_flight", "Generations running on the engine", registry=self._registry
        )
        self.request_seconds = Histogram(
            "uzu_gateway_request_seconds",
            "From a request's arrival to the end of its response",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.first_token_seconds = Histogram(
            "uzu_gateway_time_to_first_token_seconds",
            "From a streaming request's arrival to its first token",
            ("model",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.prompt_tokens = Counter(
            "uzu_gateway_prompt_tokens", "Prompt tokens of generations", ("model",), registry=self._registry
        )
        self.completion_tokens = Counter(
            "uzu_gateway_completion_tokens", "Tokens generated", ("model",), registry=self._registry
        )
        self.unknown_fields = Counter(
            "uzu_gateway_unknown_fields", "Fields of bodies that were ignored", registry=self._registry
        )

    def request_ended(self, route: str | None, method: str, record: RequestRecord) -> None:
        """Count a request."""
        template = route or UNMATCHED
        known = method if method in _METHODS else "OTHER"
        self.requests.labels(template, known, str(record.status)).inc()
        self.request_seconds.labels(template).observe(record.elapsed_s)

    def exposition(self) -> bytes:
        """All families, in Prometheus's text format."""
        return generate_latest(self._registry)
