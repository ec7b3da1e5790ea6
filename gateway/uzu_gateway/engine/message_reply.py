"""From a chat's answer to the message of Anthropic's `/v1/messages` and its events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from uzu_contract.response import GenerateChunk
from uzu_gateway.engine.chat_deltas import (
    CallBegin,
    CallDelta,
    ChatDelta,
    Finish,
    ReasoningDelta,
    TextDelta,
    chat_deltas,
)
from uzu_gateway.engine.replies import ChatReply, JsonObject
from uzu_gateway.errors import GatewayError, anthropic_body
from uzu_gateway.schemas.response_items import new_id
from uzu_gateway.sse import named_event

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessageReply:
    """One message in the making. See `api.answer.AnswerForm` for how it is driven.

    Args:
        chat: reads the model's output.
        model: its name.
        stop_sequences: of the client, which the end is told by.

    """

    done = b""

    def __init__(self, chat: ChatReply, model: str, stop_sequences: Sequence[str] = ()) -> None:
        self._chat = chat
        self._model = model
        self._stop_sequences = stop_sequences
        self._id = new_id("msg")
        self._blocks: list[JsonObject] = []
        self._arguments: dict[int, str] = {}
        self._is_open = False
        self._begun = False
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def add(self, index: int, chunk: GenerateChunk) -> None:
        """See `AnswerForm.add`."""
        for _ in self.stream(index, chunk):
            pass

    def stream(self, _: int, chunk: GenerateChunk) -> Iterator[JsonObject]:
        """See `AnswerForm.stream`."""
        deltas = list(chat_deltas(self._chat, chunk))
        if not self._begun:
            self._begun = True
            usage = {**self._usage(), "output_tokens": 0}
            yield {"type": "message_start", "message": {**self._message(), "usage": usage}}
        if chunk.stop_reason in self._stop_sequences:
            self._stop_sequence = chunk.stop_reason
        for delta in deltas:
            yield from self._take(delta)

    async def finish(self) -> None:
        """See `AnswerForm.finish`."""

    def closing(self) -> Iterator[JsonObject]:
        """See `AnswerForm.closing`."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        yield {"type": "message_delta", "delta": delta, "usage": self._usage()}
        yield {"type": "message_stop"}

    def body(self) -> JsonObject:
        """The whole message."""
        content = [
            {**block, "input": _parsed(self._arguments[place])} if place in self._arguments else block
            for place, block in enumerate(self._blocks)
        ]
        return {**self._message(), "content": content}

    def encode(self, payload: JsonObject) -> bytes:
        """See `AnswerForm.encode`."""
        return named_event(payload["type"], payload)

    def failure(self, error: GatewayError) -> bytes:
        """See `AnswerForm.failure`."""
        return named_event("error", anthropic_body(error))

    def _take(self, delta: ChatDelta) -> Iterator[JsonObject]:
        match delta:
            case ReasoningDelta(text):
                yield from self._ensure({"type": "thinking", "thinking": "", "signature": ""})
                self._blocks[-1]["thinking"] += text
                yield self._delta({"type": "thinking_delta", "thinking": text})
            case TextDelta(text):
                yield from self._ensure({"type": "text", "text": ""})
                self._blocks[-1]["text"] += text
                yield self._delta({"type": "text_delta", "text": text})
            case CallBegin(_, call_id, name):
                yield from self._close()
                yield from self._begin({"type": "tool_use", "id": call_id, "name": name, "input": {}})
                self._arguments[len(self._blocks) - 1] = ""
            case CallDelta(_, arguments):
                self._arguments[len(self._blocks) - 1] += arguments
                yield self._delta({"type": "input_json_delta", "partial_json": arguments})
            case Finish(reason):
                yield from self._close()
                ended = _REASONS.get(reason, "end_turn")
                self._stop_reason = "stop_sequence" if self._stop_sequence is not None else ended

    def _ensure(self, block: JsonObject) -> Iterator[JsonObject]:
        if not self._is_open or self._blocks[-1]["type"] != block["type"]:
            yield from self._close()
            yield from self._begin(block)

    def _begin(self, block: JsonObject) -> Iterator[JsonObject]:
        self._blocks.append(dict(block))
        self._is_open = True
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block}

    def _close(self) -> Iterator[JsonObject]:
        if self._is_open:
            self._is_open = False
            yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _delta(self, delta: JsonObject) -> JsonObject:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _message(self) -> JsonObject:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._usage(),
        }

    def _usage(self) -> JsonObject:
        """Anthropic's token counts, in which what came from the cache is not among the input."""
        counts = self._chat.usage()
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counts["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counts["completion_tokens"],
        }


def _parsed(arguments: str) -> object:
    """The arguments of a call; those that were cut short, as the stop reason says, are none."""
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return {}
