"""Running the generations of one HTTP request: several at once, counted, and cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from uzu_contract.request import GenerateRequest
from uzu_contract.response import FinishReason, GenerateChunk
from uzu_gateway.engine.port import Engine, EngineFaultError
from uzu_gateway.telemetry import RequestRecord, Telemetry

IndexedChunk = tuple[int, GenerateChunk]
_QUEUE_LENGTH_PER_CHOICE = 8


@dataclass(frozen=True, slots=True)
class Generations:
    """Runs generations on an engine and counts them.

    Args:
        engine: runs them.
        telemetry: counts them.

    """

    engine: Engine
    telemetry: Telemetry

    async def run(
        self, model: str, requests: Sequence[GenerateRequest], record: RequestRecord
    ) -> AsyncGenerator[IndexedChunk, None]:
        """Chunks of all requests, each with the index of its request.

        The first chunk comes once every request has one, so that whatever is refused is refused before
        anything has been sent. One failure cancels all; so does closing the generator.

        Raises:
            RequestError: the engine refused a request.
            EngineError: one was not served for another reason.

        """
        streams = [
            self._one(model, request, _request_id(record, index, len(requests)), record)
            for index, request in enumerate(requests)
        ]
        merged = _single(streams[0]) if len(streams) == 1 else _merged(streams)
        first = True
        async with aclosing(merged):
            async for item in merged:
                if first and requests[0].stream:
                    self.telemetry.first_token_seconds.labels(model).observe(record.elapsed_s)
                first = False
                yield item

    async def _one(
        self, model: str, request: GenerateRequest, request_id: str, record: RequestRecord
    ) -> AsyncGenerator[GenerateChunk, None]:
        prompt_tokens = completion_tokens = 0
        finished = False
        if record.priority is not None:
            request = replace(request, priority=record.priority)
        self.telemetry.generations_in_flight.inc()
        try:
            async with aclosing(self.engine.generate(model, request, request_id)) as chunks:
                async for chunk in chunks:
                    prompt_tokens = max(prompt_tokens, chunk.num_input_tokens)
                    completion_tokens += len(chunk.token_ids)
                    if chunk.finish_reason in (FinishReason.ABORT, FinishReason.ERROR):
                        raise EngineFaultError(f"the generation ended with {chunk.finish_reason}")
                    finished = finished or chunk.finish_reason is not None
                    yield chunk
            if not finished:
                raise EngineFaultError("the generation ended without a finish reason")
        finally:
            self.telemetry.generations_in_flight.dec()
            self.telemetry.prompt_tokens.labels(model).inc(prompt_tokens)
            self.telemetry.completion_tokens.labels(model).inc(completion_tokens)
            record.prompt_tokens += prompt_tokens
            record.completion_tokens += completion_tokens


def _request_id(record: RequestRecord, index: int, count: int) -> str:
    return record.request_id if count == 1 else f"{record.request_id}-{index}"


async def _single(stream: AsyncGenerator[GenerateChunk, None]) -> AsyncGenerator[IndexedChunk, None]:
    async with aclosing(stream):
        async for chunk in stream:
            yield 0, chunk


async def _merged(
    streams: Sequence[AsyncGenerator[GenerateChunk, None]],
) -> AsyncGenerator[IndexedChunk, None]:
    queue: asyncio.Queue[tuple[int, GenerateChunk | Exception | None]] = asyncio.Queue(
        _QUEUE_LENGTH_PER_CHOICE * len(streams)
    )
    tasks = [asyncio.create_task(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    without_chunk = set(range(len(streams)))
    held: list[IndexedChunk] = []
    running = len(streams)
    try:
        while running:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
                continue
            held.append((index, item))
            without_chunk.discard(index)
            if not without_chunk:
                for ready in held:
                    yield ready
                held.clear()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    index: int,
    stream: AsyncGenerator[GenerateChunk, None],
    queue: asyncio.Queue[tuple[int, GenerateChunk | Exception | None]],
) -> None:
    try:
        async with aclosing(stream):
            async for chunk in stream:
                await queue.put((index, chunk))
    except Exception as error:
        await queue.put((index, error))
    else:
        await queue.put((index, None))
