"""The body of `/v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, PlainValidator

from uzu_contract.errors import invalid
from uzu_contract.request import TextPrompt, TokenPrompt
from uzu_gateway.schemas.fields import GenerationFields

MAX_TOKEN_ID = 2**31 - 1
Prompts = tuple[TextPrompt | TokenPrompt, ...]


def parse_prompts(value: object) -> Prompts:
    """One prompt or several, out of the four forms that OpenAI allows.

    Raises:
        RequestError: another form, an empty list, an id that is no token's; `param` says where.

    """
    if isinstance(value, str):
        return (TextPrompt(value),)
    if not isinstance(value, list):
        raise invalid("prompt", "must be a string, a list of strings, token ids, or a list of token id lists")
    if not value:
        raise invalid("prompt", "must not be an empty list")
    if _is_number(value[0]):
        return (token_prompt("prompt", value),)
    return tuple(_one(f"prompt[{index}]", item) for index, item in enumerate(value))


def _one(where: str, item: object) -> TextPrompt | TokenPrompt:
    if isinstance(item, str):
        return TextPrompt(item)
    if isinstance(item, list) and item:
        return token_prompt(where, item)
    raise invalid(where, "must be a string or a list of token ids")


def token_prompt(where: str, items: list[Any]) -> TokenPrompt:
    """A prompt of token ids.

    Raises:
        RequestError: an item is none; `param` begins with `where`.

    """
    for index, item in enumerate(items):
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= MAX_TOKEN_ID:
            raise invalid(f"{where}[{index}]", f"must be a token id between 0 and {MAX_TOKEN_ID}")
    return TokenPrompt(tuple(items))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class CompletionRequest(GenerationFields):
    """Text or tokens to go on from."""

    prompt: Annotated[
        Prompts,
        PlainValidator(parse_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]),
    ] = Field(description="a string, a list of strings, token ids, or a list of token id lists")
    logprobs: int | None = Field(
        default=None, description="report each token's log-probability, and so many of the likeliest: 0 to 20"
    )
    echo: bool | None = Field(default=None, description="put the prompt's text before the answer")
