"""Asks a running tritonserver: for answers, for metrics, for its processes."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from uzu.guardian import descendants
from uzu.triton import STUB
from uzu_contract.request import GenerateRequest, TextPrompt
from uzu_contract.response import GenerateChunk
from uzu_contract.sampling import SamplingParams
from uzu_gateway.engine.triton import TritonEngine

OUTPUTS = frozenset({"text_output", "token_ids", "finish_reason", "num_cached_tokens", "perf_metrics"})


async def answer(
    engine: TritonEngine,
    prompt: str,
    *,
    model: str = "smollm2",
    max_tokens: int = 24,
    deadline_ms: int | None = None,
) -> list[GenerateChunk]:
    """The chunks of a greedy answer."""
    request = GenerateRequest(
        prompt=TextPrompt(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        stream=True,
        outputs=OUTPUTS,
        deadline_ms=deadline_ms,
    )
    return [chunk async for chunk in engine.generate(model, request, "test")]


def tokens(chunks: list[GenerateChunk]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def metrics_text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def series(url: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """Labels and value of each of a name's series."""
    for family in text_string_to_metric_families(metrics_text(url)):
        for sample in family.samples:
            # The parser puts `_total` behind the name of every counter.
            if name in (sample.name, sample.name.removesuffix("_total")):
                yield sample.labels, sample.value


def sum_by(label: str, url: str, name: str) -> dict[str, float]:
    """Sums of a name's series by the value of a label."""
    sums: dict[str, float] = {}
    for labels, value in series(url, name):
        sums[labels[label]] = sums.get(labels[label], 0) + value
    return sums


def stubs(guardian: int) -> list[int]:
    """The processes of Python backends below a tritonserver's guardian."""
    found = []
    for process in descendants(guardian):
        with suppress(OSError):
            program = Path(f"/proc/{process}/cmdline").read_bytes().partition(b"\0")[0]
            if program.rpartition(b"/")[2] == STUB.encode():
                found.append(process)
    return found


def resident_bytes(process: int) -> int:
    """Memory of a process that is not a file's; 0 when there is no such process."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
