"""The bodies of `/v1/embeddings`, `/v1/rerank` and `/v1/score`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from uzu_contract.errors import invalid, unsupported
from uzu_gateway.schemas.fields import MODEL

MAX_TEXTS = 2048


def parse_texts(field: str, value: object) -> tuple[str, ...]:
    """One text or several.

    Raises:
        RequestError: something else, an empty list, or more than `MAX_TEXTS`; it names `field`.

    """
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not value:
        raise invalid(field, "must be a string or a non-empty list of strings")
    if isinstance(value[0], int | list) and not isinstance(value[0], bool):
        raise unsupported(field, "token ids are not supported here; send texts")
    if len(value) > MAX_TEXTS:
        raise invalid(field, f"takes at most {MAX_TEXTS} texts, not {len(value)}")
    for index, text in enumerate(value):
        if not isinstance(text, str) or not text:
            raise invalid(f"{field}[{index}]", "must be a non-empty string")
    return tuple(value)


def _documents(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise invalid("documents", "must be a non-empty list")
    return parse_texts("documents", [d.get("text") if isinstance(d, dict) else d for d in value])


def _no_dimensions(value: object) -> None:
    if value is not None:
        raise unsupported("dimensions", "is not supported: vectors have the length that the model gives them")


_TEXTS = str | list[str]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True)

    model: str | None = MODEL


class EmbeddingsRequest(_Body):
    """Texts to embed."""

    input: Annotated[
        tuple[str, ...],
        PlainValidator(lambda value: parse_texts("input", value), json_schema_input_type=_TEXTS),
    ] = Field(description=f"a text, or up to {MAX_TEXTS} of them")
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="`float` (when left out) or `base64`, little-endian 32-bit floats"
    )
    dimensions: Annotated[None, PlainValidator(_no_dimensions, json_schema_input_type=None)] = Field(
        default=None, description="refused: vectors have the length that the model gives them"
    )


class RerankRequest(_Body):
    """A query and the documents to order."""

    query: str = Field(min_length=1, description="what the documents are to answer")
    documents: Annotated[
        tuple[str, ...], PlainValidator(_documents, json_schema_input_type=list[str | dict[str, Any]])
    ] = Field(description=f"up to {MAX_TEXTS} strings, or objects with `text`")
    top_n: int | None = Field(default=None, ge=1, description="answer so many of the best; all when left out")
    return_documents: bool | None = Field(default=None, description="answer the documents' texts too")


class ScoreRequest(_Body):
    """Pairs of texts."""

    text_1: Annotated[
        tuple[str, ...],
        PlainValidator(lambda value: parse_texts("text_1", value), json_schema_input_type=_TEXTS),
    ] = Field(description="a text, or as many as `text_2` has")
    text_2: Annotated[
        tuple[str, ...],
        PlainValidator(lambda value: parse_texts("text_2", value), json_schema_input_type=_TEXTS),
    ] = Field(description=f"a text, or up to {MAX_TEXTS} of them")

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs to score.

        Raises:
            RequestError: the numbers of texts do not go together.

        """
        first = self.text_1 * len(self.text_2) if len(self.text_1) == 1 else self.text_1
        if len(first) != len(self.text_2):
            raise invalid(
                "text_1", f"has {len(first)} texts and text_2 {len(self.text_2)}; give one, or as many"
            )
        return tuple(zip(first, self.text_2, strict=True))
