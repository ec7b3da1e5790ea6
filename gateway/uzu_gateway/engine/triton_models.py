"""The models of a Triton: which can be asked, what they can do, and loading and unloading them."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from uzu_contract.errors import RequestError
from uzu_contract.request import Operation
from uzu_contract.response import ModelDetails
from uzu_gateway.engine.port import (
    Capability,
    EngineError,
    ModelControlError,
    ModelInfo,
    ModelNotFoundError,
)
from uzu_gateway.engine.triton_errors import status_name, translate

LLM_INPUT = "messages"
"""A model is an LLM of the contract when it has this input."""
CONTROL_TIMEOUT_S = 5.0

_LOAD_TIMEOUT_S = 600.0
_DESCRIBE_PATIENCE_S = 1.0
_DISABLED = re.compile(r"explicit model load / unload is not allowed", re.IGNORECASE)


@dataclass(slots=True)
class _Seen:
    """A model that is ready.

    Args:
        created: Unix time, seconds, at which it was first seen so.
        details: what it says about itself; None as long as it has not.
        question: asks it.

    """

    created: int
    details: ModelDetails | None = None
    question: asyncio.Task[None] | None = None


class TritonModels:
    """Asks a Triton about its models. For one event loop.

    Args:
        connect: gives the client.
        describe: asks a model what it is; raises `EngineError` or `RequestError` when it does not say.

    """

    def __init__(
        self,
        connect: Callable[[], triton.InferenceServerClient],
        describe: Callable[[str], Awaitable[ModelDetails | None]],
    ) -> None:
        self._connect = connect
        self._describe = describe
        self._seen: dict[str, _Seen] = {}

    async def ask(self) -> tuple[ModelInfo, ...]:
        """The models of the contract that are ready, by name.

        A model is asked once what it can do. A list waits for that a second at most, since a model that is
        busy must not hold up the requests to others; what is not known then is in a later list.

        Raises:
            EngineError: Triton could not be asked.

        """
        client = self._connect()
        try:
            index = await client.get_model_repository_index(client_timeout=CONTROL_TIMEOUT_S)
        except InferenceServerException as error:
            raise translate(status_name(error), error.message(), "") from None
        names = sorted({entry.name for entry in index.models if entry.state == "READY"})
        fresh = [name for name in names if name not in self._seen]
        are_llms = await asyncio.gather(*(self._is_llm(name) for name in fresh))
        now = int(time.time())
        found = {name: _Seen(now) for name, yes in zip(fresh, are_llms, strict=True) if yes}
        kept = {name: seen for name, seen in self._seen.items() if name in names}
        for name, seen in self._seen.items():
            if name not in kept and seen.question is not None:
                seen.question.cancel()
        self._seen = dict(sorted({**kept, **found}.items()))
        for name, seen in self._seen.items():
            if seen.details is None and seen.question is None:
                seen.question = asyncio.create_task(self._question(name, seen))
        first = [seen.question for name in found if (seen := self._seen[name]).question is not None]
        if first:
            await asyncio.wait(first, timeout=_DESCRIBE_PATIENCE_S)
        return tuple(_info(name, seen) for name, seen in self._seen.items())

    async def close(self) -> None:
        """Stop asking."""
        questions = [seen.question for seen in self._seen.values() if seen.question is not None]
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)

    async def load(self, model: str) -> None:
        """See `Engine.load_model`."""
        if model not in await self._states():
            raise ModelNotFoundError(model)
        self._forget(model)
        await self._control(model, self._connect().load_model(model, client_timeout=_LOAD_TIMEOUT_S))

    async def unload(self, model: str) -> None:
        """See `Engine.unload_model`."""
        if (await self._states()).get(model) != "READY":
            raise ModelNotFoundError(model)
        await self._control(model, self._connect().unload_model(model, client_timeout=CONTROL_TIMEOUT_S))
        self._forget(model)

    async def _control(self, model: str, call: Awaitable[Any]) -> None:
        try:
            await call
        except InferenceServerException as error:
            # The text of a failed load speaks of states and may say anything: only the status tells.
            status = status_name(error)
            if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                raise translate(status, error.message(), model) from None
            disabled = _DISABLED.search(error.message()) is not None
            raise ModelControlError(model, error.message(), disabled=disabled) from None

    async def _states(self) -> dict[str, str]:
        try:
            index = await self._connect().get_model_repository_index(client_timeout=CONTROL_TIMEOUT_S)
        except InferenceServerException as error:
            raise translate(status_name(error), error.message(), "") from None
        return {entry.name: entry.state for entry in index.models}

    def _forget(self, model: str) -> None:
        seen = self._seen.pop(model, None)
        if seen is not None and seen.question is not None:
            seen.question.cancel()

    async def _question(self, name: str, seen: _Seen) -> None:
        try:
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                seen.details = await self._describe(name)
        except (TimeoutError, EngineError, RequestError):
            # It is asked again with the next list.
            seen.details = None
        finally:
            seen.question = None

    async def _is_llm(self, name: str) -> bool:
        try:
            metadata = await self._connect().get_model_metadata(name, client_timeout=CONTROL_TIMEOUT_S)
        except InferenceServerException:
            # Unloaded since the index was read.
            return False
        return any(tensor.name == LLM_INPUT for tensor in metadata.inputs)


def _info(name: str, seen: _Seen) -> ModelInfo:
    if seen.details is None:
        return ModelInfo(name, seen.created)
    capabilities = {Capability.COMPLETION}
    if seen.details.has_chat_template:
        capabilities.add(Capability.CHAT)
    if Operation.TOKENIZE in seen.details.operations:
        capabilities.add(Capability.TOKENIZE)
    return ModelInfo(name, seen.created, frozenset(capabilities), seen.details.context_tokens)
