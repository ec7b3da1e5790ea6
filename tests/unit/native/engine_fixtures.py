"""Small builders for tests of the engine's core."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from uzu_contract.errors import RequestError
from uzu_contract.logprobs import TokenLogprobs
from uzu_contract.request import GenerateRequest, TokenPrompt
from uzu_contract.response import FinishReason, GenerateChunk
from uzu_contract.sampling import SamplingParams
from uzu_native.engine import Engine
from uzu_native.executor import FakeExecutor
from uzu_native.options import EngineOptions
from uzu_native.sampler import Guide
from uzu_native.sequence import TextStream
from uzu_native.speculation import Candidate, Speculator
from uzu_native.step_costs import StepCosts

END_TOKEN = 63


class WordStream:
    """Text stream of a toy tokenizer: token n is the word `<n>`."""

    def __init__(self, stop: tuple[str, ...] = ()) -> None:
        self.stop_reason: str | None = None
        self._stop = stop

    def push(self, token_id: int) -> str:
        word = f"<{token_id}>"
        if word in self._stop:
            self.stop_reason = word
            return ""
        return word

    def finish(self) -> str:
        return ""


class Oracle(Speculator):
    """Guesses from known continuations, with every so-manieth guess wrong."""

    def __init__(self, texts: list[list[int]], wrong_every: int) -> None:
        super().__init__(StepCosts(1.0, 0.0), most=0)
        self.texts = texts
        self.wrong_every = wrong_every
        self.random = random.Random(1)

    def draft(self, candidates: Sequence[Candidate], alone: bool = True) -> list[list[int]]:
        drafts = []
        for candidate in candidates:
            known = list(candidate.token_ids)
            (text,) = [t for t in self.texts if t[: len(known)] == known]
            count = min(self.random.randrange(6), candidate.room)
            guess = text[len(known) :][:count]
            drafts.append([t if self.random.randrange(self.wrong_every) else (t + 1) % 60 for t in guess])
        return drafts


@dataclass
class Recorder:
    """A listener that keeps what it is told."""

    chunks: list[GenerateChunk] = field(default_factory=list)
    error: RequestError | None = None

    def on_chunk(self, chunk: GenerateChunk) -> None:
        assert self.finish_reason is None, "output after the end"
        self.chunks.append(chunk)

    def on_error(self, error: RequestError) -> None:
        assert self.finish_reason is None
        assert self.error is None
        self.error = error

    @property
    def token_ids(self) -> list[int]:
        return [t for chunk in self.chunks for t in chunk.token_ids]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        return [place for chunk in self.chunks for place in chunk.logprobs or ()]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.chunks[-1].finish_reason if self.chunks else None


class Faults(list[BaseException]):
    """Collects the engine's own faults; a test that expects none checks that it is empty."""


class ManualClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_options(**changes: object) -> EngineOptions:
    defaults: dict[str, object] = {"model": "unused", "threads": 2, "max_step_tokens": 16}
    defaults |= {"prefill_tokens_beside_decode": 8}
    return EngineOptions(**(defaults | changes))  # type: ignore[arg-type]


def make_engine(
    executor: FakeExecutor | None = None,
    *,
    context_tokens: int = 200,
    clock: Callable[[], float] | None = None,
    faults: Faults | None = None,
    speculator: Speculator | None = None,
    end_token: int = END_TOKEN,
    make_text_stream: Callable[[tuple[str, ...]], TextStream] = WordStream,
    **options: object,
) -> Engine:
    def raise_fault(error: BaseException) -> None:
        raise AssertionError("the engine reported a fault") from error

    return Engine(
        executor or FakeExecutor(),
        make_options(**options),
        end_token_ids=frozenset({end_token}),
        context_tokens=context_tokens,
        make_text_stream=make_text_stream,
        token_bytes=lambda token: f"<{token}>".encode(),
        encode_word=lambda word: [int(number) for number in word.split()],
        draw_seed=lambda: 7,
        clock=clock or ManualClock(),
        on_fault=raise_fault if faults is None else faults.append,
        speculator=speculator,
    )


def make_request(**changes: object) -> GenerateRequest:
    sampling_fields = SamplingParams.__dataclass_fields__
    sampling: dict[str, object] = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    sampling |= {k: v for k, v in changes.items() if k in sampling_fields}
    rest = {k: v for k, v in changes.items() if k not in sampling_fields}
    return GenerateRequest(
        prompt=TokenPrompt((1,)),
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        **({"stream": True} | rest),  # type: ignore[arg-type]
    )


def prompt(length: int, offset: int = 0) -> list[int]:
    return [(7 * i + offset) % 60 for i in range(length)]


def run(
    engine: Engine,
    *requests: tuple[list[int], GenerateRequest],
    compile_guide: Callable[[SamplingParams], Guide | None] = lambda _: None,
) -> list[Recorder]:
    """Submit all, work until idle, check the books, return what each was told."""
    recorders = [Recorder() for _ in requests]
    for (token_ids, request), recorder in zip(requests, recorders, strict=True):
        engine.submit(request, token_ids, recorder, compile_guide(request.sampling))
    engine.run_until_idle()
    engine.check_integrity()
    assert engine.metrics.kv_blocks_used == 0
    return recorders
