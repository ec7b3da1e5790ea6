"""The bodies of `/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from uzu_contract.errors import invalid
from uzu_contract.request import ChatPrompt, TextPrompt, TokenPrompt, parse_chat
from uzu_gateway.schemas.completions import token_prompt
from uzu_gateway.schemas.fields import MODEL


class TokenizeRequest(BaseModel):
    """A text or messages."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: str | None = MODEL
    prompt: str | None = Field(default=None, description="a text; it or `messages` is given")
    messages: list[Any] | None = Field(
        default=None, description="as in chat completions: their tokens are those that an answer begins from"
    )
    add_special_tokens: bool | None = Field(
        default=None, description="begin as the model's texts begin; true when left out"
    )
    return_token_strs: bool | None = Field(
        default=None, description="answer also how the vocabulary writes each token"
    )
    add_generation_prompt: bool | None = Field(
        default=None, description="`messages` only: begin the assistant's turn; true when left out"
    )
    continue_final_message: bool | None = Field(
        default=None, description="`messages` only: leave the last message open"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="`messages` only: further variables for the chat template"
    )
    tools: list[Any] | None = Field(default=None, description="`messages` only: tools for the chat template")

    def to_prompt(self) -> TextPrompt | ChatPrompt:
        """What is to be tokenized.

        Raises:
            RequestError: both or neither were given, or what fits only the other.

        """
        if (self.prompt is None) == (self.messages is None):
            raise invalid("prompt", "give exactly one of prompt and messages")
        if self.prompt is not None:
            for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools"):
                if getattr(self, name) is not None:
                    raise invalid(name, "is allowed only with messages")
            return TextPrompt(self.prompt)
        resume = bool(self.continue_final_message)
        begin = self.add_generation_prompt
        return parse_chat(
            {
                "messages": self.messages,
                "tools": self.tools,
                "chat_template_kwargs": self.chat_template_kwargs,
                "add_generation_prompt": not resume if begin is None else begin,
                "continue_final_message": resume,
            }
        )


def _tokens(value: object) -> TokenPrompt:
    if not isinstance(value, list) or not value:
        raise invalid("tokens", "must be a non-empty list of token ids")
    return token_prompt("tokens", value)


class DetokenizeRequest(BaseModel):
    """Tokens."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: str | None = MODEL
    tokens: Annotated[TokenPrompt, PlainValidator(_tokens, json_schema_input_type=list[int])] = Field(
        description="token ids; the text of special tokens is part of the answer"
    )
