"""From an HTTP request to a valid body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from uzu_contract.errors import RequestError, invalid
from uzu_gateway.errors import GatewayError
from uzu_gateway.schemas.json_body import parse_object
from uzu_gateway.schemas.refused import IGNORED, REFUSED, refuse_unsupported

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, schema: type[Body], *, strict: bool) -> tuple[Body, int]:
    """Read and parse the body of a request.

    Args:
        request: whose body has not been read.
        schema: of the route.
        strict: refuse unknown fields.

    Returns:
        the body, and how many of its fields are unknown.

    Raises:
        GatewayError: no JSON object.
        RequestError: a field that is wrong, not supported or (when strict) unknown.

    """
    _check_content_type(request.headers.get("content-type"))
    return parse_body(parse_object(await request.body()), schema, strict=strict)


def parse_body(raw: dict[str, Any], schema: type[Body], *, strict: bool) -> tuple[Body, int]:
    """See `read_body`."""
    honoured = frozenset(schema.model_fields)
    refuse_unsupported(raw, honoured)
    unknown = [name for name in raw if name not in honoured and name not in REFUSED and name not in IGNORED]
    if unknown and strict:
        raise invalid(unknown[0][:80], "is not a known field, and this gateway refuses unknown fields")
    try:
        return schema.model_validate(raw), len(unknown)
    except ValidationError as error:
        raise _first_problem(error) from None


def _check_content_type(value: str | None) -> None:
    if value is None:
        return
    kind = value.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise GatewayError(
            "invalid_content_type", f"Send the body with Content-Type: application/json, not {kind!r:.80}."
        )


def _first_problem(error: ValidationError) -> RequestError:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = _path(problem["loc"])
    if problem["type"] == "missing":
        return invalid(where, "is required")
    return invalid(
        where, problem["msg"].replace("Input should be", "must be").replace("String should", "must")
    )


def _path(location: Sequence[int | str]) -> str:
    """`stream_options.include_usage`, `stop_token_ids[3]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(
        "."
    )
