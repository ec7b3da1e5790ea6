"""The adapter to Triton: one gRPC stream per request, which is cancelled with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc  # type: ignore[import-untyped]
import tritonclient.grpc.aio as triton
from tritonclient.utils import np_to_triton_dtype

from uzu_contract.errors import RequestError
from uzu_contract.request import GenerateRequest, Operation, TextPrompt, encode_request
from uzu_contract.response import GenerateChunk, ModelDetails, decode_chunk
from uzu_gateway.engine.port import (
    Capability,
    Embedding,
    EngineError,
    EngineFaultError,
    EngineUnavailableError,
    ModelInfo,
    Score,
    cannot,
)
from uzu_gateway.engine.served_models import ServedModels
from uzu_gateway.engine.triton_errors import status_name, translate
from uzu_gateway.engine.triton_models import CONTROL_TIMEOUT_S, TritonModels

FINAL_RESPONSE = "triton_final_response"
_DETAILS = frozenset({"details", "finish_reason"})

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Triton counts pings that come more often than every 300 s without data as abuse and hangs up.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 2),
    # The default back-off grows to two minutes, for which a restarted Triton would be left alone.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A proxy of the environment is for the world outside; Triton is named by its address.
    ("grpc.enable_http_proxy", 0),
    # Requests are small and wait for nothing: a channel is not shared with other gateways in the process.
    ("grpc.use_local_subchannel_pool", 1),
)
_READ_OUT_TIMEOUT_S = 5.0
_MODELS_STALE_S = 10.0


class TritonEngine:
    """Serves generations on the Triton at `url` (host:port of its gRPC service).

    Args:
        url: host:port.
        request_timeout_s: a generation that takes longer is cancelled.
        models_ttl_s: for how long the list of models is remembered, or that asking for it failed.

    """

    def __init__(self, url: str, *, request_timeout_s: float, models_ttl_s: float) -> None:
        self._url = url
        self._request_timeout_s = request_timeout_s
        self._client: triton.InferenceServerClient | None = None
        self._reading_out: set[asyncio.Task[None]] = set()
        self._triton_models = TritonModels(self._connection, self._describe)
        self._models = ServedModels(
            self._triton_models.ask, ttl_s=models_ttl_s, timeout_s=CONTROL_TIMEOUT_S, stale_s=_MODELS_STALE_S
        )

    async def generate(
        self, model: str, request: GenerateRequest, request_id: str
    ) -> AsyncGenerator[GenerateChunk, None]:
        """See `Engine.generate`."""
        call = self._connection().stream_infer(
            _once(_inference(model, request, request_id)),
            stream_timeout=self._request_timeout_s,
        )
        finished = over = False
        try:
            async for result, error in call:
                if error is not None:
                    over = True
                    await self._read_out(call)
                    raise translate(status_name(error), error.message(), model)
                response = result.get_response()
                final = response.parameters[FINAL_RESPONSE].bool_param
                if response.outputs:
                    yield _decode(result, response)
                finished = finished or final
            over = True
        except grpc.RpcError as error:
            over = True
            raise translate(error.code().name, error.details() or "", model) from None
        except asyncio.CancelledError:
            # gRPC raises it also when the channel is closed beneath the call.
            if _is_cancelled_itself():
                raise
            raise EngineUnavailableError("the connection was closed") from None
        finally:
            if not over:
                call.cancel()
        if not finished:
            raise EngineFaultError("the stream ended without a final response")

    async def _read_out(self, call: AsyncIterator[Any]) -> None:
        """Read a stream that brought an error to its end, also when nobody waits for it any more.

        Triton 2.51 crashes or keeps the request for ever when such a stream is cancelled while it ends by
        itself, so it is not. Asking it for gRPC statuses (`triton_grpc_error`) crashes it too.
        """

        async def rest() -> None:
            with contextlib.suppress(grpc.RpcError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(_READ_OUT_TIMEOUT_S):
                    async for _ in call:
                        pass

        task = asyncio.create_task(rest())
        self._reading_out.add(task)
        task.add_done_callback(self._reading_out.discard)
        await asyncio.shield(task)

    async def embed(self, model: str, texts: Sequence[str], request_id: str) -> tuple[Embedding, ...]:  # noqa: ARG002
        """See `Engine.embed`; no model of the contract makes embeddings."""
        raise cannot(model, Capability.EMBEDDING)

    async def score(
        self,
        model: str,
        pairs: Sequence[tuple[str, str]],  # noqa: ARG002
        request_id: str,  # noqa: ARG002
    ) -> tuple[Score, ...]:
        """See `Engine.score`; no model of the contract gives scores."""
        raise cannot(model, Capability.SCORE)

    async def load_model(self, model: str) -> None:
        """See `Engine.load_model`."""
        try:
            await self._triton_models.load(model)
        finally:
            self._models.forget()

    async def unload_model(self, model: str) -> None:
        """See `Engine.unload_model`."""
        try:
            await self._triton_models.unload(model)
        finally:
            self._models.forget()

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """See `Engine.list_models`; remembered for `models_ttl_s`."""
        return await self._models.get()

    async def is_ready(self) -> bool:
        """See `Engine.is_ready`."""
        try:
            return bool(await self.list_models())
        except (EngineError, RequestError):
            return False

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._models.close()
        await self._triton_models.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _connection(self) -> triton.InferenceServerClient:
        # A channel belongs to the event loop in which it is made, so it is not made in __init__.
        if self._client is None:
            self._client = triton.InferenceServerClient(self._url, channel_args=_CHANNEL_OPTIONS)
        return self._client

    async def _describe(self, model: str) -> ModelDetails | None:
        request = GenerateRequest(prompt=TextPrompt(""), operation=Operation.DESCRIBE, outputs=_DETAILS)
        details = None
        async with aclosing(self.generate(model, request, "uzu-describe")) as chunks:
            # To its end, since a call that ends by itself is not to be cancelled.
            async for chunk in chunks:
                details = chunk.details or details
        return details


async def _once(inference: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield inference


def _inference(model: str, request: GenerateRequest, request_id: str) -> dict[str, Any]:
    tensors, parameters = encode_request(request)
    inputs = []
    for name, array in tensors.items():
        tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return {
        "model_name": model,
        "inputs": inputs,
        "outputs": [triton.InferRequestedOutput(name) for name in sorted(request.outputs)],
        "request_id": request_id,
        "parameters": {**parameters, "triton_enable_empty_final_response": True},
    }


def _decode(result: Any, response: Any) -> GenerateChunk:
    arrays = {output.name: result.as_numpy(output.name) for output in response.outputs}
    try:
        return decode_chunk(arrays)
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise EngineFaultError(f"a response breaks the contract: {error}") from None


def _is_cancelled_itself() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
