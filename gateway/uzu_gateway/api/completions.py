"""`/v1/completions`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from uzu_gateway.api.answer import answer, describe_body
from uzu_gateway.context import gateway_of, record_of
from uzu_gateway.engine.codec import completion_plan
from uzu_gateway.engine.port import Capability
from uzu_gateway.engine.replies import CompletionReply, ShownLogprobs
from uzu_gateway.engine.structured import wanted_form
from uzu_gateway.schemas.completions import CompletionRequest
from uzu_gateway.schemas.parse import read_body

router = APIRouter()


@router.post("/v1/completions", openapi_extra=describe_body(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Go on from one prompt or several."""
    gateway = gateway_of(request)
    body, unknown = await read_body(request, CompletionRequest, strict=gateway.settings.strict_fields)
    gateway.telemetry.unknown_fields.inc(unknown)
    plan = completion_plan(
        body,
        max_prompts=gateway.settings.max_prompts,
        traceparent=request.headers.get("traceparent"),
    )
    model = record_of(request).model = await gateway.resolve_model(body.model, Capability.COMPLETION)
    reply = CompletionReply(
        model,
        plan.echoes,
        choices_per_prompt=plan.choices_per_prompt,
        kept_per_prompt=plan.kept_per_prompt,
        shown=ShownLogprobs(
            answer=body.logprobs is not None,
            echoed=body.logprobs if body.echo else None,
            prompt=body.prompt_logprobs,
        ),
        include_usage=body.include_usage,
    )
    return await answer(request, model, plan.requests, reply, wanted_form(body).blame)
