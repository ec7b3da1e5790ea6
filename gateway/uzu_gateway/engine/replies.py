"""From chunks of the LLM contract to OpenAI's bodies and stream chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from uzu_contract.logprobs import TokenLogprobs
from uzu_contract.response import FinishReason, GenerateChunk
from uzu_gateway.engine.logprobs import TextOffsets, chat_logprobs, completion_logprobs

JsonObject = dict[str, Any]


@dataclass(slots=True)
class Choice:
    """What has come of one choice so far."""

    texts: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None
    offsets: TextOffsets = field(default_factory=TextOffsets)

    def add(self, chunk: GenerateChunk) -> None:
        """Take a chunk in."""
        self.texts.append(chunk.text)
        self.finish_reason = chunk.finish_reason or self.finish_reason
        self.prompt_tokens = max(self.prompt_tokens, chunk.num_input_tokens)
        self.cached_tokens = max(self.cached_tokens, chunk.num_cached_tokens)
        self.completion_tokens += len(chunk.token_ids)
        if chunk.logprobs is not None:
            self.logprobs = [*(self.logprobs or ()), *chunk.logprobs]

    @property
    def text(self) -> str:
        """All of the text."""
        return "".join(self.texts)


def usage(choices: Sequence[Choice], choices_per_prompt: int = 1) -> JsonObject:
    """OpenAI's token counts, over all choices; a prompt counts once, whatever the number of its choices."""
    first = choices[::choices_per_prompt]
    prompt = sum(choice.prompt_tokens for choice in first)
    completion = sum(choice.completion_tokens for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in first)},
    }


class Reply:
    """One answer in the making: feed it chunks, take stream chunks from it, or the body at the end.

    Args:
        model: its name.
        choices: how many there are.
        choices_per_prompt: how many consecutive ones share a prompt.
        include_usage: end a stream with the token counts.

    """

    id_prefix: str
    body_object: str
    chunk_object: str

    def __init__(
        self, model: str, choices: int, *, choices_per_prompt: int = 1, include_usage: bool = False
    ) -> None:
        self._choices_per_prompt = choices_per_prompt
        self.choices = [Choice() for _ in range(choices)]
        self._id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._include_usage = include_usage

    def add(self, index: int, chunk: GenerateChunk) -> None:
        """Take in a chunk of one choice."""
        self.choices[index].add(chunk)

    def stream(self, index: int, chunk: GenerateChunk) -> Iterator[JsonObject]:
        """Take in a chunk of one choice; what a stream sends for it, which may be nothing."""
        raise NotImplementedError

    def closing(self) -> Iterator[JsonObject]:
        """What a stream sends after the last choice has finished."""
        if self._include_usage:
            yield {**self._head(self.chunk_object), "choices": [], "usage": self._usage()}

    def body(self) -> JsonObject:
        """The whole answer."""
        return {
            **self._head(self.body_object),
            "choices": [self._choice(index, choice) for index, choice in enumerate(self.choices)],
            "usage": self._usage(),
        }

    def _usage(self) -> JsonObject:
        return usage(self.choices, self._choices_per_prompt)

    def _choice(self, index: int, choice: Choice) -> JsonObject:
        raise NotImplementedError

    def _head(self, kind: str) -> JsonObject:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": None,
        }

    def _chunk(self, choice: JsonObject) -> JsonObject:
        made = {**self._head(self.chunk_object), "choices": [choice]}
        if self._include_usage:
            made["usage"] = None
        return made


class CompletionReply(Reply):
    """Answers `/v1/completions`.

    Args:
        model: its name.
        echoes: for each choice, the text that goes before the answer.
        choices_per_prompt: how many consecutive choices share a prompt.
        include_usage: end a stream with the token counts.

    """

    id_prefix = "cmpl"
    body_object = chunk_object = "text_completion"

    def __init__(
        self,
        model: str,
        echoes: Sequence[str],
        *,
        choices_per_prompt: int = 1,
        include_usage: bool = False,
    ) -> None:
        super().__init__(
            model, len(echoes), choices_per_prompt=choices_per_prompt, include_usage=include_usage
        )
        self._echoes = echoes

    def stream(self, index: int, chunk: GenerateChunk) -> Iterator[JsonObject]:
        """See `Reply.stream`."""
        choice = self.choices[index]
        text = chunk.text if choice.texts else self._echoes[index] + chunk.text
        choice.add(chunk)
        if text or chunk.finish_reason or chunk.logprobs:
            logprobs = _completion_logprobs(choice, chunk.logprobs)
            yield self._chunk(_text_choice(index, text, logprobs, chunk.finish_reason))

    def _choice(self, index: int, choice: Choice) -> JsonObject:
        logprobs = _completion_logprobs(choice, choice.logprobs)
        return _text_choice(index, self._echoes[index] + choice.text, logprobs, choice.finish_reason)


class ChatReply(Reply):
    """Answers `/v1/chat/completions`."""

    id_prefix = "chatcmpl"
    body_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def stream(self, index: int, chunk: GenerateChunk) -> Iterator[JsonObject]:
        """See `Reply.stream`."""
        choice = self.choices[index]
        if not choice.texts:
            yield self._chunk(_delta_choice(index, {"role": "assistant", "content": ""}))
        choice.add(chunk)
        logprobs = None if chunk.logprobs is None else chat_logprobs(chunk.logprobs)
        if chunk.text or (chunk.logprobs and not chunk.finish_reason):
            yield self._chunk(_delta_choice(index, {"content": chunk.text}, logprobs))
            logprobs = None
        if chunk.finish_reason:
            yield self._chunk(_delta_choice(index, {}, logprobs, chunk.finish_reason))

    def _choice(self, index: int, choice: Choice) -> JsonObject:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None if choice.logprobs is None else chat_logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }


def _completion_logprobs(choice: Choice, places: Sequence[TokenLogprobs] | None) -> JsonObject | None:
    return None if places is None else completion_logprobs(places, choice.offsets)


def _text_choice(
    index: int, text: str, logprobs: JsonObject | None, finish: FinishReason | None
) -> JsonObject:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _delta_choice(
    index: int, delta: JsonObject, logprobs: JsonObject | None = None, finish: FinishReason | None = None
) -> JsonObject:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
