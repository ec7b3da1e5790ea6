"""What the native engine's parts are worth, each against itself without them, on the real model.

`prefix`: time to the first token with a shared prefix, against without. `memory`: how much of the KV blocks
is waste, and how many requests run at once against one full context reserved for each. `overhead`: how much
of a step is not the model. `interference`: gaps between tokens while somebody else's long prompt is computed,
against before. `cancel`: how soon blocks are free.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from bench import MODEL, TOKEN_RANGE, environment, prepared_model
from targets import raise_fault
from uzu_contract.errors import RequestError
from uzu_contract.request import GenerateRequest, TokenPrompt
from uzu_contract.response import GenerateChunk
from uzu_contract.sampling import SamplingParams
from uzu_native.assembly import load_model
from uzu_native.engine import Engine
from uzu_native.options import parse_options
from uzu_native.scheduler import Scheduler


class Answer:
    """A listener that notes when tokens came."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.times: list[float] = []
        self.cached_tokens = 0
        self._over = threading.Event()

    def on_chunk(self, chunk: GenerateChunk) -> None:
        """Take tokens."""
        self.times.append(time.perf_counter())
        self.token_ids += chunk.token_ids
        self.cached_tokens = chunk.num_cached_tokens
        if chunk.finish_reason is not None:
            self._over.set()

    def on_error(self, error: RequestError) -> None:
        """Take an error."""
        click.echo(f"a request failed: {error}", err=True)
        self._over.set()

    def wait(self) -> Answer:
        """Wait for the end."""
        self._over.wait()
        return self


class Client:
    """An engine and prompts of random tokens for it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._random = random.Random(0)

    @property
    def scheduler(self) -> Scheduler:
        """To look at; the engine's thread owns it."""
        return self.engine._scheduler

    def watch_executor(self) -> Stopwatch:
        """Time the executor's steps from now on; only while no request runs."""
        watch = Stopwatch(self.engine._executor)
        self.engine._executor = watch
        return watch

    def prompt(self, length: int) -> list[int]:
        """A prompt that no other shares."""
        return [self._random.randrange(*TOKEN_RANGE) for _ in range(length)]

    def ask(self, prompt: list[int], max_tokens: int) -> tuple[int, Answer]:
        """Submit a greedy request; its ticket and what will be its answer."""
        answer = Answer()
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        request = GenerateRequest(prompt=TokenPrompt(tuple(prompt)), sampling=sampling, stream=True)
        return self.engine.submit(request, prompt, answer), answer


@contextmanager
def client(**options: object) -> Iterator[Client]:
    """A running engine on the default model."""
    folder, _ = prepared_model()
    parsed = parse_options({"model": str(folder), **options})
    engine = load_model(parsed, Path("/"), MODEL, raise_fault).engine
    engine.start()
    try:
        yield Client(engine)
    finally:
        engine.stop()


def percentile(values: list[float], share: float) -> float:
    """A percentile by nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


@click.group()
def main() -> None:
    """Measure parts of the native engine."""


@main.command()
@click.option("--prefix-tokens", default=1000, show_default=True, type=click.IntRange(64, 8000))
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(3, 200))
def prefix(prefix_tokens: int, rounds: int) -> None:
    """Time to the first token of a request whose prefix is cached, against one whose is not."""
    cold, warm = [], []
    same = True
    with client(speculation="off") as asked:
        for _ in range(rounds):
            shared, ends = asked.prompt(prefix_tokens), [asked.prompt(16) for _ in range(2)]
            results = []
            for end in (ends[0], ends[1], ends[1]):
                began = time.perf_counter()
                answer = asked.ask(shared + end, 8)[1].wait()
                results.append((answer.times[0] - began, answer))
            cold.append(results[0][0])
            warm.append(results[1][0])
            if results[1][1].cached_tokens < prefix_tokens - 64:
                raise click.ClickException("the prefix was not cached")
            same = same and results[1][1].token_ids == results[2][1].token_ids
    with client(speculation="off", prefix_cache=False) as uncached:
        text = shared + ends[1]
        same = same and uncached.ask(text, 8)[1].wait().token_ids == results[1][1].token_ids
    ratio = statistics.median(warm) / statistics.median(cold)
    click.echo(f"first token, {prefix_tokens} of {prefix_tokens + 16} tokens shared, median of {rounds}:")
    click.echo(f"cold {1000 * statistics.median(cold):.1f} ms, warm {1000 * statistics.median(warm):.1f} ms")
    click.echo(f"ratio {ratio:.3f}; answers equal: {same}")
    report()


@main.command()
@click.option("--mean-length", default=256, show_default=True, type=click.IntRange(32, 4000))
@click.option("--context-tokens", default=1024, show_default=True, type=click.IntRange(128, 8000))
@click.option("--slots", default=8, show_default=True, type=click.IntRange(1, 64))
def memory(mean_length: int, context_tokens: int, slots: int) -> None:
    """Waste in KV blocks, and requests at once in the memory of so many fixed slots of a full context."""
    lengths = random.Random(1)
    asked_for = [
        max(8, min(context_tokens - 8, int(lengths.expovariate(1 / mean_length)))) for _ in range(slots * 24)
    ]
    with client(
        speculation="off",
        prefix_cache=False,
        context_tokens=context_tokens,
        kv_cache_tokens=slots * context_tokens,
        max_sequences=512,
    ) as asked:
        answers = []
        for length in asked_for:
            prompt_length = max(4, length // 2)
            answers.append(asked.ask(asked.prompt(prompt_length), max(1, length - prompt_length))[1])
        running, waste = [], []
        metrics, scheduler = asked.engine.metrics, asked.scheduler
        while metrics.requests_finished.total() < len(answers):
            time.sleep(0.02)
            owners = scheduler.running
            blocks = sum(len(s.blocks) for s in owners)
            tokens = sum(len(s.token_ids) for s in owners)
            if sum(metrics.requests_waiting.values()) and blocks:
                running.append(len(owners))
                waste.append(1 - tokens / (blocks * scheduler.pool.block_size))
        preemptions = metrics.preemptions
    mean = statistics.fmean(asked_for)
    click.echo(f"lengths of {mean:.0f} tokens on average, {slots} × {context_tokens} tokens of KV memory")
    click.echo(
        f"while requests waited ({len(running)} looks): {statistics.fmean(running):.1f} ran on average,"
    )
    click.echo(
        f"{statistics.fmean(running) / slots:.2f} × the {slots} of fixed slots; {preemptions} preemptions"
    )
    click.echo(f"tokens that owned blocks had no use for: {statistics.fmean(waste):.1%} on average")
    report()


class Stopwatch:
    """Sits at the executor's port and adds up the time in which a step was running."""

    def __init__(self, executor: Any) -> None:
        self.seconds = 0.0
        self._executor = executor
        self._began: dict[int, float] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def start(self, plan: Any, on_done: Any) -> None:
        """Begin a step."""

        def done(lane: Any) -> None:
            self.seconds += time.perf_counter() - self._began[lane]
            on_done(lane)

        self._began[plan.lane] = time.perf_counter()
        self._executor.start(plan, done)


@main.command()
@click.option("--tokens", default=128, show_default=True, type=click.IntRange(16, 4000))
def overhead(tokens: int) -> None:
    """How much of the time no step runs while requests decode: scheduling, sampling, bookkeeping, text."""
    click.echo("| concurrent | sampling | not the model | a step of the model |\n|---|---|---|---|")
    kinds = {
        "greedy": SamplingParams(temperature=0.0),
        "temperature 1": SamplingParams(),
        "top_p 0.9": SamplingParams(top_p=0.9),
        "greedy, 5 logprobs": SamplingParams(temperature=0.0, logprobs=5),
    }
    with client(speculation="off") as asked:
        watch = asked.watch_executor()
        for concurrent in (1, 8, 32):
            for name, sampling in kinds.items():
                prompts = [asked.prompt(32) for _ in range(concurrent)]
                answers = []
                for prompt in prompts:
                    answer = Answer()
                    parameters = replace(sampling, max_tokens=tokens, ignore_eos=True, seed=1)
                    request = GenerateRequest(
                        prompt=TokenPrompt(tuple(prompt)), sampling=parameters, stream=True
                    )
                    asked.engine.submit(request, prompt, answer)
                    answers.append(answer)
                while any(len(a.times) < 4 for a in answers):
                    time.sleep(0.001)
                began, model, steps = time.perf_counter(), watch.seconds, len(answers[0].times)
                while all(len(a.token_ids) < tokens - 4 for a in answers):
                    time.sleep(0.001)
                wall = time.perf_counter() - began
                model, steps = watch.seconds - model, len(answers[0].times) - steps
                for answer in answers:
                    answer.wait()
                step_ms = 1000 * model / max(1, steps)
                click.echo(f"| {concurrent} | {name} | {1 - model / wall:.1%} | {step_ms:.1f} ms |")
    report()


@main.command()
@click.option("--prompt-tokens", default=2000, show_default=True, type=click.IntRange(64, 8000))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 50))
def interference(prompt_tokens: int, rounds: int) -> None:
    """Gaps between tokens of others while a long prompt is computed, against the second before it came."""
    click.echo("| streams | steady p50, p95 | during p50, p95 | ratio of p95 | the prompt took |")
    click.echo("|---|---|---|---|---|")
    with client(speculation="off") as asked:
        for streams in (1, 4, 8, 16):
            steady: list[float] = []
            during: list[float] = []
            took: list[float] = []
            for _ in range(rounds):
                answers = [asked.ask(asked.prompt(64), 500)[1] for _ in range(streams)]
                tickets = []
                while any(len(a.times) < 20 for a in answers):
                    time.sleep(0.01)
                time.sleep(1.0)
                came = time.perf_counter()
                ticket, long = asked.ask(asked.prompt(prompt_tokens), 1)
                tickets.append(ticket)
                long.wait()
                over = time.perf_counter()
                took.append(over - came)
                for answer in answers:
                    answer.wait()
                    for before, after in zip(answer.times, answer.times[1:], strict=False):
                        if came - 1.0 <= before and after <= came:
                            steady.append(after - before)
                        elif came <= after <= over:
                            during.append(after - before)
            cells = [
                f"{1000 * statistics.median(gaps):.1f}, {1000 * percentile(gaps, 0.95):.1f} ms"
                for gaps in (steady, during)
            ]
            ratio = percentile(during, 0.95) / percentile(steady, 0.95)
            click.echo(
                f"| {streams} | {cells[0]} | {cells[1]} | {ratio:.2f} | {statistics.median(took):.2f} s |"
            )
    report()


@main.command()
@click.option("--rounds", default=40, show_default=True, type=click.IntRange(5, 1000))
def cancel(rounds: int) -> None:
    """How long a cancelled request keeps its blocks, while others run."""
    waits: list[float] = []
    steps: list[float] = []
    with client(speculation="off") as asked:
        others = [asked.ask(asked.prompt(64), 4000)[0] for _ in range(4)]
        metrics, scheduler = asked.engine.metrics, asked.scheduler
        for round_number in range(rounds):
            ticket, answer = asked.ask(asked.prompt(200), 1000)
            while len(answer.times) < 1 + round_number % 5:
                time.sleep(0.001)
            began, before = time.perf_counter(), metrics.step_seconds.count
            asked.engine.cancel(ticket)
            while any(s.ordinal == ticket for s in scheduler.running):
                time.sleep(0.0002)
            waits.append(time.perf_counter() - began)
            steps.append(metrics.step_seconds.count - before)
        for ticket in others:
            asked.engine.cancel(ticket)
    middle, tail = (1000 * percentile(waits, share) for share in (0.5, 0.95))
    click.echo(f"from cancel to free blocks, {rounds} times beside 4 streams: p50 {middle:.1f} ms,")
    click.echo(f"p95 {tail:.1f} ms; steps that ended meanwhile: p95 {percentile(steps, 0.95):.0f}")
    report()


def report() -> None:
    """Where the numbers come from."""
    click.echo("\n" + "\n".join(f"{key}: {value}" for key, value in environment("engine.py").items()))


if __name__ == "__main__":
    main()
