"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request

from uzu_contract.errors import RequestError
from uzu_contract.request import GenerateRequest, Operation, Prompt
from uzu_contract.response import GenerateChunk
from uzu_gateway.api.answer import describe_body
from uzu_gateway.context import gateway_of, record_of
from uzu_gateway.disconnect import run_until_disconnect
from uzu_gateway.engine.port import Capability, EngineFaultError
from uzu_gateway.schemas.parse import read_body
from uzu_gateway.schemas.tokens import DetokenizeRequest, TokenizeRequest

router = APIRouter()

_OUTPUTS = frozenset({"text_output", "token_ids", "finish_reason", "num_input_tokens", "details"})


@router.post("/tokenize", openapi_extra=describe_body(TokenizeRequest))
async def tokenize(request: Request) -> dict[str, Any]:
    """The tokens of a text or of messages."""
    gateway = gateway_of(request)
    body, unknown = await read_body(request, TokenizeRequest, strict=gateway.settings.strict_fields)
    gateway.telemetry.unknown_fields.inc(unknown)
    answer = await ask(
        request,
        body.model,
        Operation.TOKENIZE,
        body.to_prompt(),
        add_special_tokens=body.add_special_tokens is not False,
    )
    spelled = None if answer.details is None else answer.details.tokens
    return {
        "count": len(answer.token_ids),
        "max_model_len": None if answer.details is None else answer.details.context_tokens,
        "tokens": list(answer.token_ids),
        "token_strs": list(spelled) if body.return_token_strs and spelled is not None else None,
    }


@router.post("/detokenize", openapi_extra=describe_body(DetokenizeRequest))
async def detokenize(request: Request) -> dict[str, Any]:
    """The text of tokens."""
    gateway = gateway_of(request)
    body, unknown = await read_body(request, DetokenizeRequest, strict=gateway.settings.strict_fields)
    gateway.telemetry.unknown_fields.inc(unknown)
    answer = await ask(request, body.model, Operation.DETOKENIZE, body.tokens, called="tokens")
    return {"prompt": answer.text}


async def ask(
    request: Request,
    name: str | None,
    operation: Operation,
    prompt: Prompt,
    *,
    add_special_tokens: bool = True,
    called: str = "prompt",
) -> GenerateChunk:
    """The answer of a model to a question about tokens.

    Args:
        request: of the client, whose leaving ends the question.
        name: of the model, as the client gave it.
        operation: tokenize or detokenize.
        prompt: text, messages or tokens.
        add_special_tokens: begin as the model's texts begin.
        called: what the client calls `prompt` when it is no messages.

    Raises:
        RequestError: the model does not answer such questions, or refused this one.
        EngineError: it was not answered for another reason.

    """
    gateway, record = gateway_of(request), record_of(request)
    record.model = await gateway.resolve_model(name, Capability.TOKENIZE)
    question = GenerateRequest(
        prompt=prompt, operation=operation, add_special_tokens=add_special_tokens, outputs=_OUTPUTS
    )
    try:
        return await run_until_disconnect(
            request.receive, _one(gateway.engine.generate(record.model, question, record.request_id))
        )
    except RequestError as error:
        if error.param not in ("text_input", "input_ids"):
            raise
        text = error.message.removeprefix(f"{error.param}: ")
        raise RequestError(error.code, f"{called}: {text}", called) from None


async def _one(chunks: AsyncGenerator[GenerateChunk, None]) -> GenerateChunk:
    answer = None
    async with aclosing(chunks):
        # To its end, since a call that ends by itself is not to be cancelled.
        async for chunk in chunks:
            answer = answer or chunk
    if answer is None:
        raise EngineFaultError("there was no answer")
    return answer
