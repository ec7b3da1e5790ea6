"""Makes tiny random checkpoints of each architecture, and what transformers says of them in float32.

A program of its own: it runs in the environment `convert`. Usage: make_checkpoints.py FOLDER TOKENIZER_JSON
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers as t

COMMON = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SLIDING = {"sliding_window": 64}
ARCHITECTURES = {
    "llama": t.LlamaConfig(**COMMON),
    "llama-tied": t.LlamaConfig(**COMMON, tie_word_embeddings=True),
    "qwen2": t.Qwen2Config(**COMMON),
    "qwen3": t.Qwen3Config(**COMMON, head_dim=16),
    "mistral": t.MistralConfig(**COMMON, **SLIDING),
    "phi3": t.Phi3Config(**COMMON, **SLIDING),
    "gemma": t.GemmaConfig(**COMMON, head_dim=16),
    "gemma2": t.Gemma2Config(**COMMON, head_dim=16, **SLIDING),
    "gemma3": t.Gemma3TextConfig(**COMMON, head_dim=16, **SLIDING),
}
PROMPT_TOKENS = 150
NEW_TOKENS = 20


def make(name: str, folder: Path, tokenizer: Path) -> None:
    torch.manual_seed(0)
    model = t.AutoModelForCausalLM.from_config(ARCHITECTURES[name]).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            # As they are made, random weights say next to nothing: all tokens would be about as likely.
            parameter.data.mul_(3)
    model.save_pretrained(folder)
    shutil.copy(tokenizer, folder / "tokenizer.json")
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(3, COMMON["vocab_size"], (1, PROMPT_TOKENS), generator=generator)
    with torch.no_grad():
        logits = model(prompt).logits[0].numpy()
        greedy = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None)
    np.savez(
        folder / "reference.npz",
        prompt=prompt[0].numpy(),
        logits=logits,
        greedy=greedy[0, PROMPT_TOKENS:].numpy(),
    )


if __name__ == "__main__":
    for architecture in ARCHITECTURES:
        path = Path(sys.argv[1]) / architecture
        path.mkdir(parents=True)
        make(architecture, path, Path(sys.argv[2]))
