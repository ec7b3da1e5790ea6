"""The list of served models: asked for once at a time, remembered for a while, also when asking failed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from uzu_contract.errors import RequestError
from uzu_gateway.engine.port import EngineError, EngineTimeoutError, EngineUnavailableError, ModelInfo

Models = tuple[ModelInfo, ...]

_PATIENCE_S = 0.25
"""How long a caller waits for a new list while the last one may still be used."""


class ServedModels:
    """Remembers what `ask` answers. Safe to use from many tasks of one event loop.

    Args:
        ask: gives the list; may hang, or raise `EngineError` or `RequestError`.
        ttl_s: for how long an answer or a failure is remembered.
        timeout_s: for how long it is waited for.
        stale_s: for how long past `ttl_s` a list may be used while another is asked for, unless asking
            has failed since.

    """

    def __init__(
        self, ask: Callable[[], Awaitable[Models]], *, ttl_s: float, timeout_s: float, stale_s: float
    ) -> None:
        self._ask = ask
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self._stale_s = stale_s
        self._answer: Models | Exception = ()
        self._answered_at = float("-inf")
        self._refresh: asyncio.Task[None] | None = None

    async def get(self) -> Models:
        """The list; all who wait share one question.

        Raises:
            EngineError: asking failed, now or less than `ttl_s` ago.
            RequestError: likewise, the backend being overloaded.

        """
        if self._age_s() >= self._ttl_s:
            await self._ask_once()
        if isinstance(self._answer, Exception):
            raise self._answer.with_traceback(None)
        return self._answer

    def forget(self) -> None:
        """Ask anew when the list is wanted next; for when it is known to have changed."""
        self._answered_at = float("-inf")

    async def close(self) -> None:
        """Stop asking; who waits gets `EngineUnavailableError`."""
        if self._refresh is not None:
            self._refresh.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresh

    async def _ask_once(self) -> None:
        if self._refresh is None:
            self._refresh = asyncio.create_task(self._run())
        usable = not isinstance(self._answer, Exception) and self._age_s() < self._ttl_s + self._stale_s
        # Waiting for the task like this neither cancels it with one caller nor passes its end on.
        await asyncio.wait({self._refresh}, timeout=_PATIENCE_S if usable else None)

    async def _run(self) -> None:
        answer: Models | Exception = EngineUnavailableError("the connection was closed")
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._ask()
        except TimeoutError:
            answer = EngineTimeoutError(f"the list of models did not come within {self._timeout_s:g} s")
        except (EngineError, RequestError) as error:
            answer = error
        finally:
            self._answer, self._answered_at, self._refresh = answer, time.monotonic(), None

    def _age_s(self) -> float:
        return time.monotonic() - self._answered_at
