"""What a benchmark sends requests to: the engine in this process, Triton's gRPC, or the gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

import aiohttp

import native_engine_path  # noqa: F401 -- before the engine's package
from uzu_contract.errors import RequestError
from uzu_contract.request import GenerateRequest, TokenPrompt
from uzu_contract.response import GenerateChunk
from uzu_contract.sampling import SamplingParams
from uzu_gateway.engine.triton import TritonEngine
from uzu_native.assembly import load_model
from uzu_native.options import parse_options


class Target(Protocol):
    """Something that continues prompts."""

    name: str

    async def complete(self, prompt: list[int], max_tokens: int) -> int:
        """Generate greedily, to the last of `max_tokens`; how many tokens came."""
        ...

    async def close(self) -> None:
        """Give resources back."""
        ...


def _request(prompt: list[int], max_tokens: int, ignore_eos: bool = True) -> GenerateRequest:
    return GenerateRequest(
        prompt=TokenPrompt(tuple(prompt)),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=ignore_eos),
        stream=True,
        outputs=frozenset({"text_output", "token_ids", "finish_reason"}),
    )


@dataclass
class Generation:
    """What an engine answered."""

    token_ids: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0


@dataclass
class _Collector:
    """A listener that collects tokens and wakes the event loop once, at the end."""

    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[Generation]
    generation: Generation = field(default_factory=Generation)

    def on_chunk(self, chunk: GenerateChunk) -> None:
        self.generation.token_ids += chunk.token_ids
        if chunk.finish_reason is not None:
            self.generation.drafted = int(chunk.perf_metrics["drafted"])
            self.generation.accepted = int(chunk.perf_metrics["accepted"])
            self.loop.call_soon_threadsafe(self.done.set_result, self.generation)

    def on_error(self, error: RequestError) -> None:
        self.loop.call_soon_threadsafe(self.done.set_exception, error)


class EngineTarget:
    """The native engine in this process: no Triton, no HTTP. It makes text, as when serving."""

    name = "engine alone"

    def __init__(self, model_folder: Path, **options: object) -> None:
        parsed = parse_options({"model": str(model_folder), **options})
        loaded = load_model(parsed, model_folder, "smollm2", raise_fault)
        self.prompts = loaded.prompts
        self._engine = loaded.engine
        self._engine.start()

    async def complete(self, prompt: list[int], max_tokens: int) -> int:
        """See `Target.complete`."""
        return len((await self.generate(prompt, max_tokens, ignore_eos=True)).token_ids)

    async def generate(self, prompt: list[int], max_tokens: int, *, ignore_eos: bool = False) -> Generation:
        """Generate greedily, up to `max_tokens`."""
        loop = asyncio.get_running_loop()
        collector = _Collector(loop, loop.create_future())
        self._engine.submit(_request(prompt, max_tokens, ignore_eos), prompt, collector)
        return await collector.done

    async def close(self) -> None:
        """Stop the engine."""
        await asyncio.to_thread(self._engine.stop)


class TritonTarget:
    """The same model behind Triton's gRPC, through the gateway's own adapter, without the gateway."""

    name = "Triton gRPC"

    def __init__(self, url: str, model: str) -> None:
        self._engine = TritonEngine(url, request_timeout_s=600.0, models_ttl_s=60.0)
        self._model = model

    async def complete(self, prompt: list[int], max_tokens: int) -> int:
        """See `Target.complete`."""
        tokens = 0
        async for chunk in self._engine.generate(self._model, _request(prompt, max_tokens), "bench"):
            tokens += len(chunk.token_ids)
        return tokens

    async def close(self) -> None:
        """Close the channel."""
        await self._engine.close()


class GatewayTarget:
    """`/v1/completions` of a running gateway, streamed or not."""

    def __init__(self, url: str, *, stream: bool) -> None:
        self.name = "gateway, stream" if stream else "gateway, whole"
        self._url = f"{url}/v1/completions"
        self._stream = stream
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=600)
        )

    async def complete(self, prompt: list[int], max_tokens: int) -> int:
        """See `Target.complete`."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        if self._stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self._session.post(self._url, json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {await response.text()}")
            if not self._stream:
                return int((await response.json())["usage"]["completion_tokens"])
            usage = None
            async for line in response.content:
                if b'"usage":{' in line or b'"usage": {' in line:
                    usage = json.loads(line.removeprefix(b"data: "))["usage"]
            if usage is None:
                raise RuntimeError("the stream brought no usage")
            return int(usage["completion_tokens"])

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


class ServedModel:
    """`uzu serve` as a child process, ready for requests.

    Args:
        command: the program and its arguments.
        ready_text: what it prints on standard output once it is ready.

    """

    def __init__(self, command: list[str], ready_text: str) -> None:
        self._command = command
        self._ready_text = ready_text
        self._process: asyncio.subprocess.Process | None = None
        self._drain: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=30)

    async def __aenter__(self) -> ServedModel:
        """Start it, and wait until it is ready."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output = self._process.stdout
        if output is None:
            raise RuntimeError("the child process has no output")
        while line := (await output.readline()).decode():
            self._lines.append(line)
            if self._ready_text in line:
                self._drain = asyncio.create_task(self._read_on(output))
                return self
        raise RuntimeError("uzu serve did not start:\n" + "".join(self._lines))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop it in order."""
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        if self._drain is not None:
            await self._drain
        if error is not None:
            sys.stderr.write("uzu serve said last:\n" + "".join(self._lines))

    async def _read_on(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            self._lines.append(line.decode())


def raise_fault(error: BaseException) -> None:
    """For engines that must not have faults."""
    raise error
