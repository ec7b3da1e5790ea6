"""Fields that a body may have with some values only."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator

from uzu_contract.errors import unsupported


def refused(field: str, *neutral: object) -> Any:
    """The type of a field that is known and not supported.

    Args:
        field: its name.
        neutral: values, beside null, that ask for nothing.

    """

    def check(value: object) -> object:
        if value is not None and value not in neutral:
            raise unsupported(field, "is not supported; leave it out")
        return value

    return Annotated[Any, PlainValidator(check, json_schema_input_type=None)]
