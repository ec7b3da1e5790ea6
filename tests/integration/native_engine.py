"""The native engine on the real model, in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from uzu_contract.errors import RequestError
from uzu_contract.request import GenerateRequest, TokenPrompt
from uzu_contract.response import GenerateChunk
from uzu_contract.sampling import SamplingParams
from uzu_native.assembly import load_model
from uzu_native.executor import Executor
from uzu_native.options import parse_options
from uzu_native.step_costs import StepCosts

Measure = Callable[[Executor], StepCosts]


class Answer:
    """A listener to wait for."""

    def __init__(self) -> None:
        self.chunks: list[GenerateChunk] = []
        self.error: RequestError | None = None
        self._over = threading.Event()

    def on_chunk(self, chunk: GenerateChunk) -> None:
        self.chunks.append(chunk)
        if chunk.finish_reason:
            self._over.set()

    def on_error(self, error: RequestError) -> None:
        self.error = error
        self._over.set()

    def wait(self) -> Answer:
        assert self._over.wait(120), "no end in time"
        assert self.error is None, self.error
        return self

    @property
    def token_ids(self) -> list[int]:
        return [t for chunk in self.chunks for t in chunk.token_ids]


class RealEngine:
    def __init__(self, folder_path: Path, measure: Measure | None = None, **options: object) -> None:
        self.options = parse_options({"model": str(folder_path), "check_integrity": True, **options})
        self.faults: list[BaseException] = []
        measured = {} if measure is None else {"measure": measure}
        loaded = load_model(self.options, folder_path, "smollm2", self.faults.append, **measured)
        self.engine, self.prompts, self.guides = loaded.engine, loaded.prompts, loaded.guides
        self.engine.start()

    def run(self, *jobs: tuple[list[int], SamplingParams]) -> list[Answer]:
        """Prompts with their parameters, all at once; their answers."""
        answers = [Answer() for _ in jobs]
        for (prompt, sampling), answer in zip(jobs, answers, strict=True):
            request = GenerateRequest(prompt=TokenPrompt(tuple(prompt)), sampling=sampling, stream=True)
            self.engine.submit(request, prompt, answer, self.guides.compile(sampling))
        return [answer.wait() for answer in answers]


@contextmanager
def real_engine(folder: Path, measure: Measure | None = None, **options: object) -> Iterator[RealEngine]:
    """An engine that is stopped, and whose books are checked, at the end."""
    running = RealEngine(folder, measure, **options)
    try:
        yield running
    finally:
        running.engine.stop()
    running.engine.check_integrity()
    assert running.faults == []


def random_prompt(length: int, seed: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(100, 40_000, length)]
