"""The bodies of Anthropic's `/v1/messages`, and the chat that they ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from uzu_contract.errors import RequestError, invalid, unsupported
from uzu_gateway.schemas.chat import ChatRequest
from uzu_gateway.schemas.fields import MODEL
from uzu_gateway.schemas.parse import parse_body
from uzu_gateway.schemas.refusal import refused
from uzu_gateway.schemas.renames import renamed

JsonObject = dict[str, Any]
CHAT_NAMES = {
    "messages": "messages!",
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "tools": "tools!",
    "tool_choice": "tool_choice!",
}
"""Fields of a chat, and what they are called here."""
_SHARED = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ROLES = ("user", "assistant", "system")


def parse_system(value: object) -> str | None:
    """The system prompt.

    Raises:
        RequestError: neither a string nor text blocks.

    """
    return None if value is None else _text("system", value)


def parse_messages(value: object) -> list[JsonObject]:
    """The messages of a chat. Results of tools become messages of their own; thoughts are not shown again.

    Raises:
        RequestError: something that is no message, or a block that is not supported; `param` says where.

    """
    if not isinstance(value, list) or not value:
        raise invalid("messages", "must be a non-empty list")
    messages: list[JsonObject] = []
    for index, message in enumerate(value):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
            raise invalid(where, f"must be an object whose role is one of {', '.join(_ROLES)}")
        content = message.get("content")
        if isinstance(content, str):
            messages.append({"role": message["role"], "content": content})
        elif isinstance(content, list):
            messages += _from_blocks(f"{where}.content", message["role"], content)
        else:
            raise invalid(f"{where}.content", "must be a string or a list of blocks")
    return messages


def _from_blocks(where: str, role: str, blocks: Sequence[object]) -> list[JsonObject]:
    results: list[JsonObject] = []
    calls: list[JsonObject] = []
    texts: list[str] = []
    for index, block in enumerate(blocks):
        place = f"{where}[{index}]"
        if not isinstance(block, Mapping):
            raise invalid(place, "must be an object with a type")
        match block.get("type"), role:
            case "text", _:
                texts.append(_string(place, block, "text"))
            case "tool_use", "assistant":
                arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
                function = {"name": _string(place, block, "name"), "arguments": arguments}
                calls.append({"id": _string(place, block, "id"), "type": "function", "function": function})
            case "tool_result", "user":
                results.append(
                    {
                        "role": "tool",
                        "tool_call_id": _string(place, block, "tool_use_id"),
                        "content": _text(f"{place}.content", block.get("content") or ""),
                    }
                )
            case (("thinking" | "redacted_thinking"), "assistant"):
                pass
            case kind, _:
                raise unsupported(f"{place}.type", f"{kind!r:.40} is not supported in a message of {role}")
    message: JsonObject = {"role": role, "content": "".join(texts)}
    if calls:
        message["tool_calls"] = calls
    return [*results, *([message] if texts or calls or not results else [])]


def _text(where: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(where, "must be a string or a list of text blocks")
    for index, block in enumerate(value):
        if not isinstance(block, Mapping) or block.get("type") != "text":
            raise unsupported(f"{where}[{index}]", "only text blocks are supported here")
    return "".join(_string(f"{where}[{index}]", block, "text") for index, block in enumerate(value))


def _string(where: str, block: Mapping[str, Any], name: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise invalid(f"{where}.{name}", "is required, and must be a string")
    return value


def _thinking(value: object) -> None:
    kind = value.get("type") if isinstance(value, Mapping) else value
    if kind not in (None, "disabled"):
        raise unsupported("thinking.type", 'is not supported; leave it out or give "disabled"')


_Object = Annotated[Any, PlainValidator(lambda value: value, json_schema_input_type=dict[str, Any] | None)]


class CountTokensRequest(BaseModel):
    """Messages whose tokens are counted."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: str | None = MODEL
    messages: Annotated[
        list[JsonObject], PlainValidator(parse_messages, json_schema_input_type=list[dict[str, Any]])
    ] = Field(
        description="roles `user` and `assistant`; contents are strings or blocks `text`, `tool_use`, "
        "`tool_result`, `thinking` (not shown again). A last message of the assistant is gone on with"
    )
    system: Annotated[
        str | None, PlainValidator(parse_system, json_schema_input_type=str | list[dict[str, Any]] | None)
    ] = Field(default=None, description="a string, or text blocks")
    tools: Annotated[Any, PlainValidator(lambda v: v, json_schema_input_type=list[Any] | None)] = Field(
        default=None, description="tools of the client: `name`, `description`, `input_schema`"
    )
    tool_choice: _Object = Field(
        default=None, description="`type` is `auto`, `any`, `tool` (with `name`) or `none`"
    )
    thinking: Annotated[None, PlainValidator(_thinking, json_schema_input_type=dict[str, Any] | None)] = (
        Field(default=None, description="refused, but for the type `disabled`")
    )
    output_config: _Object = Field(
        default=None, description="`format` of the type `json_schema` with a `schema` to keep to; `effort`"
    )
    mcp_servers: refused("mcp_servers", []) = Field(default=None, description="refused")  # type: ignore[valid-type]
    container: refused("container") = Field(default=None, description="refused")  # type: ignore[valid-type]
    context_management: refused("context_management") = Field(  # type: ignore[valid-type]
        default=None, description="refused"
    )

    def to_chat(self) -> ChatRequest:
        """The chat whose answer is the message.

        Raises:
            RequestError: by the names that fields have here.

        """
        raw: JsonObject = {
            name: value for name in _SHARED if (value := getattr(self, name, None)) is not None
        }
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        raw["messages"] = [*system, *self.messages]
        if self.messages[-1]["role"] == "assistant":
            raw |= {"add_generation_prompt": False, "continue_final_message": True}
        stop = getattr(self, "stop_sequences", None)
        if stop:
            raw["stop"] = list(stop)
        raw |= _output_config(self.output_config)
        if self.tools:
            if not isinstance(self.tools, list):
                raise invalid("tools", "must be a list of objects")
            raw["tools"] = [_tool(f"tools[{index}]", tool) for index, tool in enumerate(self.tools)]
        chosen = _tool_choice(self.tool_choice)
        # Without tools there is nothing to choose from, which clients say in both ways.
        if self.tools or chosen.get("tool_choice") not in ("auto", "none"):
            raw |= chosen
        try:
            return parse_body(raw, ChatRequest, strict=False)[0]
        except RequestError as error:
            raise renamed(error, CHAT_NAMES) from None


class MessagesRequest(CountTokensRequest):
    """A conversation to go on from."""

    max_tokens: int = Field(description="most tokens to generate")
    stop_sequences: list[str] | None = Field(
        default=None, description="up to 16 strings, before which the text ends"
    )
    temperature: float | None = Field(default=None, description="0 is greedy; 1 when left out")
    top_p: float | None = Field(default=None, description="keep the likeliest tokens up to this share")
    top_k: int | None = Field(default=None, description="keep so many of the likeliest tokens")
    stream: bool | None = Field(default=None, description="send server-sent events")
    metadata: _Object = Field(default=None, description="accepted; `user_id` is kept by nobody")


def _tool(where: str, tool: object) -> JsonObject:
    if not isinstance(tool, Mapping):
        raise invalid(where, "must be an object with a name and an input_schema")
    if tool.get("type") not in (None, "custom"):
        raise unsupported(f"{where}.type", f"{tool['type']!r:.40} is not supported; tools of the client are")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
    }
    return {"type": "function", "function": {k: v for k, v in function.items() if v is not None}}


def _tool_choice(value: object) -> JsonObject:
    if value is None:
        return {}
    kind = value.get("type") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or kind not in (*_CHOICES, "tool"):
        raise invalid("tool_choice.type", f"must be one of {', '.join((*_CHOICES, 'tool'))}")
    raw: JsonObject = {"tool_choice": _CHOICES.get(str(kind))}
    if kind == "tool":
        name = _string("tool_choice", value, "name")
        raw["tool_choice"] = {"type": "function", "function": {"name": name}}
    if value.get("disable_parallel_tool_use") is not None:
        raw["parallel_tool_calls"] = not value["disable_parallel_tool_use"]
    return raw


def _output_config(value: object) -> JsonObject:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise invalid("output_config", "must be an object")
    for name in value:
        if name not in ("format", "effort"):
            raise unsupported(f"output_config.{name}"[:80], "is not supported")
    raw: JsonObject = {}
    wanted = value.get("format")
    if wanted is not None:
        if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
            raise unsupported("output_config.format.type", "must be json_schema")
        raw["response_format"] = {"type": "json_schema", "json_schema": {"schema": wanted.get("schema")}}
    if value.get("effort") is not None:
        raw["reasoning_effort"] = value["effort"]
    return raw
