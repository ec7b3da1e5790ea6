"""The body of `/v1/responses`, and the chat that it asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from uzu_contract.errors import RequestError, invalid, unsupported
from uzu_gateway.schemas.chat import ChatRequest
from uzu_gateway.schemas.fields import MODEL, Unchecked
from uzu_gateway.schemas.parse import parse_body
from uzu_gateway.schemas.refusal import refused
from uzu_gateway.schemas.renames import renamed
from uzu_gateway.schemas.response_items import JsonObject, parse_input, to_messages

LOGPROBS = "message.output_text.logprobs"
MAX_METADATA = 16
CHAT_NAMES = {
    "messages": "input!",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "reasoning_effort": "reasoning.effort",
    "tools": "tools!",
    "tool_choice": "tool_choice!",
}
"""Fields of a chat, and what they are called here."""
_SHARED = (
    *(
        "model",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "min_tokens",
    ),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "top_logprobs"),
    *("parallel_tool_calls", "cache_salt", "chat_template_kwargs", "stream"),
)
"""Fields that mean the same in a chat."""


def parse_metadata(value: object) -> dict[str, str]:
    """What a client wants kept with an object.

    Raises:
        RequestError: no object of up to `MAX_METADATA` short strings.

    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > MAX_METADATA:
        raise invalid("metadata", f"must be an object of at most {MAX_METADATA} strings")
    for name, text in value.items():
        if len(name) > 64 or not isinstance(text, str) or len(text) > 512:
            raise invalid("metadata", "takes names of up to 64 characters, and strings of up to 512")
    return dict(value)


def _include(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | None):
        raise invalid("include", "must be a list of strings")
    for index, name in enumerate(value or ()):
        if name != LOGPROBS:
            raise unsupported(f"include[{index}]", f"is not supported; {LOGPROBS} is")
    return tuple(value or ())


class ResponsesRequest(BaseModel):
    """A turn of a conversation, which may go on from a stored one."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: str | None = MODEL
    input: Annotated[
        tuple[JsonObject, ...],
        PlainValidator(parse_input, json_schema_input_type=str | list[dict[str, Any]]),
    ] = Field(
        description="a string, or items: `message` (text parts), `function_call`, `function_call_output`, "
        "`reasoning` (not shown to the model)"
    )
    instructions: str | None = Field(
        default=None, description="a system message for this turn alone, before everything else"
    )
    previous_response_id: str | None = Field(
        default=None, description="a stored response, whose conversation comes before `input`"
    )
    store: bool | None = Field(
        default=None, description="keep the response for `--responses-ttl-s`; true when left out"
    )
    background: bool | None = Field(
        default=None, description="answer at once and work on; needs `store`, does not go with `stream`"
    )
    max_output_tokens: int | None = Field(
        default=None, description="most tokens to generate; all that fit when left out"
    )
    text: Annotated[Any, PlainValidator(lambda v: v, json_schema_input_type=dict[str, Any] | None)] = Field(
        default=None,
        description="`format`: `text`, `json_object`, or `json_schema` with a `schema` to keep to",
    )
    tools: Annotated[Any, PlainValidator(lambda v: v, json_schema_input_type=list[Any] | None)] = Field(
        default=None, description="functions that the model may call"
    )
    tool_choice: Annotated[Any, Unchecked] = Field(
        default=None, description="`auto`, `none`, `required`, or `{type: function, name}`"
    )
    parallel_tool_calls: bool | None = Field(default=None, description="allow several calls in one turn")
    reasoning: dict[str, Any] | None = Field(
        default=None, description="`effort`; `summary` is accepted and none is made"
    )
    include: Annotated[tuple[str, ...], PlainValidator(_include, json_schema_input_type=list[str] | None)] = (
        Field(default=(), description=f"`{LOGPROBS}`")
    )
    top_logprobs: int | None = Field(
        default=None, description=f"with `{LOGPROBS}`: so many of the likeliest tokens as well, 0 to 20"
    )
    truncation: Literal["auto", "disabled"] | None = Field(
        default=None, description="`auto` drops the oldest items that do not fit; `disabled` when left out"
    )
    metadata: Annotated[
        dict[str, str], PlainValidator(parse_metadata, json_schema_input_type=dict[str, str] | None)
    ] = Field(default={}, description="up to 16 strings, given back with the response")
    stream: bool | None = Field(default=None, description="send server-sent events")
    stream_options: dict[str, Any] | None = Field(
        default=None, description="`include_obfuscation` is accepted; nothing is obfuscated"
    )
    temperature: float | None = Field(default=None, description="0 is greedy; 1 when left out")
    top_p: float | None = Field(default=None, description="keep the likeliest tokens up to this share")
    top_k: int | None = Field(default=None, description="as in chat completions")
    min_p: float | None = Field(default=None, description="as in chat completions")
    seed: int | None = Field(default=None, description="same seed, same text")
    stop: Annotated[Any, Unchecked] = Field(default=None, description="as in chat completions")
    stop_token_ids: list[int] | None = Field(default=None, description="as in chat completions")
    ignore_eos: bool | None = Field(default=None, description="as in chat completions")
    min_tokens: int | None = Field(default=None, description="as in chat completions")
    presence_penalty: float | None = Field(default=None, description="as in chat completions")
    frequency_penalty: float | None = Field(default=None, description="as in chat completions")
    repetition_penalty: float | None = Field(default=None, description="as in chat completions")
    logit_bias: dict[str, float] | None = Field(default=None, description="as in chat completions")
    chat_template_kwargs: dict[str, Any] | None = Field(default=None, description="as in chat completions")
    cache_salt: str | None = Field(default=None, description="as in chat completions")
    conversation: refused("conversation") = Field(  # type: ignore[valid-type]
        default=None, description="refused; use `previous_response_id`"
    )
    prompt: refused("prompt") = Field(  # type: ignore[valid-type]
        default=None, description="refused; send the text as `instructions` and `input`"
    )
    max_tool_calls: refused("max_tool_calls") = Field(  # type: ignore[valid-type]
        default=None, description="refused; it counts tools that run on the server, of which there are none"
    )

    def to_chat(self, items: Sequence[Mapping[str, Any]]) -> ChatRequest:
        """The chat whose answer is the response.

        Args:
            items: the whole conversation.

        Raises:
            RequestError: by the names that fields have here.

        """
        raw = {name: getattr(self, name) for name in _SHARED if getattr(self, name) is not None}
        raw["messages"] = to_messages(self.instructions, items)
        if self.max_output_tokens is not None:
            raw["max_tokens"] = self.max_output_tokens
        if LOGPROBS in self.include:
            raw["logprobs"] = True
        elif self.top_logprobs:
            raise invalid("top_logprobs", f"needs {LOGPROBS} in include")
        raw |= _response_format(self.text) | _reasoning(self.reasoning)
        if self.tools:
            raw["tools"] = [_tool(f"tools[{index}]", tool) for index, tool in enumerate(_list(self.tools))]
        # Without tools there is nothing to choose from, which clients say in both ways.
        if self.tool_choice is not None and (self.tools or self.tool_choice not in ("auto", "none")):
            raw["tool_choice"] = _tool_choice(self.tool_choice)
        try:
            return parse_body(raw, ChatRequest, strict=False)[0]
        except RequestError as error:
            raise renamed(error, CHAT_NAMES) from None


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise invalid("tools", "must be a list of objects")
    return value


def _response_format(text: object) -> JsonObject:
    if text is None:
        return {}
    if not isinstance(text, Mapping):
        raise invalid("text", "must be an object with a format")
    for name, value in text.items():
        if name == "verbosity" and value not in (None, "medium"):
            raise unsupported("text.verbosity", 'is not supported; leave it out or give "medium"')
        if name not in ("format", "verbosity"):
            raise invalid(f"text.{name}"[:80], "is not a key of text; known: format, verbosity")
    wanted = text.get("format")
    if wanted is None:
        return {}
    if not isinstance(wanted, Mapping):
        raise invalid("text.format", "must be an object with a type")
    if wanted.get("type") != "json_schema":
        return {"response_format": dict(wanted)}
    described = {name: value for name, value in wanted.items() if name != "type"}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def _reasoning(value: Mapping[str, Any] | None) -> JsonObject:
    for name in value or ():
        if name not in ("effort", "summary", "generate_summary"):
            raise invalid(f"reasoning.{name}"[:80], "is not a key of reasoning; known: effort, summary")
    effort = (value or {}).get("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _tool(where: str, tool: object) -> JsonObject:
    if not isinstance(tool, Mapping):
        raise invalid(where, "must be an object with a type")
    if tool.get("type") != "function":
        raise unsupported(f"{where}.type", f"{tool.get('type')!r:.40} is not supported; function is")
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _tool_choice(value: object) -> Any:
    if not isinstance(value, Mapping):
        return value
    if value.get("type") != "function":
        raise unsupported("tool_choice.type", f"{value.get('type')!r:.40} is not supported; function is")
    return {"type": "function", "function": {"name": value.get("name")}}
