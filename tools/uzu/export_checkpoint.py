"""Exports a Hugging Face checkpoint to OpenVINO. A program of its own: it runs in the environment `convert`.

Usage: export_checkpoint.py CHECKPOINT FOLDER int4|int8|bf16|f32 GROUP_SIZE
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig


def export(checkpoint: str, folder: str, weights: str, group_size: int) -> None:
    """Write openvino_model.xml and .bin, config.json and generation_config.json."""
    quantization: Any = None
    if weights == "int4":
        quantization = OVWeightQuantizationConfig(bits=4, sym=True, group_size=group_size)
    elif weights == "int8":
        quantization = OVWeightQuantizationConfig(bits=8)
    model = OVModelForCausalLM.from_pretrained(
        checkpoint,
        export=True,
        compile=False,
        load_in_8bit=False,
        torch_dtype=torch.bfloat16 if weights == "bf16" else torch.float32,
        quantization_config=quantization,
        local_files_only=True,
        trust_remote_code=False,
    )
    model.save_pretrained(folder)


if __name__ == "__main__":
    export(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
