"""Anthropic's `/v1/messages`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from uzu_contract.errors import RequestError
from uzu_contract.request import Operation
from uzu_gateway.api.answer import answer, describe_body
from uzu_gateway.api.chat import ChatPlan, plan_chat
from uzu_gateway.api.tokens import ask
from uzu_gateway.context import gateway_of
from uzu_gateway.engine.message_reply import MessageReply
from uzu_gateway.schemas.messages import CHAT_NAMES, CountTokensRequest, MessagesRequest
from uzu_gateway.schemas.parse import read_body
from uzu_gateway.schemas.renames import renamed

router = APIRouter()


@router.post("/v1/messages", openapi_extra=describe_body(MessagesRequest))
async def create_message(request: Request) -> Response:
    """Go on from a conversation, in Anthropic's way."""
    gateway = gateway_of(request)
    body, unknown = await read_body(request, MessagesRequest, strict=gateway.settings.strict_fields)
    gateway.telemetry.unknown_fields.inc(unknown)
    plan = await _plan(request, body)
    # How a text ended is told by which stop sequence it was.
    requests = [replace(wanted, outputs=wanted.outputs | {"stop_reason"}) for wanted in plan.requests]
    reply = MessageReply(plan.reply, plan.model, body.stop_sequences or ())
    return await answer(
        request, plan.model, requests, reply, lambda error: renamed(plan.blame(error), CHAT_NAMES)
    )


@router.post("/v1/messages/count_tokens", openapi_extra=describe_body(CountTokensRequest))
async def count_tokens(request: Request) -> dict[str, Any]:
    """How many tokens a message would begin from."""
    gateway = gateway_of(request)
    body, unknown = await read_body(request, CountTokensRequest, strict=gateway.settings.strict_fields)
    gateway.telemetry.unknown_fields.inc(unknown)
    plan = await _plan(request, body)
    counted = await ask(request, body.model, Operation.TOKENIZE, plan.requests[0].prompt)
    return {"input_tokens": len(counted.token_ids)}


async def _plan(request: Request, body: CountTokensRequest) -> ChatPlan:
    chat = body.to_chat()
    try:
        return await plan_chat(request, chat)
    except RequestError as error:
        raise renamed(error, CHAT_NAMES) from None
