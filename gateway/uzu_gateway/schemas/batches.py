"""The body of `/v1/batches`, and the pages of its lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from uzu_contract.errors import invalid
from uzu_gateway.batches.runner import ENDPOINTS
from uzu_gateway.schemas.responses import parse_metadata

MAX_WINDOW_S = 7 * 86_400
_WINDOW = re.compile(r"(\d{1,6})([smh])")
_UNITS = {"s": 1, "m": 60, "h": 3600}
Item = TypeVar("Item")


def window_seconds(value: object) -> str:
    """A completion window, `24h`.

    Raises:
        RequestError: none, or out of range.

    """
    match = _WINDOW.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < int(match[1]) * _UNITS[match[2]] <= MAX_WINDOW_S:
        raise invalid("completion_window", "must be a time such as 24h, 30m or 90s, of up to 168h")
    return str(value)


def expires_after_seconds(field: str, value: object) -> int | None:
    """The seconds of an `expires_after` object.

    Raises:
        RequestError: another object.

    """
    if value is None:
        return None
    if not isinstance(value, Mapping) or value.get("anchor") != "created_at":
        raise invalid(f"{field}.anchor", "must be created_at")
    seconds = value.get("seconds")
    if isinstance(seconds, str) and seconds.isascii() and seconds.isdigit():
        seconds = int(seconds[:12])
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 3600 <= seconds <= 30 * 86_400:
        raise invalid(f"{field}.seconds", "must be between 3600 and 2592000")
    return seconds


def _endpoint(value: object) -> str:
    if value not in ENDPOINTS:
        raise invalid("endpoint", f"must be one of {', '.join(ENDPOINTS)}")
    return str(value)


class BatchRequest(BaseModel):
    """Many requests to answer when there is time."""

    model_config = ConfigDict(frozen=True, strict=True)

    input_file_id: str = Field(
        description="a file whose lines have `custom_id`, `method` (`POST`), `url` (the endpoint) and `body`"
    )
    endpoint: Annotated[str, PlainValidator(_endpoint, json_schema_input_type=str)] = Field(
        description=", ".join(f"`{endpoint}`" for endpoint in ENDPOINTS)
    )
    completion_window: Annotated[str, PlainValidator(window_seconds, json_schema_input_type=str)] = Field(
        description="how long it may take: `24h`, or another time of up to `168h`"
    )
    metadata: Annotated[
        dict[str, str], PlainValidator(parse_metadata, json_schema_input_type=dict[str, str] | None)
    ] = Field(default={}, description="up to 16 strings, given back with the batch")
    output_expires_after: Annotated[
        int | None,
        PlainValidator(
            lambda value: expires_after_seconds("output_expires_after", value),
            json_schema_input_type=dict[str, Any] | None,
        ),
    ] = Field(default=None, description="`anchor` (`created_at`) and `seconds`: how long results are kept")

    @property
    def window_s(self) -> int:
        """The completion window."""
        match = _WINDOW.fullmatch(self.completion_window)
        return 0 if match is None else int(match[1]) * _UNITS[match[2]]


def page_of(
    items: Sequence[Item], query: Mapping[str, str], name: Callable[[Item], str], *, most: int, default: int
) -> tuple[list[Item], bool]:
    """A page of a list.

    Args:
        items: the oldest first.
        query: `order` (`desc` when left out), `after` (a name), `limit`.
        name: of an item.
        most: highest limit.
        default: limit when left out.

    Returns:
        the items of the page, and whether there are more.

    Raises:
        RequestError: a parameter is wrong.

    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", "must be asc or desc")
    ordered = list(items) if order == "asc" else list(items)[::-1]
    limit = query.get("limit", str(default))
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= most:
        raise invalid("limit", f"must be between 1 and {most}")
    after = query.get("after")
    if after is not None:
        places = [place for place, item in enumerate(ordered) if name(item) == after]
        if not places:
            raise invalid("after", "is not in this list")
        ordered = ordered[places[0] + 1 :]
    return ordered[: int(limit)], len(ordered) > int(limit)


def listed(page: Sequence[Mapping[str, Any]], has_more: bool) -> dict[str, Any]:
    """OpenAI's list object."""
    return {
        "object": "list",
        "data": list(page),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": has_more,
    }
