"""From chunks of the LLM contract to OpenAI's bodies and stream chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from uzu_contract.logprobs import PromptLogprobs, TokenLogprobs
from uzu_contract.response import FinishReason, GenerateChunk
from uzu_gateway.engine.logprobs import (
    TextOffsets,
    chat_logprobs,
    completion_logprobs,
    echoed_logprobs,
    mean_logprob,
    prompt_logprobs,
)
from uzu_gateway.errors import GatewayError
from uzu_gateway.sse import DONE, error_event, event

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ShownLogprobs:
    """Which log-probabilities a completion shows, of those that came.

    Args:
        answer: whether those of the answer.
        echoed: how many of the likeliest tokens beside each of the echoed prompt; None shows none of it.
        prompt: likewise in `prompt_logprobs`; None leaves that out.

    """

    answer: bool = True
    echoed: int | None = None
    prompt: int | None = None


@dataclass(slots=True)
class Choice:
    """What has come of one choice so far."""

    texts: list[str] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: PromptLogprobs | None = None
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
        self.prompt_logprobs = chunk.prompt_logprobs or self.prompt_logprobs

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
    done = DONE

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
        return {**self._head(self.body_object), "choices": self._choices(), "usage": self._usage()}

    async def finish(self) -> None:
        """See `AnswerForm.finish`."""

    def encode(self, payload: JsonObject) -> bytes:
        """See `AnswerForm.encode`."""
        return event(payload)

    def failure(self, error: GatewayError) -> bytes:
        """See `AnswerForm.failure`."""
        return error_event(error)

    def usage(self) -> JsonObject:
        """OpenAI's token counts."""
        return self._usage()

    def _choices(self) -> list[JsonObject]:
        raise NotImplementedError

    def _usage(self) -> JsonObject:
        return usage(self.choices, self._choices_per_prompt)

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
        kept_per_prompt: how many of these, the likeliest by the mean log-probability of their tokens, are
            given, the likeliest first; None gives all, in their order.
        shown: which log-probabilities are.
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
        kept_per_prompt: int | None = None,
        shown: ShownLogprobs | None = None,
        include_usage: bool = False,
    ) -> None:
        super().__init__(
            model, len(echoes), choices_per_prompt=choices_per_prompt, include_usage=include_usage
        )
        self._echoes = echoes
        self._kept_per_prompt = kept_per_prompt or choices_per_prompt
        self._shown = shown or ShownLogprobs()

    def stream(self, index: int, chunk: GenerateChunk) -> Iterator[JsonObject]:
        """See `Reply.stream`."""
        choice = self.choices[index]
        text = chunk.text if choice.texts else self._echoes[index] + chunk.text
        is_first = not choice.texts
        choice.add(chunk)
        if text or chunk.finish_reason or chunk.logprobs:
            logprobs = self._logprobs(index, chunk.logprobs, text if is_first else None)
            yield self._chunk(_text_choice(index, text, logprobs, chunk.finish_reason))

    def _choices(self) -> list[JsonObject]:
        made = []
        for first in range(0, len(self.choices), self._choices_per_prompt):
            indices = list(range(first, first + self._choices_per_prompt))
            if self._kept_per_prompt < self._choices_per_prompt:
                indices.sort(key=lambda i: -mean_logprob(self.choices[i].logprobs or ()))
            made += indices[: self._kept_per_prompt]
        return [self._whole(place, index) for place, index in enumerate(made)]

    def _whole(self, place: int, index: int) -> JsonObject:
        """A choice, and its place among those that are given."""
        choice = self.choices[index]
        text = self._echoes[index] + choice.text
        logprobs = self._logprobs(index, choice.logprobs, text)
        made = _text_choice(place, text, logprobs, choice.finish_reason)
        prompt = self._prompt_logprobs(index)
        if self._shown.prompt is not None and prompt is not None:
            made["prompt_logprobs"] = prompt_logprobs(prompt, self._shown.prompt)
        return made

    def _prompt_logprobs(self, index: int) -> PromptLogprobs | None:
        """Those of the prompt, which the choice has itself or the first of those that share it."""
        first = self.choices[index - index % self._choices_per_prompt]
        return self.choices[index].prompt_logprobs or first.prompt_logprobs

    def _logprobs(
        self, index: int, places: Sequence[TokenLogprobs] | None, beginning: str | None
    ) -> JsonObject | None:
        """What a choice shows of these tokens; `beginning` is its text so far if they are the first."""
        if places is None or not self._shown.answer:
            return None
        offsets = self.choices[index].offsets
        prompt = self._prompt_logprobs(index)
        if beginning is None or self._shown.echoed is None or prompt is None:
            return completion_logprobs(places, offsets)
        echoed = echoed_logprobs(prompt, self._shown.echoed, beginning, offsets)
        answered = completion_logprobs(places, offsets)
        return {name: echoed[name] + answered[name] for name in echoed}


class ChatReply(Reply):
    """Answers `/v1/chat/completions`.

    Args:
        model: its name.
        choices: how many there are, all of one prompt.
        prompt_logprobs: how many of the likeliest tokens to show at each place of the prompt; None leaves
            `prompt_logprobs` out.
        include_usage: end a stream with the token counts.

    """

    id_prefix = "chatcmpl"
    body_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self, model: str, choices: int, *, prompt_logprobs: int | None = None, include_usage: bool = False
    ) -> None:
        super().__init__(model, choices, choices_per_prompt=choices, include_usage=include_usage)
        self._shown_prompt_logprobs = prompt_logprobs

    def body(self) -> JsonObject:
        """See `Reply.body`."""
        made = super().body()
        prompt = self.choices[0].prompt_logprobs
        if self._shown_prompt_logprobs is not None and prompt is not None:
            made["prompt_logprobs"] = prompt_logprobs(prompt, self._shown_prompt_logprobs)
        return made

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

    def _choices(self) -> list[JsonObject]:
        return [self._choice(index, choice) for index, choice in enumerate(self.choices)]

    def _choice(self, index: int, choice: Choice) -> JsonObject:
        return {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None if choice.logprobs is None else chat_logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }


def _text_choice(
    index: int, text: str, logprobs: JsonObject | None, finish: FinishReason | None
) -> JsonObject:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def _delta_choice(
    index: int, delta: JsonObject, logprobs: JsonObject | None = None, finish: FinishReason | None = None
) -> JsonObject:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
