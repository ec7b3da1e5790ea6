"""`/v1/responses`: conversations whose turns the gateway remembers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.responses import JSONResponse

from uzu_contract.errors import RequestError, invalid, unsupported
from uzu_contract.request import GenerateRequest, Operation
from uzu_gateway.api.answer import answer, describe_body
from uzu_gateway.api.chat import ChatPlan, plan_chat
from uzu_gateway.api.tokens import ask
from uzu_gateway.background import Work, stored_response
from uzu_gateway.context import gateway_of, record_of
from uzu_gateway.engine.response_reply import ResponseReply
from uzu_gateway.errors import GatewayError
from uzu_gateway.request_log import log_failure
from uzu_gateway.schemas.batches import listed, page_of
from uzu_gateway.schemas.parse import read_body
from uzu_gateway.schemas.renames import renamed
from uzu_gateway.schemas.response_items import JsonObject
from uzu_gateway.schemas.responses import CHAT_NAMES, ResponsesRequest
from uzu_gateway.telemetry import RequestRecord

router = APIRouter()

_ENDED = ("completed", "incomplete")
_MOST_PER_PAGE = 100


@router.post("/v1/responses", openapi_extra=describe_body(ResponsesRequest))
async def create_response(request: Request) -> Response:
    """Go on with a conversation, which may be a stored one."""
    gateway, record = gateway_of(request), record_of(request)
    body, items, plan = await _plan(request)
    head = _head(body, plan.model)
    if body.background:
        if not head["store"]:
            raise invalid("store", "must be true for background responses, which nobody could find")
        if body.stream:
            raise unsupported("stream", "is not supported for background responses")
        reply = ResponseReply(plan.reply, head)
        own = RequestRecord(record.request_id, time.monotonic(), plan.model)
        work = Work(plan.model, plan.requests, reply, items, own)
        return JSONResponse(await gateway.background.start(work))

    async def keep(reply: ResponseReply) -> None:
        if head["store"]:
            try:
                await gateway.responses.put(reply.response_id, stored_response(reply, items))
            except GatewayError as error:
                # The answer is there: it is given, and says that it was not stored.
                log_failure(record, error)
                reply.set_stored(False)

    reply = ResponseReply(plan.reply, head, keep)
    return await answer(
        request, plan.model, plan.requests, reply, lambda error: renamed(plan.blame(error), CHAT_NAMES)
    )


@router.post("/v1/responses/input_tokens", openapi_extra=describe_body(ResponsesRequest))
async def count_input_tokens(request: Request) -> dict[str, Any]:
    """How many tokens a response would begin from."""
    body, _, plan = await _plan(request)
    counted = await ask(request, body.model, Operation.TOKENIZE, plan.requests[0].prompt)
    return {"object": "response.input_tokens", "input_tokens": len(counted.token_ids)}


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> dict[str, Any]:
    """A stored response, or a background one as it stands."""
    if request.query_params.get("stream", "false") not in ("false", "0"):
        raise unsupported("stream", "is not supported for stored responses")
    return dict((await _stored(request, response_id))["response"])


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> dict[str, Any]:
    """Forget a stored response; a background one is stopped first."""
    gateway = gateway_of(request)
    await gateway.background.cancel(response_id)
    if not await gateway.responses.delete(response_id):
        raise _not_found(response_id)
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, response_id: str) -> dict[str, Any]:
    """Stop a background response; one that has ended stays as it is."""
    stored = await _stored(request, response_id)
    response: dict[str, Any] = stored["response"]
    if not response["background"]:
        raise GatewayError("invalid_request", "Only background responses can be cancelled.")
    cancelled = await gateway_of(request).background.cancel(response_id)
    if cancelled is None and response["status"] in ("queued", "in_progress"):
        raise GatewayError("invalid_request", "This response runs on another gateway; cancel it there.")
    return cancelled or response


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(request: Request, response_id: str) -> dict[str, Any]:
    """The conversation before a stored response, the latest item first unless `order=asc`."""
    items: list[dict[str, Any]] = (await _stored(request, response_id))["input"]
    page, has_more = page_of(
        items, request.query_params, lambda item: str(item["id"]), most=_MOST_PER_PAGE, default=20
    )
    return listed(page, has_more)


async def _plan(request: Request) -> tuple[ResponsesRequest, Sequence[JsonObject], ChatPlan]:
    gateway = gateway_of(request)
    body, unknown = await read_body(request, ResponsesRequest, strict=gateway.settings.strict_fields)
    gateway.telemetry.unknown_fields.inc(unknown)
    items: Sequence[JsonObject] = (*await _conversation(request, body.previous_response_id), *body.input)
    plan = await _chat(request, body, items)
    if body.truncation == "auto":
        kept = await _fitting(request, body, plan.requests[0], items)
        if len(kept) < len(items):
            items, plan = kept, await _chat(request, body, kept)
    return body, items, plan


async def _chat(request: Request, body: ResponsesRequest, items: Sequence[JsonObject]) -> ChatPlan:
    chat = body.to_chat(items)
    try:
        return await plan_chat(request, chat)
    except RequestError as error:
        raise renamed(error, CHAT_NAMES) from None


async def _conversation(request: Request, response_id: str | None) -> Sequence[JsonObject]:
    """The items of a stored conversation, its last answer included."""
    if response_id is None:
        return ()
    stored = await gateway_of(request).responses.get(response_id)
    if stored is None:
        raise invalid("previous_response_id", f"no response {response_id!r:.80} is stored")
    if stored["response"]["status"] not in _ENDED:
        raise invalid(
            "previous_response_id", f"names a response that is {stored['response']['status']}, not completed"
        )
    return (*stored["input"], *stored["output"])


async def _fitting(
    request: Request, body: ResponsesRequest, generation: GenerateRequest, items: Sequence[JsonObject]
) -> Sequence[JsonObject]:
    """The latest items that fit the context with the output; at least the last one."""
    reserved = generation.sampling.max_tokens or 1

    async def fits(kept: Sequence[JsonObject]) -> bool:
        prompt = (await _chat(request, body, kept)).requests[0].prompt
        try:
            counted = await ask(request, body.model, Operation.TOKENIZE, prompt)
        except RequestError as error:
            if error.code == "context_length_exceeded":
                return False
            raise
        context = None if counted.details is None else counted.details.context_tokens
        return context is None or len(counted.token_ids) + reserved <= context

    # What was called for is not shown without the call.
    starts = [i for i, item in enumerate(items) if item["type"] != "function_call_output"] or [0]
    low, high = 0, len(starts) - 1
    while low < high:
        middle = (low + high) // 2
        if await fits(items[starts[middle] :]):
            high = middle
        else:
            low = middle + 1
    return items[starts[low] :]


async def _stored(request: Request, response_id: str) -> dict[str, Any]:
    stored = await gateway_of(request).responses.get(response_id)
    if stored is None:
        raise _not_found(response_id)
    return stored


def _not_found(response_id: str) -> GatewayError:
    return GatewayError(
        "not_found", f"No response {response_id!r:.80} is stored; it may have been deleted, or be too old."
    )


def _head(body: ResponsesRequest, model: str) -> JsonObject:
    text: Mapping[str, Any] = body.text or {}
    reasoning: Mapping[str, Any] = body.reasoning or {}
    return {
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata,
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": "medium"},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
    }
