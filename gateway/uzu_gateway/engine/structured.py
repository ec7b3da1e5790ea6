"""The ways in which clients ask for a form of the text, and the contract's one way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from uzu_contract.errors import RequestError, invalid
from uzu_contract.structured import FIELD, OutputKind
from uzu_gateway.schemas.fields import GenerationFields

_GUIDED = {
    "guided_json": OutputKind.JSON,
    "guided_regex": OutputKind.REGEX,
    "guided_choice": OutputKind.CHOICE,
    "guided_grammar": OutputKind.GRAMMAR,
}
_FORMAT_TYPES = ("text", "json_object", "json_schema")
_SCHEMA_KEYS = ("name", "description", "schema", "strict")


@dataclass(frozen=True, slots=True)
class WantedForm:
    """A form of the text, as a client asked for it.

    Args:
        raw: the contract's `structured_outputs` object, not yet checked; None for any text.
        field: where in the body it was.

    """

    raw: Any = None
    field: str = FIELD

    def blame(self, error: RequestError) -> RequestError:
        """The error with the client's name of the field instead of the contract's."""
        if self.field == FIELD or error.param is None or not error.param.startswith(FIELD):
            return error
        text = error.message.removeprefix(f"{error.param}: ")
        return RequestError(error.code, f"{self.field}: {text}", self.field)


def wanted_form(body: GenerationFields) -> WantedForm:
    """What form a body wants its answer to have.

    Raises:
        RequestError: two fields ask for one, or `response_format` is none.

    """
    forms = [] if body.structured_outputs is None else [WantedForm(body.structured_outputs)]
    for name, kind in _GUIDED.items():
        value = getattr(body, name)
        if value is not None:
            forms.append(WantedForm({kind.value: value}, name))
    if body.response_format is not None:
        form = _response_format(body.response_format)
        if form.raw is not None:
            forms.append(form)
    if len(forms) > 1:
        field = forms[1].field.partition(".")[0]
        raise invalid(field, f"cannot be combined with {forms[0].field}; give one of them")
    return forms[0] if forms else WantedForm()


def _response_format(value: object) -> WantedForm:
    field = "response_format"
    if not isinstance(value, Mapping):
        raise invalid(field, "must be an object with a type")
    kind = value.get("type")
    if kind not in _FORMAT_TYPES:
        raise invalid(f"{field}.type", f"must be one of {', '.join(_FORMAT_TYPES)}")
    known = ("type", "json_schema") if kind == "json_schema" else ("type",)
    _refuse_unknown(field, value, known)
    if kind == "text":
        return WantedForm()
    if kind == "json_object":
        return WantedForm({OutputKind.JSON_OBJECT.value: True}, field)
    field = f"{field}.json_schema"
    described = value.get("json_schema")
    if not isinstance(described, Mapping):
        raise invalid(field, "is required, and must be an object with a schema")
    _refuse_unknown(field, described, _SCHEMA_KEYS)
    # The text keeps to the schema in any case, so `strict` has nothing to add.
    if not isinstance(described.get("strict"), bool | None):
        raise invalid(f"{field}.strict", "must be true or false")
    if not isinstance(described.get("schema"), Mapping):
        raise invalid(f"{field}.schema", "is required, and must be an object")
    return WantedForm({OutputKind.JSON.value: described["schema"]}, f"{field}.schema")


def _refuse_unknown(field: str, value: Mapping[str, object], known: tuple[str, ...]) -> None:
    for name, given in value.items():
        if name not in known and given is not None:
            raise invalid(f"{field}.{name}"[:80], f"is not a key of {field}; known: {', '.join(known)}")
