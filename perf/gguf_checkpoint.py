"""Writes a GGUF file's weights as a Hugging Face checkpoint in bfloat16, without a tokenizer.

A program of its own: it runs in the environment `peers`. Usage: gguf_checkpoint.py GGUF FOLDER
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

if __name__ == "__main__":
    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    read = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype=torch.bfloat16)
    # What was read still calls itself quantized, and refuses to be saved.
    config = copy.deepcopy(read.config)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(str(folder))
