"""`/v1/embeddings`, `/v1/rerank` and `/v1/score`, for models that can."""

from __future__ import annotations

import base64
import struct
import time
import uuid
from typing import Any

from fastapi import APIRouter, Request

from uzu_gateway.api.answer import describe_body
from uzu_gateway.context import gateway_of, record_of
from uzu_gateway.disconnect import run_until_disconnect
from uzu_gateway.engine.port import Capability
from uzu_gateway.schemas.parse import Body, read_body
from uzu_gateway.schemas.vectors import EmbeddingsRequest, RerankRequest, ScoreRequest

router = APIRouter()


@router.post("/v1/embeddings", openapi_extra=describe_body(EmbeddingsRequest))
async def create_embeddings(request: Request) -> dict[str, Any]:
    """Vectors of texts."""
    body = await _read(request, EmbeddingsRequest)
    model = await _resolve(request, body.model, Capability.EMBEDDING)
    engine, record = gateway_of(request).engine, record_of(request)
    made = await run_until_disconnect(request.receive, engine.embed(model, body.input, record.request_id))
    record.prompt_tokens = sum(embedding.prompt_tokens for embedding in made)
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": _packed(embedding.values)
                if body.encoding_format == "base64"
                else list(embedding.values),
            }
            for index, embedding in enumerate(made)
        ],
        "model": model,
        "usage": _usage(record.prompt_tokens),
    }


@router.post("/v1/rerank", openapi_extra=describe_body(RerankRequest))
async def rerank(request: Request) -> dict[str, Any]:
    """Documents, by how well they answer a query."""
    body = await _read(request, RerankRequest)
    pairs = tuple((body.query, document) for document in body.documents)
    model, values = await _score(request, body.model, pairs)
    order = sorted(range(len(values)), key=lambda index: -values[index])[: body.top_n]
    results = [
        {"index": index, "relevance_score": values[index]}
        | ({"document": {"text": body.documents[index]}} if body.return_documents else {})
        for index in order
    ]
    return {
        "id": f"rerank-{uuid.uuid4().hex}",
        "object": "list",
        "model": model,
        "results": results,
        "usage": _usage(record_of(request).prompt_tokens),
    }


@router.post("/v1/score", openapi_extra=describe_body(ScoreRequest))
async def score(request: Request) -> dict[str, Any]:
    """How well texts go together, pair by pair."""
    body = await _read(request, ScoreRequest)
    model, values = await _score(request, body.model, body.pairs())
    return {
        "id": f"score-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [{"index": index, "object": "score", "score": value} for index, value in enumerate(values)],
        "usage": _usage(record_of(request).prompt_tokens),
    }


async def _score(
    request: Request, name: str | None, pairs: tuple[tuple[str, str], ...]
) -> tuple[str, list[float]]:
    model = await _resolve(request, name, Capability.SCORE)
    engine, record = gateway_of(request).engine, record_of(request)
    scores = await run_until_disconnect(request.receive, engine.score(model, pairs, record.request_id))
    record.prompt_tokens = sum(score.prompt_tokens for score in scores)
    return model, [score.value for score in scores]


async def _read(request: Request, schema: type[Body]) -> Body:
    gateway = gateway_of(request)
    body, unknown = await read_body(request, schema, strict=gateway.settings.strict_fields)
    gateway.telemetry.unknown_fields.inc(unknown)
    return body


async def _resolve(request: Request, name: str | None, capability: Capability) -> str:
    model = record_of(request).model = await gateway_of(request).resolve_model(name, capability)
    return model


def _packed(values: tuple[float, ...]) -> str:
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def _usage(prompt_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
