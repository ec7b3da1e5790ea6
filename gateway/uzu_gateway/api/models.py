"""`/v1/models`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from uzu_gateway.context import gateway_of
from uzu_gateway.engine.port import ModelInfo

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The models that are ready."""
    models = await gateway_of(request).engine.list_models()
    return {"object": "list", "data": [_shown(model) for model in models]}


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> dict[str, Any]:
    """One model."""
    return _shown(await gateway_of(request).find_model(model_id))


def _shown(model: ModelInfo) -> dict[str, Any]:
    return {"id": model.name, "object": "model", "created": model.created, "owned_by": "uzu"}
