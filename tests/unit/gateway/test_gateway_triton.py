from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import grpc  # type: ignore[import-untyped]
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc as services
from tritonclient.utils import serialize_byte_tensor

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.request import GenerateRequest, TextPrompt, decode_request
from uzu_contract.response import FinishReason, GenerateChunk, ModelDetails, encode_chunk
from uzu_contract.sampling import SamplingParams
from uzu_gateway.engine.codec import OUTPUTS
from uzu_gateway.engine.port import (
    Capability,
    EngineFaultError,
    EngineTimeoutError,
    EngineUnavailableError,
    ModelControlError,
    ModelNotFoundError,
)
from uzu_gateway.engine.triton import TritonEngine
from uzu_gateway.engine.triton_errors import translate

WORDS = ("one", " zwei é", " 三")
DATATYPES = {"i4": "INT32", "u4": "UINT32"}
REQUEST = GenerateRequest(
    prompt=TextPrompt("hello"),
    sampling=SamplingParams(max_tokens=3),
    stream=True,
    outputs=OUTPUTS,
    priority=3,
    cache_salt="salt",
)


class FakeTriton(services.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """As much of KServe's service as the adapter uses, with the ways in which it goes wrong."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.headers: dict[str, Any] = {}
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.mode = "words"
        self.index_calls = 0
        self.describes = True
        self.control_error = ""
        self.controlled: list[str] = []
        self.models = {"llm": "READY", "loading": "LOADING", "other": "READY", "gone": "READY"}

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.index_calls += 1
        entries = [
            messages.RepositoryIndexResponse.ModelIndex(name=n, version="1", state=s)
            for n, s in self.models.items()
        ]
        return messages.RepositoryIndexResponse(models=entries)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.name == "gone":
            await context.abort(grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'gone' is not found")
        tensor = "messages" if request.name == "llm" else "x"
        inputs = [messages.ModelMetadataResponse.TensorMetadata(name=tensor, datatype="BYTES", shape=[1])]
        return messages.ModelMetadataResponse(name=request.name, inputs=inputs)

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        if self.control_error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.control_error)
        self.controlled.append(f"load {request.model_name}")
        self.models[request.model_name] = "READY"
        return messages.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.controlled.append(f"unload {request.model_name}")
        self.models[request.model_name] = "UNAVAILABLE"
        return messages.RepositoryModelUnloadResponse()

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.headers = dict(context.invocation_metadata())
        async for request in requests:
            if request.id == "uzu-describe":
                if not self.describes:
                    await asyncio.sleep(60)
                details = ModelDetails(
                    context_tokens=77, operations=("generate", "tokenize"), has_chat_template=False
                )
                chunk = GenerateChunk(text="", finish_reason=FinishReason.STOP, details=details)
                yield _response(encode_chunk(chunk, {"details", "finish_reason"}), final=True)
                return
            self.seen.append(request)
            self.started.set()
            try:
                async for response in self._answer(context):
                    yield response
            except asyncio.CancelledError:
                self.cancelled.set()
                raise

    async def _answer(self, context: Any) -> AsyncIterator[Any]:
        match self.mode:
            case "hang":
                await asyncio.sleep(60)
            case "text error":
                yield messages.ModelStreamInferResponse(error_message="bad [uzu:overloaded]")
                return
            case "unavailable":
                await context.abort(grpc.StatusCode.UNAVAILABLE, "secret")
            case "refused":
                error = RequestError(ErrorCode.CONTEXT_LENGTH_EXCEEDED, "text_input: long", "text_input")
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, error.to_wire())
            case "garbage":
                yield _response({"finish_reason": np.array([b"unheard of"], np.object_)}, final=True)
                return
        for index, word in enumerate(WORDS):
            finish = FinishReason.LENGTH if index == 2 else None
            chunk = GenerateChunk(text=word, token_ids=(index,), finish_reason=finish, num_input_tokens=5)
            yield _response(encode_chunk(chunk, OUTPUTS), final=False)
            if self.mode == "endless" and index == 0:
                await asyncio.sleep(60)
        if self.mode != "cut":
            yield _response({}, final=True)


def _response(arrays: dict[str, Any], *, final: bool) -> Any:
    response = messages.ModelInferResponse(model_name="llm")
    response.parameters["triton_final_response"].bool_param = final
    for name, array in arrays.items():
        is_text = array.dtype == np.object_
        datatype = "BYTES" if is_text else DATATYPES[array.dtype.str[1:]]
        response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        raw = serialize_byte_tensor(array).item() if is_text else array.tobytes()
        response.raw_output_contents.append(raw)
    return messages.ModelStreamInferResponse(infer_response=response)


Start = Callable[..., Awaitable[tuple[TritonEngine, FakeTriton]]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """`engine, triton = await start(mode="hang")`."""
    servers, engines = [], []

    async def started(mode: str = "words", **options: Any) -> tuple[TritonEngine, FakeTriton]:
        server = grpc.aio.server()
        triton = FakeTriton()
        triton.mode = mode
        services.add_GRPCInferenceServiceServicer_to_server(triton, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append(server)
        engine = TritonEngine(f"127.0.0.1:{port}", **{"request_timeout_s": 30, "models_ttl_s": 30, **options})
        engines.append(engine)
        return engine, triton

    yield started
    for engine in engines:
        await engine.close()
    for server in servers:
        await server.stop(None)


async def collect(engine: TritonEngine, request: GenerateRequest = REQUEST) -> list[GenerateChunk]:
    return [chunk async for chunk in engine.generate("llm", request, "id-1")]


async def test_a_generation(start: Start) -> None:
    engine, _ = await start()
    chunks = await collect(engine)
    assert tuple(chunk.text for chunk in chunks) == WORDS
    assert [chunk.token_ids for chunk in chunks] == [(0,), (1,), (2,)]
    assert [chunk.finish_reason for chunk in chunks] == [None, None, FinishReason.LENGTH]
    assert {chunk.num_input_tokens for chunk in chunks} == {5}


async def test_what_is_sent_decodes_to_the_request(start: Start) -> None:
    engine, triton = await start()
    await collect(engine)
    (sent,) = triton.seen
    assert (sent.model_name, sent.id) == ("llm", "id-1")
    assert {output.name for output in sent.outputs} == OUTPUTS
    parameters = {name: _value(parameter) for name, parameter in sent.parameters.items()}
    assert parameters.pop("triton_enable_empty_final_response") is True
    tensors = {
        tensor.name: np.array([raw[4:]], np.object_)
        if tensor.datatype == "BYTES"
        else np.frombuffer(raw, "?")
        for tensor, raw in zip(sent.inputs, sent.raw_input_contents, strict=True)
    }
    assert decode_request(tensors, parameters, [output.name for output in sent.outputs]) == REQUEST
    assert "triton_grpc_error" not in triton.headers, "Triton 2.51 crashes with it"


def _value(parameter: Any) -> object:
    value: object = getattr(parameter, parameter.WhichOneof("parameter_choice"))
    return value


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("unavailable", EngineUnavailableError),
        ("cut", EngineFaultError),
        ("garbage", EngineFaultError),
    ],
)
async def test_failures(start: Start, mode: str, kind: type[Exception]) -> None:
    engine, _ = await start(mode)
    with pytest.raises(kind):
        await collect(engine)


@pytest.mark.parametrize(
    ("mode", "code"),
    [("refused", ErrorCode.CONTEXT_LENGTH_EXCEEDED), ("text error", ErrorCode.OVERLOADED)],
)
async def test_refusals(start: Start, mode: str, code: ErrorCode) -> None:
    engine, _ = await start(mode)
    with pytest.raises(RequestError) as raised:
        await collect(engine)
    assert raised.value.code == code


async def test_the_time_limit(start: Start) -> None:
    engine, triton = await start("hang", request_timeout_s=0.2)
    with pytest.raises(EngineTimeoutError):
        await collect(engine)
    await asyncio.wait_for(triton.cancelled.wait(), 1)


async def test_closing_the_generator_cancels_the_call(start: Start) -> None:
    engine, triton = await start("endless")
    async with aclosing(engine.generate("llm", REQUEST, "id")) as chunks:
        assert (await anext(chunks)).text == "one"
    await asyncio.wait_for(triton.cancelled.wait(), 0.5)


async def test_cancelling_the_task_cancels_the_call(start: Start) -> None:
    engine, triton = await start("hang")
    task = asyncio.create_task(collect(engine))
    await asyncio.wait_for(triton.started.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(triton.cancelled.wait(), 0.5)


async def test_closing_the_engine_fails_what_runs(start: Start) -> None:
    engine, triton = await start("hang")
    task = asyncio.create_task(collect(engine))
    await asyncio.wait_for(triton.started.wait(), 5)
    await engine.close()
    with pytest.raises(EngineUnavailableError):
        await task


async def test_models_are_the_ready_ones_of_the_contract(start: Start) -> None:
    engine, triton = await start()
    (model,) = await engine.list_models()
    assert model.name == "llm"
    assert await engine.is_ready()
    triton.models = {}
    assert await engine.list_models() == (model,)
    assert triton.index_calls == 1


async def test_models_say_what_they_can_do(start: Start) -> None:
    engine, _ = await start()
    (model,) = await engine.list_models()
    assert model.context_tokens == 77
    assert model.capabilities == {Capability.COMPLETION, Capability.TOKENIZE}


async def test_a_model_that_does_not_say_what_it_can_do_is_served_all_the_same(start: Start) -> None:
    engine, triton = await start(models_ttl_s=0)
    triton.describes = False
    began = time.monotonic()
    (model,) = await engine.list_models()
    assert (model.context_tokens, time.monotonic() - began < 3) == (None, True)
    assert Capability.CHAT in model.capabilities
    began = time.monotonic()
    await engine.list_models()
    assert time.monotonic() - began < 0.5, "it is waited for only once"


async def test_loading_and_unloading(start: Start) -> None:
    engine, triton = await start(models_ttl_s=30)
    assert await engine.is_ready()
    await engine.unload_model("llm")
    assert not await engine.is_ready()
    with pytest.raises(ModelNotFoundError):
        await engine.unload_model("llm")
    await engine.load_model("llm")
    assert [model.name for model in await engine.list_models()] == ["llm"]
    assert triton.controlled == ["unload llm", "load llm"]
    with pytest.raises(ModelNotFoundError):
        await engine.load_model("unheard-of")


@pytest.mark.parametrize(
    ("text", "disabled"),
    [
        ("explicit model load / unload is not allowed if polling is enabled", True),
        ("load failed for model 'llm': version 1 is at UNAVAILABLE state: Internal: secret", False),
    ],
)
async def test_a_load_that_fails(start: Start, text: str, disabled: bool) -> None:
    engine, triton = await start()
    triton.control_error = text
    with pytest.raises(ModelControlError) as raised:
        await engine.load_model("llm")
    assert raised.value.disabled is disabled


async def test_models_follow_the_server(start: Start) -> None:
    engine, triton = await start(models_ttl_s=0)
    (model,) = await engine.list_models()
    assert await engine.list_models() == (model,)
    triton.models = {"llm": "UNAVAILABLE"}
    assert await engine.list_models() == ()
    assert not await engine.is_ready()
    assert triton.index_calls == 4


async def test_many_at_once_ask_once(start: Start) -> None:
    engine, triton = await start()
    await asyncio.gather(*(engine.list_models() for _ in range(50)))
    assert triton.index_calls == 1


async def test_no_server(free_port: int) -> None:
    engine = TritonEngine(f"127.0.0.1:{free_port}", request_timeout_s=30, models_ttl_s=1)
    with pytest.raises(EngineUnavailableError):
        await engine.list_models()
    with pytest.raises(EngineUnavailableError):
        await collect(engine)
    assert not await engine.is_ready()
    await engine.close()


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        ("UNAVAILABLE", "failed to connect", EngineUnavailableError),
        ("INTERNAL", "Stub process 'm_0_0' is not healthy.", EngineUnavailableError),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", EngineTimeoutError),
        ("NOT_FOUND", "Request for unknown model: 'm' is not found", ModelNotFoundError),
        ("", "Request for unknown model: 'm' has no available versions", ModelNotFoundError),
        ("INTERNAL", "ValueError", EngineFaultError),
        ("INVALID_ARGUMENT", "unexpected inference output 'text_output' for model 'm'", EngineFaultError),
        ("", "anything", EngineFaultError),
    ],
)
def test_translation(status: str, text: str, kind: type[Exception]) -> None:
    assert type(translate(status, text, "m")) is kind


def test_a_full_queue_is_overload_whatever_its_status() -> None:
    for status in ("UNAVAILABLE", ""):
        error = translate(status, "[request id: 1] Exceeds maximum queue size", "m")
        assert isinstance(error, RequestError)
        assert error.code == ErrorCode.OVERLOADED


@pytest.mark.parametrize("code", ErrorCode)
def test_the_contract_s_errors_come_back_as_they_were(code: ErrorCode) -> None:
    error = translate("INTERNAL", f"in ensemble 'e', {RequestError(code, 'why', 'field').to_wire()}", "m")
    assert isinstance(error, RequestError)
    assert (error.code, error.param) == (code, "field")
