"""`/health/live` and `/health/ready`."""

from __future__ import annotations

from fastapi import APIRouter, Request

from uzu_gateway.context import gateway_of
from uzu_gateway.errors import GatewayError

router = APIRouter()


@router.get("/health/live")
async def live() -> dict[str, str]:
    """Whether the gateway itself runs."""
    return {"status": "live"}


@router.get("/health/ready")
async def ready(request: Request) -> dict[str, str]:
    """Whether a request has a chance: the backend is reachable and has a model ready."""
    if not await gateway_of(request).engine.is_ready():
        raise GatewayError("no_backend", "No model is ready. Try again shortly.")
    return {"status": "ready"}
