"""Routes of OpenAI's API that no model of this version serves, which is what they say."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from uzu_gateway.errors import GatewayError

router = APIRouter()


async def audio() -> dict[str, Any]:
    """404: no model of this version hears or speaks."""
    raise GatewayError(
        "not_found", "This server has no model that hears or speaks; /v1/models lists its models."
    )


async def images() -> dict[str, Any]:
    """404: no model of this version draws."""
    raise GatewayError("not_found", "This server has no model that draws; /v1/models lists its models.")


for _path in ("transcriptions", "translations", "speech"):
    router.post(f"/v1/audio/{_path}")(audio)
for _path in ("generations", "edits", "variations"):
    router.post(f"/v1/images/{_path}")(images)
