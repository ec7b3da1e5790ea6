"""What choosing a token costs: milliseconds for each row of a batch, beside the plain way in numpy.

The plain way is a softmax over the whole row, a stable sort of all of it, a running sum, and numpy's
`choice`. The logits are like a language model's: a token's probability falls with its rank, by a power of it;
`--exponent 0` makes them noise, which is the hardest case for `top_p`. No model is loaded.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable

import click
import numpy as np
from numpy.typing import NDArray

import native_engine_path  # noqa: F401
from uzu_contract.sampling import SamplingParams
from uzu_native.sampler import Draw, sample
from uzu_native.scores import score

Rows = NDArray[np.float32]

CASES = {
    "greedy": SamplingParams(temperature=0),
    "temperature=1": SamplingParams(),
    "top_p=0.9": SamplingParams(top_p=0.9),
    "top_k=50": SamplingParams(top_k=50),
    "min_p=0.05": SamplingParams(min_p=0.05),
    "typical_p=0.9": SamplingParams(typical_p=0.9),
    "greedy, logprobs=5": SamplingParams(temperature=0, logprobs=5),
}


def make_logits(rows: int, vocabulary: int, exponent: float) -> Rows:
    """Logits whose softmax falls with the rank, in an order of their own in each row."""
    generator = np.random.default_rng(0)
    falling = -exponent * np.log(np.arange(1, vocabulary + 1))
    logits = np.array([generator.permutation(falling) for _ in range(rows)])
    noise = generator.normal(0, 0.5, logits.shape)
    return np.asarray(logits + noise + 15, np.float32)


def run_engine(logits: Rows, sampling: SamplingParams, position: int) -> None:
    """The engine's way."""
    chosen = sample(logits, [Draw(sampling, seed, position) for seed in range(len(logits))])
    if sampling.logprobs is not None:
        for row, tokens in zip(logits, chosen, strict=True):
            if isinstance(tokens, Exception):
                raise tokens
            score(row[None], tokens, sampling.logprobs)


def run_plain(logits: Rows, sampling: SamplingParams, position: int) -> None:
    """The plain way."""
    for seed, row in enumerate(logits):
        if sampling.temperature == 0:
            row.argmax()
        else:
            _draw_plainly(row, sampling, np.random.default_rng((seed, position)))
        if sampling.logprobs is not None:
            logprobs = row - row.max()
            logprobs = logprobs - np.log(np.exp(logprobs).sum())
            order = np.argsort(-logprobs, kind="stable")
            list(zip(order[: sampling.logprobs], logprobs[order[: sampling.logprobs]], strict=True))


def _draw_plainly(row: Rows, sampling: SamplingParams, generator: np.random.Generator) -> int:
    scaled = (row - row.max()) / sampling.temperature
    shares = np.exp(scaled)
    shares /= shares.sum()
    order = np.argsort(-shares, kind="stable")
    if sampling.typical_p < 1:
        information = -np.log(np.maximum(shares, 1e-38))
        entropy = (shares * information).sum()
        order = np.argsort(np.abs(information - entropy), kind="stable")
    if sampling.top_k:
        order = order[: sampling.top_k]
    share = min(sampling.top_p, sampling.typical_p)
    if share < 1:
        order = order[: int((np.cumsum(shares[order]) >= share).argmax()) + 1]
    if sampling.min_p:
        order = order[shares[order] >= sampling.min_p * shares.max()]
    kept = shares[order].astype(np.float64)
    return int(generator.choice(order, p=kept / kept.sum()))


def row_ms(run: Callable[[Rows, SamplingParams, int], None], logits: Rows, sampling: SamplingParams) -> float:
    """Median milliseconds for a row, over batches for half a second."""
    times: list[float] = []
    until = time.perf_counter() + 0.5
    while len(times) < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        run(logits, sampling, len(times))
        times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times) / len(logits)


@click.command()
@click.option("--batch", default=32, show_default=True, type=click.IntRange(1, 1024))
@click.option("--vocabulary", default=49_152, show_default=True, type=click.IntRange(2, 1 << 20))
@click.option("--exponent", default=1.5, show_default=True, type=click.FloatRange(0, 5))
def main(batch: int, vocabulary: int, exponent: float) -> None:
    """Measure what choosing a token costs."""
    logits = make_logits(batch, vocabulary, exponent)
    click.echo(f"{batch} rows of {vocabulary} words, exponent {exponent:g}; numpy {np.__version__}.\n")
    click.echo("| | ms a row | plain numpy | times as fast |")
    click.echo("|---|---|---|---|")
    for name, sampling in CASES.items():
        ours, plain = row_ms(run_engine, logits, sampling), row_ms(run_plain, logits, sampling)
        click.echo(f"| {name} | {ours:.4f} | {plain:.3f} | {plain / ours:.1f} |")
    click.echo(f"\npython: {platform.python_version()}, {platform.machine()}")


if __name__ == "__main__":
    main()
