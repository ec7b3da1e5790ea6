"""`/v1/batches`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from uzu_contract.errors import invalid
from uzu_gateway.api.answer import describe_body
from uzu_gateway.context import gateway_of
from uzu_gateway.schemas.batches import BatchRequest, listed, page_of
from uzu_gateway.schemas.parse import read_body

router = APIRouter()


@router.post("/v1/batches", openapi_extra=describe_body(BatchRequest))
async def create_batch(request: Request) -> dict[str, Any]:
    """Begin a batch."""
    gateway = gateway_of(request)
    body, unknown = await read_body(request, BatchRequest, strict=gateway.settings.strict_fields)
    gateway.telemetry.unknown_fields.inc(unknown)
    service = gateway.batches
    if service.files.get(body.input_file_id).purpose != "batch":
        raise invalid("input_file_id", "names a file whose purpose is not batch")
    return service.runner.create(
        input_file_id=body.input_file_id,
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        window_s=body.window_s,
        metadata=body.metadata,
        output_expires_after_s=body.output_expires_after,
    ).shown()


@router.get("/v1/batches")
async def list_batches(request: Request) -> dict[str, Any]:
    """The batches, the newest first."""
    batches = gateway_of(request).batches.runner.list()
    page, has_more = page_of(batches, request.query_params, lambda state: state.id, most=100, default=20)
    return listed([state.shown() for state in page], has_more)


@router.get("/v1/batches/{batch_id}")
async def get_batch(request: Request, batch_id: str) -> dict[str, Any]:
    """A batch as it stands."""
    return gateway_of(request).batches.runner.get(batch_id).shown()


@router.post("/v1/batches/{batch_id}/cancel")
async def cancel_batch(request: Request, batch_id: str) -> dict[str, Any]:
    """Stop a batch; what has been answered is in its output."""
    return gateway_of(request).batches.runner.cancel(batch_id).shown()
