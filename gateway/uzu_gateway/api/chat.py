"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from uzu_contract.errors import RequestError
from uzu_contract.request import GenerateRequest
from uzu_gateway.api.answer import answer, describe_body
from uzu_gateway.context import gateway_of, record_of
from uzu_gateway.engine.codec import chat_requests
from uzu_gateway.engine.port import Capability
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
    plan = await plan_chat(request, body)
    return await answer(request, plan.model, plan.requests, plan.reply, plan.blame)


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """What a chat body asks for.

    Args:
        model: that answers.
        requests: one for each choice.
        reply: what the client is told.
        blame: gives the engine's complaint the body's names of the fields.

    """

    model: str
    requests: tuple[GenerateRequest, ...]
    reply: ChatReply
    blame: Callable[[RequestError], RequestError]


async def plan_chat(request: Request, body: ChatRequest) -> ChatPlan:
    """What is to be done for a chat; other APIs that turn their bodies into chats ask this too.

    Raises:
        RequestError: a field is wrong, or the model has no chat.
        GatewayError: no model is meant.
        EngineError: nobody can tell which models there are.

    """
    gateway = gateway_of(request)
    generations = chat_requests(body, traceparent=request.headers.get("traceparent"))
    model = record_of(request).model = await gateway.resolve_model(body.model, Capability.CHAT)
    reply = ChatReply(
        model,
        len(generations),
        prompt_logprobs=body.prompt_logprobs,
        include_usage=body.include_usage,
    )
    return ChatPlan(model, generations, reply, wanted_form(body).blame)
