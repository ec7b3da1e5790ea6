"""From a chat's answer to the response object of `/v1/responses` and its events."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

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
from uzu_gateway.errors import GatewayError
from uzu_gateway.schemas.response_items import new_id
from uzu_gateway.sse import named_event

Finisher = Callable[["ResponseReply"], Awaitable[None]]


async def _nothing(_: ResponseReply) -> None:
    return


class ResponseReply:
    """One response in the making. See `api.answer.AnswerForm` for how it is driven.

    Args:
        chat: reads the model's output.
        head: the fields of the response that are known before it begins.
        on_finish: told when the response is whole, before anybody else is.

    """

    done = b""

    def __init__(self, chat: ChatReply, head: JsonObject, on_finish: Finisher = _nothing) -> None:
        self._chat = chat
        self._head = {"id": new_id("resp"), "object": "response", "created_at": int(time.time()), **head}
        self._on_finish = on_finish
        self._status = "in_progress"
        self._error: JsonObject | None = None
        self._incomplete: JsonObject | None = None
        self._sequence = 0
        self._begun = False
        self.items: list[JsonObject] = []
        self._open: int | None = None
        self._calls: dict[int, int] = {}

    @property
    def response_id(self) -> str:
        """Its id."""
        return str(self._head["id"])

    def add(self, index: int, chunk: GenerateChunk) -> None:
        """See `AnswerForm.add`."""
        for _ in self.stream(index, chunk):
            pass

    def stream(self, _: int, chunk: GenerateChunk) -> Iterator[JsonObject]:
        """See `AnswerForm.stream`."""
        if not self._begun:
            self._begun = True
            yield self._event("response.created", response=self.body())
            yield self._event("response.in_progress", response=self.body())
        for delta in chat_deltas(self._chat, chunk):
            yield from self._take(delta)

    async def finish(self) -> None:
        """See `AnswerForm.finish`."""
        await self._on_finish(self)

    def closing(self) -> Iterator[JsonObject]:
        """See `AnswerForm.closing`."""
        yield self._event(f"response.{self._status}", response=self.body())

    def body(self) -> JsonObject:
        """The response as it stands."""
        whole = self._status not in ("queued", "in_progress")
        return {
            **self._head,
            "status": self._status,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "output": [dict(item) for item in self.items] if whole else [],
            "usage": self._usage() if whole and self._error is None else None,
        }

    def set_status(self, status: str) -> None:
        """Say how it stands otherwise: `queued`, `in_progress`, `cancelled`."""
        self._status = status
        if status == "cancelled":
            self.items = [item for item in self.items if item["status"] != "in_progress"]

    def set_stored(self, stored: bool) -> None:
        """Say whether it was stored."""
        self._head["store"] = stored

    def fail(self, error: GatewayError) -> None:
        """End it with an error."""
        self._status = "failed"
        code = "rate_limit_exceeded" if error.spec.type == "rate_limit_error" else "server_error"
        self._error = {"code": code, "message": error.body()["error"]["message"]}
        self.items = [{**item, "status": "incomplete"} for item in self.items]

    def encode(self, payload: JsonObject) -> bytes:
        """See `AnswerForm.encode`."""
        return named_event(payload["type"], payload)

    def failure(self, error: GatewayError) -> bytes:
        """See `AnswerForm.failure`."""
        self.fail(error)
        return self.encode(self._event("response.failed", response=self.body()))

    def _take(self, delta: ChatDelta) -> Iterator[JsonObject]:
        match delta:
            case ReasoningDelta(text):
                yield from self._ensure("reasoning")
                yield self._grow("response.reasoning_text.delta", text, content_index=0)
            case TextDelta(text, logprobs):
                yield from self._ensure("message")
                part = self.items[-1]["content"][0]
                shown = [_logprob(entry) for entry in logprobs]
                part["logprobs"] += shown
                yield self._grow("response.output_text.delta", text, content_index=0, logprobs=shown)
            case CallBegin(index, call_id, name):
                yield from self._close("completed")
                self._calls[index] = len(self.items)
                yield from self._add(
                    {"id": new_id("fc"), "type": "function_call", "call_id": call_id, "name": name}
                    | {"arguments": "", "status": "in_progress"}
                )
            case CallDelta(index, arguments):
                place = self._calls[index]
                self.items[place]["arguments"] += arguments
                item_id = self.items[place]["id"]
                yield self._event(
                    "response.function_call_arguments.delta",
                    item_id=item_id,
                    output_index=place,
                    delta=arguments,
                )
            case Finish(reason):
                if not self.items:
                    yield from self._ensure("message")
                cut = reason == "length"
                yield from self._close("incomplete" if cut else "completed")
                self._status = "incomplete" if cut else "completed"
                self._incomplete = {"reason": "max_output_tokens"} if cut else None

    def _ensure(self, kind: str) -> Iterator[JsonObject]:
        """Let the open item be a message, or reasoning, with a part to write to."""
        if self._open is not None and self.items[self._open]["type"] == kind:
            return
        yield from self._close("completed")
        if kind == "message":
            item: JsonObject = {"id": new_id("msg"), "type": kind, "role": "assistant"}
            part: JsonObject = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            item = {"id": new_id("rs"), "type": kind, "summary": []}
            part = {"type": "reasoning_text", "text": ""}
        yield from self._add({**item, "content": [], "status": "in_progress"})
        yield self._event(
            "response.content_part.added",
            item_id=item["id"],
            output_index=len(self.items) - 1,
            content_index=0,
            part=dict(part),
        )
        self.items[-1]["content"] = [part]

    def _add(self, item: JsonObject) -> Iterator[JsonObject]:
        self.items.append(item)
        self._open = len(self.items) - 1
        yield self._event("response.output_item.added", output_index=self._open, item=dict(item))

    def _grow(self, kind: str, text: str, **fields: Any) -> JsonObject:
        item = self.items[-1]
        item["content"][0]["text"] += text
        place = len(self.items) - 1
        return self._event(kind, item_id=item["id"], output_index=place, delta=text, **fields)

    def _close(self, status: str) -> Iterator[JsonObject]:
        if self._open is None:
            return
        place, self._open = self._open, None
        item = self.items[place]
        where = {"item_id": item["id"], "output_index": place}
        if item["type"] == "function_call":
            name, arguments = item["name"], item["arguments"]
            kind = "response.function_call_arguments.done"
            yield self._event(kind, **where, name=name, arguments=arguments)
        else:
            part = item["content"][0]
            where["content_index"] = 0
            if item["type"] == "message":
                logprobs = part["logprobs"]
                yield self._event("response.output_text.done", **where, text=part["text"], logprobs=logprobs)
            else:
                yield self._event("response.reasoning_text.done", **where, text=part["text"])
            yield self._event("response.content_part.done", **where, part=part)
        item["status"] = status
        yield self._event("response.output_item.done", output_index=place, item=dict(item))

    def _event(self, kind: str, **fields: Any) -> JsonObject:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _usage(self) -> JsonObject:
        counts = self._chat.usage()
        details = counts.get("completion_tokens_details") or {}
        return {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": counts["prompt_tokens_details"]["cached_tokens"],
                "cache_write_tokens": 0,
            },
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens") or 0},
            "total_tokens": counts["total_tokens"],
        }


def _logprob(entry: JsonObject) -> JsonObject:
    return {
        "token": entry["token"],
        "bytes": entry["bytes"],
        "logprob": entry["logprob"],
        "top_logprobs": [
            {"token": top["token"], "bytes": top["bytes"], "logprob": top["logprob"]}
            for top in entry["top_logprobs"]
        ],
    }
