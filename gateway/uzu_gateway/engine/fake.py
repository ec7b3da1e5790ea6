"""An engine in memory, for tests and for developing clients: deterministic, slow or failing at will."""

from __future__ import annotations

import asyncio
import math
import re
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from uzu_contract.logprobs import PromptLogprobs, ScoredToken, TokenLogprobs
from uzu_contract.request import ChatPrompt, GenerateRequest, Operation, TextPrompt, TokenPrompt
from uzu_contract.response import FinishReason, GenerateChunk, ModelDetails
from uzu_gateway.engine.port import (
    Capability,
    Embedding,
    EngineUnavailableError,
    ModelInfo,
    ModelNotFoundError,
    Score,
    cannot,
)

_PIECES = re.compile(r"\s*\S+\s*?|\s+")
_CREATED = 1_700_000_000
_TOKEN_IDS = 1 << 15
CONTEXT_LENGTH = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeBehaviour:
    """How the fake answers.

    Args:
        reply: the text; None repeats the prompt (the content of the last message). Words are its tokens.
        first_chunk_delay_s: before the first token.
        chunk_delay_s: before every other token.
        failure: raised instead of the token after `failure_after` tokens.
        failure_after: tokens that come before the failure.
        finish_reason: how a text ends that neither `max_tokens` nor a stop string cuts; None leaves it open.

    """

    reply: str | None = None
    first_chunk_delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    failure: Exception | None = None
    failure_after: int = 0
    finish_reason: FinishReason | None = FinishReason.STOP


LANGUAGE_MODEL = frozenset({Capability.COMPLETION, Capability.CHAT, Capability.TOKENIZE})
_EMBEDDING_LENGTH = 8


class FakeEngine:
    """Implements `Engine` without a backend, and counts what becomes of its generations.

    `behaviour`, `models`, `capabilities` and `ready` may be changed at any time; they count for what
    begins later.
    """

    def __init__(
        self,
        models: tuple[str, ...] = ("fake",),
        behaviour: FakeBehaviour | None = None,
        *,
        ready: bool = True,
        capabilities: frozenset[Capability] = LANGUAGE_MODEL,
    ) -> None:
        self.models = models
        self.unloaded: set[str] = set()
        self.capabilities = capabilities
        self.behaviour = behaviour or FakeBehaviour()
        self.ready = ready
        self.started = 0
        self.finished = 0
        self.failed = 0
        self.cancelled = 0
        self.closed = False
        self._words: dict[int, str] = {}
        self.requests: deque[tuple[str, GenerateRequest, str]] = deque(maxlen=1024)

    @property
    def running(self) -> int:
        """Generations that have begun and not ended in any way."""
        return self.started - self.finished - self.failed - self.cancelled

    def behaviour_for(self, request: GenerateRequest) -> FakeBehaviour:  # noqa: ARG002
        """How one request is answered; override it to tell requests apart."""
        return self.behaviour

    async def generate(
        self, model: str, request: GenerateRequest, request_id: str
    ) -> AsyncGenerator[GenerateChunk, None]:
        """See `Engine.generate`."""
        self.started += 1
        self.requests.append((model, request, request_id))
        try:
            self._check(model)
            if request.operation is not Operation.GENERATE:
                yield self._answer_question(request)
                self.finished += 1
                return
            async for chunk in self._chunks(request, self.behaviour_for(request)):
                yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise
        except Exception:
            self.failed += 1
            raise
        else:
            self.finished += 1

    async def embed(self, model: str, texts: Sequence[str], request_id: str) -> tuple[Embedding, ...]:  # noqa: ARG002
        """See `Engine.embed`: the same text has the same vector of unit length."""
        self._check(model, Capability.EMBEDDING)
        return tuple(Embedding(_vector(text), len(_PIECES.findall(text))) for text in texts)

    async def score(
        self,
        model: str,
        pairs: Sequence[tuple[str, str]],
        request_id: str,  # noqa: ARG002
    ) -> tuple[Score, ...]:
        """See `Engine.score`: the share of the first text's words that the second has."""
        self._check(model, Capability.SCORE)
        scores = []
        for first, second in pairs:
            words, found = first.split(), second.split()
            share = sum(word in found for word in words) / max(1, len(words))
            scores.append(Score(share, len(words) + len(found)))
        return tuple(scores)

    async def load_model(self, model: str) -> None:
        """See `Engine.load_model`; its repository is `models`."""
        if model not in self.models:
            raise ModelNotFoundError(model)
        self.unloaded.discard(model)

    async def unload_model(self, model: str) -> None:
        """See `Engine.unload_model`."""
        self._check(model)
        self.unloaded.add(model)

    async def list_models(self) -> tuple[ModelInfo, ...]:
        """See `Engine.list_models`."""
        if not self.ready:
            raise EngineUnavailableError("the fake is not ready")
        return tuple(
            ModelInfo(name, _CREATED, self.capabilities, CONTEXT_LENGTH)
            for name in sorted(set(self.models) - self.unloaded)
        )

    async def is_ready(self) -> bool:
        """See `Engine.is_ready`."""
        return self.ready and bool(set(self.models) - self.unloaded)

    async def close(self) -> None:
        """See `Engine.close`."""
        self.closed = True

    def _check(self, model: str, capability: Capability | None = None) -> None:
        if not self.ready:
            raise EngineUnavailableError("the fake is not ready")
        if model not in self.models or model in self.unloaded:
            raise ModelNotFoundError(model)
        if capability is not None and capability not in self.capabilities:
            raise cannot(model, capability)

    def _answer_question(self, request: GenerateRequest) -> GenerateChunk:
        """Words are tokens, whose ids `detokenize` knows once it has met them in `tokenize`."""
        pieces = [] if request.operation is Operation.DESCRIBE else _prompt_pieces(request)
        text = ""
        if request.operation is Operation.TOKENIZE:
            self._words.update({token_id(piece): piece for piece in pieces})
        elif isinstance(request.prompt, TokenPrompt):
            text = "".join(self._words.get(token, f" {token}") for token in request.prompt.token_ids)
            pieces = []
        return GenerateChunk(
            text=text,
            token_ids=tuple(map(token_id, pieces)),
            finish_reason=FinishReason.STOP,
            num_input_tokens=len(pieces),
            details=ModelDetails(
                context_tokens=CONTEXT_LENGTH,
                operations=tuple(operation.value for operation in Operation),
                has_chat_template=True,
                tokens=tuple(pieces) if request.operation is Operation.TOKENIZE else None,
            ),
        )

    async def _chunks(
        self, request: GenerateRequest, behaviour: FakeBehaviour
    ) -> AsyncGenerator[GenerateChunk, None]:
        prompt = _prompt_pieces(request)
        reply = prompt if behaviour.reply is None else _PIECES.findall(behaviour.reply)
        echo = "".join(prompt) if request.echo_prompt else ""
        whole: list[GenerateChunk] = []
        for number, (piece, finish, stop) in enumerate(_plan(request, reply, behaviour)):
            await asyncio.sleep(behaviour.chunk_delay_s if number else behaviour.first_chunk_delay_s)
            if behaviour.failure is not None and number == behaviour.failure_after:
                raise behaviour.failure
            chunk = GenerateChunk(
                text=piece,
                token_ids=(token_id(piece),),
                finish_reason=finish,
                stop_reason=stop,
                num_input_tokens=len(prompt),
                logprobs=_logprobs(piece, request.logprob_count),
                prompt_logprobs=None if number else _prompt_logprobs(prompt, request.prompt_logprob_count),
            )
            if request.stream:
                yield chunk
            else:
                whole.append(chunk)
        if whole:
            yield GenerateChunk(
                text=echo + "".join(chunk.text for chunk in whole),
                token_ids=tuple(token for chunk in whole for token in chunk.token_ids),
                finish_reason=whole[-1].finish_reason,
                stop_reason=whole[-1].stop_reason,
                num_input_tokens=len(prompt),
                logprobs=(
                    None
                    if request.logprob_count is None
                    else tuple(place for chunk in whole for place in chunk.logprobs or ())
                ),
                prompt_logprobs=whole[0].prompt_logprobs,
            )


def _logprobs(piece: str, count: int | None) -> tuple[TokenLogprobs, ...] | None:
    """Half of the probability for the word itself, half of the rest for the word with one mark, and so on."""
    if count is None:
        return None
    words = [piece + "'" * i for i in range(max(1, count))]
    scored = tuple(
        ScoredToken(token_id(word), word.encode("utf-8", "surrogatepass"), -(rank * math.log(2)), rank)
        for rank, word in enumerate(words, 1)
    )
    return (TokenLogprobs(scored[0], scored[:count]),)


def _prompt_logprobs(pieces: list[str], count: int | None) -> PromptLogprobs | None:
    if count is None or not pieces:
        return None
    first, *others = pieces
    places = tuple(place for piece in others for place in _logprobs(piece, count) or ())
    return PromptLogprobs(token_id(first), first.encode("utf-8", "surrogatepass"), places)


def token_id(piece: str) -> int:
    """The fake's token for a word."""
    return zlib.crc32(piece.encode("utf-8", "surrogatepass")) % _TOKEN_IDS


def _vector(text: str) -> tuple[float, ...]:
    raw = [
        zlib.crc32(f"{place}{text}".encode("utf-8", "surrogatepass")) - 2**31
        for place in range(_EMBEDDING_LENGTH)
    ]
    length = math.hypot(*raw)
    return tuple(value / length for value in raw)


def _prompt_pieces(request: GenerateRequest) -> list[str]:
    match request.prompt:
        case TextPrompt(text):
            return _PIECES.findall(text)
        case ChatPrompt(messages=messages):
            return _PIECES.findall(messages[-1]["content"])
        case tokens:
            return [f" {token}" for token in tokens.token_ids]


def _plan(
    request: GenerateRequest, reply: list[str], behaviour: FakeBehaviour
) -> list[tuple[str, FinishReason | None, str | None]]:
    """Pieces of text; the last one has how the text ends, and by which stop string."""
    sampling = request.sampling
    limit = min(sampling.max_tokens or CONTEXT_LENGTH, CONTEXT_LENGTH)
    pieces = list(islice(cycle(reply or [" "]) if sampling.ignore_eos else reply, limit))
    finish = FinishReason.LENGTH if len(pieces) == limit else behaviour.finish_reason
    text = "".join(pieces)
    cuts = [(text.index(stop), stop) for stop in sampling.stop if stop in text]
    stop_string = None
    if cuts:
        end, stop_string = min(cuts)
        finish = FinishReason.STOP
        pieces = list(_cut(pieces, end))
    pieces = pieces or [""]
    return [*((piece, None, None) for piece in pieces[:-1]), (pieces[-1], finish, stop_string)]


def _cut(pieces: list[str], end: int) -> Iterator[str]:
    for piece in pieces:
        yield piece[:end]
        end -= len(piece)
        if end <= 0:
            return
