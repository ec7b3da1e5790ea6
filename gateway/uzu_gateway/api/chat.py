"""`/v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from uzu_gateway.api.answer import answer, describe_body
from uzu_gateway.context import gateway_of, record_of
from uzu_gateway.engine.codec import chat_requests
from uzu_gateway.engine.replies import ChatReply
from uzu_gateway.engine.structured import wanted_form
from uzu_gateway.schemas.chat import ChatRequest
from uzu_gateway.schemas.parse import read_body

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=describe_body(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Go on from a conversation."""
    gateway = gateway_of(request)
    body, unknown = await read_body(request, ChatRequest, strict=gateway.settings.strict_fields)
    gateway.telemetry.unknown_fields.inc(unknown)
    generations = chat_requests(body, traceparent=request.headers.get("traceparent"))
    model = record_of(request).model = await gateway.resolve_model(body.model)
    reply = ChatReply(
        model,
        len(generations),
        prompt_logprobs=body.prompt_logprobs,
        include_usage=body.include_usage,
    )
    return await answer(request, model, generations, reply, wanted_form(body).blame)
