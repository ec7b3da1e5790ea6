"""What is known about a batch: kept as JSON, shown as OpenAI's batch object."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

RUNNING = ("validating", "in_progress", "finalizing", "cancelling")
_TIMES = (
    *("in_progress_at", "finalizing_at", "completed_at", "failed_at"),
    *("expired_at", "cancelling_at", "cancelled_at"),
)


class BatchState(BaseModel):
    """A batch.

    Args:
        id: its name.
        endpoint: path that its requests go to.
        input_file_id: the file that they came from.
        completion_window: as the client gave it.
        created_at: Unix time, seconds, as all times here.
        expires_at: what has not been answered then is not.
        metadata: of the client.
        status: one of OpenAI's.
        times: when it got its statuses.
        ended: what it becomes once it is finalized.
        output_file_id: where its answers are to be.
        error_file_id: where what failed is to be.
        output_expires_after_s: how long both are kept.
        errors: what is wrong with its input.
        total: requests.
        completed: of them, answered with 200.
        failed: of them, otherwise.
        has_output: whether there is an output file.
        has_errors: whether there is an error file.

    """

    model_config = ConfigDict(extra="forbid")

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str]
    status: str = "validating"
    times: dict[str, int] = {}
    ended: str = "completed"
    output_file_id: str
    error_file_id: str
    output_expires_after_s: int | None = None
    errors: list[dict[str, Any]] = []
    total: int = 0
    completed: int = 0
    failed: int = 0
    has_output: bool = False
    has_errors: bool = False

    @property
    def is_running(self) -> bool:
        """Whether anything is still to happen."""
        return self.status in RUNNING

    def enter(self, status: str, now: float) -> None:
        """Give it a status."""
        self.status = status
        self.times[f"{status}_at"] = int(now)

    def shown(self) -> dict[str, Any]:
        """OpenAI's batch object."""
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id if self.has_output else None,
            "error_file_id": self.error_file_id if self.has_errors else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{name: self.times.get(name) for name in _TIMES},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }
