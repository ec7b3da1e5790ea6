"""Checkpoints of other architectures: converted by `uzu convert`, compared with transformers in float32."""

from __future__ import annotations

import queue
import subprocess
from pathlib import Path

import numpy as np
import pytest
from native_engine import real_engine

from uzu.checkpoint import convert_checkpoint
from uzu.console import Console
from uzu.environments import set_up
from uzu_contract.sampling import SamplingParams
from uzu_native.openvino_executor import OpenVinoExecutor
from uzu_native.openvino_graph import Precision
from uzu_native.step import Lane, Row, StepPlan

ARCHITECTURES = ("llama", "llama-tied", "qwen2", "qwen3", "mistral", "phi3", "gemma", "gemma2", "gemma3")
EXACT = {"inference_precision": "f32", "kv_cache_precision": "f32", "kv_cache_tokens": 4096}
CONSOLE = Console(color=False)

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="session")
def checkpoints(settings, prepared_smollm2, tmp_path_factory):
    """A folder of checkpoints; the environment is made on first use."""
    python = set_up("convert", settings, CONSOLE)
    folder = tmp_path_factory.mktemp("checkpoints")
    program = Path(__file__).with_name("make_checkpoints.py")
    command = [str(python), "-I", str(program), str(folder), str(prepared_smollm2 / "tokenizer.json")]
    subprocess.run(
        command, check=True, capture_output=True, env={**settings.environment, "HF_HUB_OFFLINE": "1"}
    )
    return folder


@pytest.fixture(scope="session")
def converted(checkpoints, settings, tmp_path_factory):
    """Converts each checkpoint once for each precision."""
    made: dict[tuple[str, str], Path] = {}

    def get(name: str, weights: str) -> Path:
        if (name, weights) not in made:
            folder = tmp_path_factory.mktemp("converted") / f"{name}-{weights}"
            convert_checkpoint(checkpoints / name, folder, weights, 32, settings, CONSOLE)
            made[name, weights] = folder
        return made[name, weights]

    return get


def prompt_logits(folder: Path, prompt: list[int], chunk: int) -> np.ndarray:
    """Logits after each chunk of a prompt, in float32."""
    executor = OpenVinoExecutor(
        folder / "openvino_model.xml",
        threads=2,
        split=False,
        precision=Precision(True, "f32", "f32"),
        context_tokens=512,
        kv_cache_tokens=512,
    )
    done: queue.SimpleQueue[Lane] = queue.SimpleQueue()
    blocks = list(range(-(-len(prompt) // executor.block_size)))
    rows = []
    for start in range(0, len(prompt), chunk):
        row = Row(prompt[start : start + chunk], start, blocks, wants_logits=True)
        executor.start(StepPlan(Lane.ALL, (row,)), done.put)
        rows.append(executor.finish(done.get())[0].copy())
    executor.release()
    return np.array(rows)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_architecture_computes_what_transformers_computes(checkpoints, converted, name):
    reference = np.load(checkpoints / name / "reference.npz")
    prompt = [int(token) for token in reference["prompt"]]
    folder = converted(name, "f32")
    for chunk in (30, 75, 150):
        logits = prompt_logits(folder, prompt, chunk)
        assert np.abs(logits - reference["logits"][chunk - 1 :: chunk]).max() < 1e-4
    greedy = SamplingParams(max_tokens=len(reference["greedy"]), temperature=0, ignore_eos=True)
    with real_engine(folder, **EXACT) as engine:
        other = [(prompt[n:], greedy) for n in range(1, 8)]
        answers = engine.run((prompt, greedy), *other)
        assert answers[0].token_ids == reference["greedy"].tolist()
        assert [a.token_ids for a in answers[1:]] == [engine.run(job)[0].token_ids for job in other]


@pytest.mark.parametrize(
    ("weights", "largest_error", "smallest_size"), [("bf16", 0.1, 1.5), ("int8", 0.3, 2), ("int4", 2.0, 3)]
)
def test_smaller_weights_are_smaller_and_near(checkpoints, converted, weights, largest_error, smallest_size):
    reference = np.load(checkpoints / "llama" / "reference.npz")
    prompt = [int(token) for token in reference["prompt"]]
    folder, whole = converted("llama", weights), converted("llama", "f32")
    size, whole_size = ((f / "openvino_model.bin").stat().st_size for f in (folder, whole))
    assert whole_size / size > smallest_size
    error = np.abs(prompt_logits(folder, prompt, 150) - reference["logits"][-1:])
    assert 0 < error.max() < largest_error
    with real_engine(folder, kv_cache_tokens=4096) as engine:
        (answer,) = engine.run((prompt, SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)))
        assert len(answer.token_ids) == 8
