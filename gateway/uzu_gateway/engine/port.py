"""The port behind which requests are answered, and the ways in which it fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.request import GenerateRequest
from uzu_contract.response import GenerateChunk


class Capability(StrEnum):
    """What a model can be asked for."""

    COMPLETION = "completion"
    CHAT = "chat"
    TOKENIZE = "tokenize"
    EMBEDDING = "embedding"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that is ready and can be asked by itself.

    Args:
        name: as clients give it in `model`.
        created: Unix time, seconds, at which this gateway first saw it ready.
        capabilities: what it can be asked for.
        context_tokens: longest prompt plus output; None when the backend does not say.

    """

    name: str
    created: int
    capabilities: frozenset[Capability] = frozenset({Capability.COMPLETION, Capability.CHAT})
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Embedding:
    """What a text means, as a vector.

    Args:
        values: of unit length or not, as the model makes them.
        prompt_tokens: of the text.

    """

    values: tuple[float, ...]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Score:
    """How well a text answers another.

    Args:
        value: higher is better.
        prompt_tokens: of both.

    """

    value: float
    prompt_tokens: int


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


class ModelControlError(EngineError):
    """The backend does not load or unload models, or could not."""

    def __init__(self, model: str, why: str, *, disabled: bool = False) -> None:
        super().__init__(f"{model}: {why}")
        self.model = model
        self.disabled = disabled


class Engine(Protocol):
    """Serves generations. Implementations are safe to use from many tasks of one event loop."""

    def generate(
        self, model: str, request: GenerateRequest, request_id: str
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Run one generation; the chunks of its one choice, the last of which has a finish reason.

        A request whose operation is not `generate` has one chunk.

        Closing the generator, or cancelling the task that waits for it, cancels the work at once.

        Raises:
            RequestError: the backend refused the request.
            EngineError: it was not served for another reason.

        """
        ...

    async def embed(self, model: str, texts: Sequence[str], request_id: str) -> tuple[Embedding, ...]:
        """One embedding per text, in their order.

        Raises:
            RequestError: the backend refused, or the model makes none.
            EngineError: it was not served for another reason.

        """
        ...

    async def score(self, model: str, pairs: Sequence[tuple[str, str]], request_id: str) -> tuple[Score, ...]:
        """How well the second text of each pair answers the first, in their order.

        Raises:
            RequestError: the backend refused, or the model gives none.
            EngineError: it was not served for another reason.

        """
        ...

    async def load_model(self, model: str) -> None:
        """Load a model of the backend's repository, anew when it is loaded; returns when it is ready.

        Raises:
            ModelNotFoundError: the repository has no such model.
            ModelControlError: it could not be loaded, or the backend takes no such requests.
            EngineError: the backend could not be asked.

        """
        ...

    async def unload_model(self, model: str) -> None:
        """Unload a model; what runs on it goes on to its end.

        Raises:
            ModelNotFoundError: it is not loaded.
            ModelControlError: the backend takes no such requests.
            EngineError: the backend could not be asked.

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


def cannot(model: str, capability: Capability) -> RequestError:
    """The error for a model that was asked for what it does not do."""
    what = {
        Capability.COMPLETION: "completes no text",
        Capability.CHAT: "has no chat template, so it takes no messages",
        Capability.TOKENIZE: "does not tell its tokens",
        Capability.EMBEDDING: "makes no embeddings",
        Capability.SCORE: "gives no scores",
    }[capability]
    return RequestError(ErrorCode.UNSUPPORTED_OPERATION, f"model: {model!r:.80} {what}", "model")
