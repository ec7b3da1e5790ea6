"""`/metrics`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from uzu_gateway.context import gateway_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """The gateway's own metrics, for Prometheus."""
    return Response(gateway_of(request).telemetry.exposition(), media_type=CONTENT_TYPE_LATEST)
