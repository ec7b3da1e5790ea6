"""The body of `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from uzu_gateway.schemas.fields import GenerationFields


class ChatRequest(GenerationFields):
    """A conversation to go on from. The contract's own reader checks the messages."""

    messages: list[Any] = Field(description="objects with `role` and `content` (a string or text parts)")
    logprobs: bool | None = Field(default=None, description="report each token's log-probability")
    top_logprobs: int | None = Field(
        default=None, description="with `logprobs`: report so many of the likeliest tokens as well, 0 to 20"
    )
    add_generation_prompt: bool | None = Field(
        default=None, description="begin the assistant's turn; true unless `continue_final_message`"
    )
    continue_final_message: bool | None = Field(default=None, description="go on with the last message")
    chat_template_kwargs: dict[str, Any] | None = Field(
        default=None, description="further variables for the model's chat template"
    )
