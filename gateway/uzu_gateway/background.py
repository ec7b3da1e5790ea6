"""Responses that are worked on while nobody waits for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from uzu_contract.request import GenerateRequest
from uzu_gateway.engine.response_reply import ResponseReply
from uzu_gateway.errors import GatewayError, as_gateway_error
from uzu_gateway.generation import Generations
from uzu_gateway.request_log import log_failure
from uzu_gateway.response_store import ResponseStore
from uzu_gateway.telemetry import RequestRecord

MAX_RUNNING = 256
LEASE_S = 30.0
"""What is kept of a response that runs lives no longer than this without its gateway."""


@dataclass(slots=True)
class Work:
    """A response to work on.

    Args:
        model: that answers.
        requests: what the engine is to do.
        reply: the response.
        input_items: the conversation before it.
        record: counts its tokens.

    """

    model: str
    requests: Sequence[GenerateRequest]
    reply: ResponseReply
    input_items: Sequence[dict[str, Any]]
    record: RequestRecord
    is_cancelled: bool = field(default=False, init=False)

    def stored(self) -> dict[str, Any]:
        """What is kept of it."""
        return stored_response(self.reply, self.input_items)


def stored_response(reply: ResponseReply, input_items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a response: it, and the conversation of which it is the end."""
    body = reply.body()
    return {"response": body, "input": list(input_items), "output": body["output"]}


class BackgroundResponses:
    """Runs responses as tasks and keeps their state. For one event loop.

    Args:
        store: keeps the state.
        generations: runs them.

    """

    def __init__(self, store: ResponseStore, generations: Generations) -> None:
        self._store = store
        self._generations = generations
        self._running: dict[str, tuple[Work, asyncio.Task[None]]] = {}

    async def start(self, work: Work) -> dict[str, Any]:
        """Begin; the response as it stands.

        Raises:
            GatewayError: too many run, or the state cannot be kept.

        """
        if len(self._running) >= MAX_RUNNING:
            raise GatewayError("overloaded", f"{MAX_RUNNING} responses run in the background already.")
        work.reply.set_status("queued")
        await self._store.put(work.reply.response_id, work.stored(), LEASE_S)
        queued = work.reply.body()
        work.reply.set_status("in_progress")
        task = asyncio.create_task(self._run(work))
        self._running[work.reply.response_id] = (work, task)
        return queued

    async def cancel(self, response_id: str) -> dict[str, Any] | None:
        """Stop a response; as it then stands, or None when it does not run here."""
        running = self._running.get(response_id)
        if running is None:
            return None
        work, task = running
        work.is_cancelled = True
        task.cancel()
        await asyncio.wait({task})
        return work.reply.body()

    async def close(self) -> None:
        """Stop everything; what is stopped has failed."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, work: Work) -> None:
        keeping = asyncio.create_task(self._keep(work))
        try:
            chunks = self._generations.run(work.model, work.requests, work.record)
            async with aclosing(chunks):
                async for index, chunk in chunks:
                    work.reply.add(index, chunk)
        except asyncio.CancelledError as error:
            if work.is_cancelled:
                work.reply.set_status("cancelled")
            else:
                work.reply.fail(as_gateway_error(error))
        except Exception as error:  # nobody waits for this task; the response says what became of it
            log_failure(work.record, error)
            work.reply.fail(as_gateway_error(error))
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            try:
                await self._store.put(work.reply.response_id, work.stored())
            except GatewayError as error:
                log_failure(work.record, error)
            self._running.pop(work.reply.response_id, None)

    async def _keep(self, work: Work) -> None:
        while True:
            with contextlib.suppress(GatewayError):
                await self._store.put(work.reply.response_id, work.stored(), LEASE_S)
            await asyncio.sleep(LEASE_S / 3)
