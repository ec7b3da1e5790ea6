"""The native engine beside other engines on the same model, prompts and cores, in one run.

Each peer runs in a process of its own and rests while another is measured; every round measures each peer
once at each concurrency. Peers that are not installed are named as skipped. Engine level: no server, no HTTP.
All prompts of a run are given at once: random tokens, greedy, past the end of text.

Three rates come of two runs with fresh prompts, one of a single token and one of all: prompt tokens per
second of the first (prefill), the tokens after the first by the difference of the two durations (decode), and
all output tokens by the duration of the second (whole).
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bench import MODEL, TOKEN_RANGE, environment, prepared_model, table

PHASES = ("prefill", "decode", "whole")
Results = dict[str, dict[int, dict[str, list[float]]]]
"""Tokens per second by phase, concurrency and peer; one number a round."""

Run = Callable[[list[list[int]], int], int]
"""Continue these prompts by so many tokens each; how many tokens came."""


def uzu(folder: Path, gguf: Path) -> Run:  # noqa: ARG001 -- peers are made alike
    """The native engine with its defaults, speculation among them."""
    return _uzu(folder, "ngram")


def uzu_plain(folder: Path, gguf: Path) -> Run:  # noqa: ARG001 -- peers are made alike
    """The native engine without speculation, like its peers."""
    return _uzu(folder, "off")


def _uzu(folder: Path, speculation: str) -> Run:
    import asyncio

    from targets import EngineTarget

    target = EngineTarget(folder, speculation=speculation)

    def run(prompts: list[list[int]], max_tokens: int) -> int:
        async def all_at_once() -> int:
            return sum(await asyncio.gather(*(target.complete(prompt, max_tokens) for prompt in prompts)))

        return asyncio.run(all_at_once())

    return run


def openvino_genai(folder: Path, gguf: Path) -> Run:  # noqa: ARG001 -- peers are made alike
    """OpenVINO GenAI's continuous batching, on the same weights."""
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    work = Path(tempfile.mkdtemp(prefix="uzu-peer-"))
    shutil.copy(gguf, work)
    genai.LLMPipeline(str(work / gguf.name), "CPU", enable_save_ov_model=True)
    (work / gguf.name).unlink()
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_seqs = 64
    pipeline = genai.ContinuousBatchingPipeline(str(work), scheduler, "CPU")
    shutil.rmtree(work)

    def run(prompts: list[list[int]], max_tokens: int) -> int:
        config = genai.GenerationConfig(max_new_tokens=max_tokens, ignore_eos=True, do_sample=False)
        tensors = [ov.Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = pipeline.generate(tensors, [config] * len(prompts))
        return sum(len(result.m_generation_ids[0]) for result in results)

    return run


def llama_cpp(folder: Path, gguf: Path) -> Run:  # noqa: ARG001 -- peers are made alike
    """llama.cpp through llama-cpp-python, one prompt after the other: that binding does not batch."""
    import llama_cpp as llama

    model = llama.Llama(str(gguf), n_ctx=8192, n_threads=2, logits_all=False, verbose=False)

    def run(prompts: list[list[int]], max_tokens: int) -> int:
        count = 0
        for prompt in prompts:
            model.reset()
            for index, _ in enumerate(model.generate(prompt, temp=0.0), 1):
                if index == max_tokens:
                    break
            count += index
        return count

    return run


PEERS = {
    "uzu": ("openvino", uzu_plain),
    "uzu, speculating": ("openvino", uzu),
    "openvino-genai": ("openvino_genai", openvino_genai),
    "llama.cpp": ("llama_cpp", llama_cpp),
}


class PeerProcess:
    """A peer in a child process that answers one JSON line for each JSON line."""

    def __init__(self, name: str, folder: Path, gguf: Path) -> None:
        command = [sys.executable, __file__, "--child", name, "--folder", str(folder), "--gguf", str(gguf)]
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def seconds(self, prompts: list[list[int]], max_tokens: int) -> float:
        """How long it takes to continue all these prompts by so many tokens each."""
        answer = self._ask({"prompts": prompts, "max_tokens": max_tokens})
        if answer["tokens"] != len(prompts) * max_tokens:
            raise click.ClickException(f"{self.name}: {answer['tokens']} tokens came")
        return float(answer["seconds"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        child = self._process
        if child.stdin is None or child.stdout is None or child.stderr is None:
            raise RuntimeError("the child has no pipes")
        child.stdin.write(json.dumps(question) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line:
            raise click.ClickException(f"{self.name} ended: {child.stderr.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the child."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait()


def child(name: str, folder: Path, gguf: Path) -> None:
    """Answer questions on standard input until it is closed."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    run = PEERS[name][1](folder, gguf)
    for line in sys.stdin:
        question = json.loads(line)
        began = time.perf_counter()
        tokens = run(question["prompts"], question["max_tokens"])
        seconds = time.perf_counter() - began
        answers.write(json.dumps({"tokens": tokens, "seconds": seconds}) + "\n")
        answers.flush()


def is_installed(module: str) -> bool:
    """Whether a peer's module can be imported here."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@click.command()
@click.option("--concurrency", default="1,8,16,32", show_default=True, help="Levels, separated by commas.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option("--input-tokens", default=128, show_default=True, type=click.IntRange(2, 8000))
@click.option("--output-tokens", default=64, show_default=True, type=click.IntRange(2, 8000))
@click.option("--child", "child_name", hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
@click.option("--gguf", type=click.Path(path_type=Path), hidden=True)
def main(
    concurrency: str,
    rounds: int,
    input_tokens: int,
    output_tokens: int,
    child_name: str | None,
    folder: Path | None,
    gguf: Path | None,
) -> None:
    """Measure the native engine beside those peers that are installed."""
    if child_name is not None and folder is not None and gguf is not None:
        child(child_name, folder, gguf)
        return
    levels = [int(level) for level in concurrency.split(",")]
    where = environment("peers.py")
    folder, gguf = prepared_model()
    present = [name for name, (module, _) in PEERS.items() if is_installed(module)]
    peers = [PeerProcess(name, folder, gguf) for name in present]
    rng = random.Random(0)
    results: Results = {
        phase: {level: {name: [] for name in present} for level in levels} for phase in PHASES
    }

    def prompts(count: int) -> list[list[int]]:
        return [[rng.randrange(*TOKEN_RANGE) for _ in range(input_tokens)] for _ in range(count)]

    try:
        for round_number in range(rounds + 1):
            for level in levels:
                # Who goes first changes, so that a machine that slows down does so for all.
                for peer in (*peers[round_number % len(peers) :], *peers[: round_number % len(peers)]):
                    first_s = peer.seconds(prompts(level), 1)
                    all_s = peer.seconds(prompts(level), output_tokens)
                    if round_number:
                        rates = (
                            level * input_tokens / first_s,
                            level * (output_tokens - 1) / max(all_s - first_s, 1e-9),
                            level * output_tokens / all_s,
                        )
                        for phase, rate in zip(PHASES, rates, strict=True):
                            results[phase][level][peer.name].append(rate)
    finally:
        for peer in peers:
            peer.close()
    click.echo(f"Tokens per second, {MODEL}, {input_tokens} tokens in, {output_tokens} out, greedy.")
    click.echo(f"Median of {rounds} rounds (range), ratio to {present[0]}.")
    for phase, by_level in results.items():
        click.echo(f"\n{phase}\n\n{table(by_level)}\n\nuzu to the best peer: {best_ratios(by_level)}")
    skipped = sorted(set(PEERS) - set(present))
    click.echo(f"\nnot installed: {', '.join(skipped) or 'none'}")
    click.echo("\n".join(f"{key}: {value}" for key, value in where.items()))


def best_ratios(by_level: dict[int, dict[str, list[float]]]) -> str:
    """Uzu without speculation against the fastest other engine, for each concurrency."""
    ratios = []
    for level, rates in by_level.items():
        others = [statistics.median(v) for name, v in rates.items() if not name.startswith("uzu")]
        if others:
            ratios.append(f"{level}: {statistics.median(rates['uzu']) / max(others):.2f} ×")
    return ", ".join(ratios) or "none is installed"


if __name__ == "__main__":
    main()
