"""The native engine beside other engines on the same model, prompts and cores, in one run.

Each peer runs in a process of its own and rests while another is measured; every round measures each peer
once at each concurrency. Peers that are not installed are named as skipped. Engine level: no server, no HTTP.
All prompts of a run are given at once: random tokens, greedy, past the end of text.

Three rates come of two runs with fresh prompts, one of a single token and one of all: prompt tokens per
second of the first (prefill), the tokens after the first by the difference of the two durations (decode), and
all output tokens by the duration of the second (whole).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench import MODEL, TOKEN_RANGE, environment, prepared_model, table
from peer_engines import Run, serve
from uzu.console import Console
from uzu.environments import environment_python
from uzu.errors import UsageError
from uzu.settings import Settings
from uzu.store import Store, entry_key

PHASES = ("prefill", "decode", "whole")
Results = dict[str, dict[int, dict[str, list[float]]]]
"""Tokens per second by phase, concurrency and peer; one number a round."""


def uzu(folder: Path) -> Run:
    """The native engine with its defaults, speculation among them."""
    return _uzu(folder, "ngram")


def uzu_plain(folder: Path) -> Run:
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


ENGINES = Path(__file__).with_name("peer_engines.py")
OURS = {"uzu": uzu_plain, "uzu, speculating": uzu}
OTHERS = {
    "openvino-genai": ("openvino_genai", None),
    "llama.cpp": ("xllamacpp", "peers"),
    "transformers": ("transformers", "peers"),
    "vllm": ("vllm", "peers"),
}
"""The module of each, and the environment of `uzu setup` that it may live in."""


@dataclass(frozen=True, slots=True)
class Model:
    """The same weights in the forms that engines take.

    Args:
        folder: prepared for the native engine, 4 bits.
        gguf: what that was made of.
        checkpoint: in bfloat16; None when nothing here can write it.
    """

    folder: Path
    gguf: Path
    checkpoint: Path | None


class PeerProcess:
    """A peer in a child process that answers one JSON line for each JSON line."""

    def __init__(self, name: str, python: Path, model: Model) -> None:
        if name in OURS:
            command = [str(python), __file__, "--child", name, "--folder", str(model.folder)]
        else:
            command = [str(python), str(ENGINES), name, str(model.checkpoint), str(model.gguf)]
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 -- it lives as long as the child
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )

    def seconds(self, prompts: list[list[int]], max_tokens: int) -> float:
        """How long it takes to continue all these prompts by so many tokens each."""
        answer = self._ask({"prompts": prompts, "max_tokens": max_tokens})
        if answer["tokens"] != len(prompts) * max_tokens:
            raise click.ClickException(f"{self.name}: {answer['tokens']} tokens came")
        return float(answer["seconds"])

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        child = self._process
        if child.stdin is None or child.stdout is None:
            raise RuntimeError("the child has no pipes")
        child.stdin.write(json.dumps(question) + "\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line:
            self._log.seek(0)
            raise click.ClickException(f"{self.name} ended: {self._log.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the child."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait()


def interpreter(module: str, environment: str | None) -> Path | None:
    """A Python that has the engine: an environment of `uzu setup`, or this one; None when neither has it."""
    candidates = [Path(sys.executable)]
    if environment is not None:
        with contextlib.suppress(UsageError):
            candidates.insert(0, environment_python(environment, Settings.from_environment()))
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    for python in candidates:
        if subprocess.run([str(python), "-c", code], check=False).returncode == 0:
            return python
    return None


def checkpoint_of(gguf: Path) -> Path | None:
    """The model in bfloat16, written once beside other prepared models; None without transformers."""
    settings = Settings.from_environment()
    python = interpreter("transformers", "peers")
    if python is None:
        return None

    def build(folder: Path) -> dict[str, str]:
        program = Path(__file__).with_name("gguf_checkpoint.py")
        command = [str(python), "-I", str(program), str(gguf), str(folder)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        return {"source": gguf.name}

    store = Store(settings.home, Console(color=False))
    return store.entry("models", entry_key("checkpoint", gguf.stem), build, needs_bytes=4 * 2**29).path


@click.command()
@click.option("--concurrency", default="1,8,16,32", show_default=True, help="Levels, separated by commas.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1, 100))
@click.option("--input-tokens", default=128, show_default=True, type=click.IntRange(2, 8000))
@click.option("--output-tokens", default=64, show_default=True, type=click.IntRange(2, 8000))
@click.option("--child", "child_name", hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(
    concurrency: str,
    rounds: int,
    input_tokens: int,
    output_tokens: int,
    child_name: str | None,
    folder: Path | None,
) -> None:
    """Measure the native engine beside those peers that are installed."""
    if child_name is not None and folder is not None:
        serve(OURS[child_name](folder))
        return
    levels = [int(level) for level in concurrency.split(",")]
    where = environment("peers.py")
    folder, gguf = prepared_model()
    model = Model(folder, gguf, checkpoint_of(gguf))
    pythons = {name: Path(sys.executable) for name in OURS}
    for name, (module, environment_name) in OTHERS.items():
        python = interpreter(module, environment_name)
        if python is not None:
            pythons[name] = python
    present = list(pythons)
    peers = [PeerProcess(name, python, model) for name, python in pythons.items()]
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
    skipped = sorted(set(OTHERS) - set(present))
    click.echo(f"\nnot installed: {', '.join(skipped) or 'none'} (uzu setup peers brings them)")
    click.echo("transformers and vllm compute in bfloat16, the others on 4-bit weights")
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
