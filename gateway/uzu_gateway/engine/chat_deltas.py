"""A chat's answer as a row of events that no API has claimed: what other APIs' answers are made from.

`ChatReply` decides what is text, reasoning and a call; whoever speaks another API than chat completions reads
that here, and so cannot see it differently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from uzu_contract.response import GenerateChunk
from uzu_gateway.engine.replies import ChatReply, JsonObject


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the text, with the log-probabilities of its tokens when asked for."""

    text: str
    logprobs: list[JsonObject]


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the thoughts before the text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of a function begins."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """More of the arguments of a call, as JSON text."""

    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Finish:
    """The end, with chat completions' reason."""

    reason: str


ChatDelta = TextDelta | ReasoningDelta | CallBegin | CallDelta | Finish


def chat_deltas(reply: ChatReply, chunk: GenerateChunk) -> Iterator[ChatDelta]:
    """Feed a chunk of a reply's only choice; what is new."""
    for payload in reply.stream(0, chunk):
        for choice in payload["choices"]:
            yield from _of_choice(choice)


def _of_choice(choice: JsonObject) -> Iterator[ChatDelta]:
    delta: dict[str, Any] = choice["delta"]
    if delta.get("reasoning_content"):
        yield ReasoningDelta(delta["reasoning_content"])
    logprobs = (choice.get("logprobs") or {}).get("content") or []
    if delta.get("content") or logprobs:
        yield TextDelta(delta.get("content") or "", logprobs)
    for call in delta.get("tool_calls") or ():
        function = call.get("function", {})
        if call.get("id"):
            yield CallBegin(call["index"], call["id"], function.get("name", ""))
        if function.get("arguments"):
            yield CallDelta(call["index"], function["arguments"])
    if choice.get("finish_reason"):
        yield Finish(str(choice["finish_reason"]))
