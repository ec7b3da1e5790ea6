"""What the gateway's adapter says about a real Triton's models, and what it does to them."""

from __future__ import annotations

import pytest
from serving import answer

from uzu_contract.request import ChatPrompt, GenerateRequest, Operation, TextPrompt, TokenPrompt
from uzu_gateway.engine.port import Capability, ModelControlError, ModelNotFoundError
from uzu_gateway.engine.triton import TritonEngine

OUTPUTS = frozenset({"text_output", "token_ids", "finish_reason", "num_input_tokens", "details"})


def connect(server) -> TritonEngine:
    return TritonEngine(server.grpc_address, request_timeout_s=120, models_ttl_s=0)


async def ask(engine, operation, prompt):
    request = GenerateRequest(prompt=prompt, operation=operation, outputs=OUTPUTS)
    (chunk,) = [chunk async for chunk in engine.generate("smollm2", request, "question")]
    return chunk


async def test_what_a_model_says_about_itself(triton):
    engine = connect(triton)
    (model,) = await engine.list_models()
    assert model.name == "smollm2"
    assert model.capabilities == {Capability.COMPLETION, Capability.CHAT, Capability.TOKENIZE}
    assert model.context_tokens == 8192
    await engine.close()


async def test_tokens_there_and_back(triton):
    engine = connect(triton)
    text = "<|im_start|>user\nThe capital of Malmö 🌊<|im_end|>"
    tokens = await ask(engine, Operation.TOKENIZE, TextPrompt(text))
    assert tokens.num_input_tokens == len(tokens.token_ids) == len(tokens.details.tokens)
    assert tokens.details.tokens[0] == "<|im_start|>"
    back = await ask(engine, Operation.DETOKENIZE, TokenPrompt(tokens.token_ids))
    assert back.text == text
    chat = await ask(engine, Operation.TOKENIZE, ChatPrompt(({"role": "user", "content": "x"},)))
    assert chat.details.tokens[0] == "<|im_start|>"
    await engine.close()


async def test_models_come_and_go(start_triton):
    """server#7588: what is listed and readiness follow (Triton's own readiness does not)."""
    server = start_triton(options={"kv_cache_tokens": 4096})
    engine = connect(server)
    assert await engine.is_ready()
    before = await answer(engine, "Once upon a time", max_tokens=4)
    await engine.unload_model("smollm2")
    assert await engine.list_models() == ()
    assert not await engine.is_ready()
    with pytest.raises(ModelNotFoundError):
        await answer(engine, "Once upon a time")
    with pytest.raises(ModelNotFoundError):
        await engine.unload_model("smollm2")
    await engine.load_model("smollm2")
    assert await engine.is_ready()
    after = await answer(engine, "Once upon a time", max_tokens=4)
    assert [chunk.text for chunk in before] == [chunk.text for chunk in after]
    with pytest.raises(ModelNotFoundError):
        await engine.load_model("unheard-of")
    options = server.plan.model_repository / "smollm2" / "1" / "model.json"
    options.write_text('{"model": "nowhere"}')
    with pytest.raises(ModelControlError) as raised:
        await engine.load_model("smollm2")
    assert not raised.value.disabled
    await engine.close()
