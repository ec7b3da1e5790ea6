"""`/v1/models`, and loading and unloading them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from uzu_gateway.context import gateway_of
from uzu_gateway.engine.port import ModelInfo
from uzu_gateway.keys import require_admin

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, Any]:
    """The models that are ready."""
    models = await gateway_of(request).engine.list_models()
    return {"object": "list", "data": [_shown(model) for model in models]}


@router.post("/v1/models/{model_id}/load")
async def load_model(request: Request, model_id: str) -> dict[str, Any]:
    """Load a model of the backend's repository, or load it anew. Needs the administrator's key."""
    gateway = gateway_of(request)
    require_admin(request, gateway.admin_key)
    await gateway.engine.load_model(model_id)
    return {"id": model_id, "object": "model.load", "loaded": True}


@router.post("/v1/models/{model_id}/unload")
async def unload_model(request: Request, model_id: str) -> dict[str, Any]:
    """Unload a model; what runs on it goes on to its end. Needs the admin key."""
    gateway = gateway_of(request)
    require_admin(request, gateway.admin_key)
    await gateway.engine.unload_model(model_id)
    return {"id": model_id, "object": "model.unload", "loaded": False}


@router.get("/v1/models/{model_id:path}")
async def get_model(request: Request, model_id: str) -> dict[str, Any]:
    """One model."""
    return _shown(await gateway_of(request).find_model(model_id))


def _shown(model: ModelInfo) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "uzu",
        "max_model_len": model.context_tokens,
        "capabilities": sorted(model.capabilities),
    }
