"""The port behind which requests are answered, and the ways in which it fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from uzu_contract.request import GenerateRequest
from uzu_contract.response import GenerateChunk


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that is ready and speaks the LLM contract.

    Args:
        name: as clients give it in `model`.
        created: Unix time, seconds, at which this gateway first saw it ready.

    """

    name: str
    created: int


class EngineError(Exception):
    """The request was not served, and not because of what it asked for. The text is for the log only."""


class EngineUnavailableError(EngineError):
    """The backend cannot be reached or takes no requests."""


class EngineTimeoutError(EngineError):
    """The backend did not finish in time."""


class EngineFaultError(EngineError):
    """The backend failed, or broke the contract."""


class ModelNotFoundError(EngineError):
    """The backend has no such model."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.model = model


class Engine(Protocol):
    """Serves generations. Implementations are safe to use from many tasks of one event loop."""

    def generate(
        self, model: str, request: GenerateRequest, request_id: str
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Run one generation; the chunks of its one choice, the last of which has a finish reason.

        Closing the generator, or cancelling the task that waits for it, cancels the work at once.

        Raises:
            RequestError: the backend refused the request.
            EngineError: it was not served for another reason.

        """
        ...

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """The models that can be named in `generate`, by name.

        Raises:
            EngineError: the backend could not be asked.

        """
        ...

    async def is_ready(self) -> bool:
        """Whether a request has a chance: the backend is reachable and has a model. Never raises."""
        ...

    async def close(self) -> None:
        """Give connections back. Running generations end with an error."""
        ...
