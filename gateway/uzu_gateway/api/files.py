"""`/v1/files`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse

from uzu_contract.errors import invalid, unsupported
from uzu_gateway.context import gateway_of
from uzu_gateway.errors import GatewayError
from uzu_gateway.schemas.batches import expires_after_seconds, listed, page_of

router = APIRouter()
FILES_PATH = "/v1/files"
FORM_BYTES = 1 << 16
"""What a form may hold beside its file."""

_FORM = {
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": ["file", "purpose"],
                "properties": {
                    "file": {"type": "string", "format": "binary"},
                    "purpose": {"type": "string", "enum": ["batch"]},
                },
            }
        }
    },
    "required": True,
}
_FIELDS = ("file", "purpose", "expires_after[anchor]", "expires_after[seconds]")


@router.post(FILES_PATH, openapi_extra={"requestBody": _FORM})
async def upload_file(request: Request) -> dict[str, Any]:
    """Keep a file: a form with `file`, `purpose` (`batch`) and, perhaps, `expires_after`."""
    gateway = gateway_of(request)
    files = gateway.batches.files
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise GatewayError(
            "invalid_content_type", f"Send a form with Content-Type: multipart/form-data, not {kind!r:.80}."
        )
    try:
        async with request.form(max_files=1, max_fields=8, max_part_size=FORM_BYTES) as form:
            for name in form:
                if name not in _FIELDS:
                    raise invalid(name[:80], f"is not a field of this form; known: {', '.join(_FIELDS)}")
            upload, purpose = form.get("file"), form.get("purpose")
            if not isinstance(upload, UploadFile):
                raise invalid("file", "is required, and must be a file")
            if purpose != "batch":
                raise unsupported("purpose", "must be batch")
            given = {
                part: form[f"expires_after[{part}]"]
                for part in ("anchor", "seconds")
                if f"expires_after[{part}]" in form
            }
            expires_after_s = expires_after_seconds("expires_after", given or None)
            if (upload.size or 0) > gateway.settings.max_file_bytes:
                raise GatewayError(
                    "body_too_large", f"The file is longer than {gateway.settings.max_file_bytes} bytes."
                )
            name = upload.filename or "file"
            stored = await files.create(upload.file, name, "batch", expires_after_s)
    except HTTPException:
        raise GatewayError(
            "invalid_request", "The body is no form with a file, or has too many parts."
        ) from None
    return stored.shown()


@router.get(FILES_PATH)
async def list_files(request: Request) -> dict[str, Any]:
    """The files, the newest first."""
    query = request.query_params
    kept = gateway_of(request).batches.files.list(query.get("purpose"))
    page, has_more = page_of(kept, query, lambda stored: stored.id, most=10_000, default=10_000)
    return listed([stored.shown() for stored in page], has_more)


@router.get("/v1/files/{file_id}")
async def get_file(request: Request, file_id: str) -> dict[str, Any]:
    """What is known about a file."""
    return gateway_of(request).batches.files.get(file_id).shown()


@router.get("/v1/files/{file_id}/content")
async def get_file_content(request: Request, file_id: str) -> FileResponse:
    """A file."""
    return FileResponse(
        gateway_of(request).batches.files.path(file_id), media_type="application/octet-stream"
    )


@router.delete("/v1/files/{file_id}")
async def delete_file(request: Request, file_id: str) -> dict[str, Any]:
    """Remove a file; a batch that runs from it goes on."""
    gateway_of(request).batches.files.delete(file_id)
    return {"id": file_id, "object": "file", "deleted": True}
