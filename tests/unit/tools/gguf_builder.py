"""Writes small GGUF files. `tiny_keys()` are the keys of a tiny byte-level model."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import pre_tokenizers

_BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def tiny_keys(
    pre: str = "smollm", merges: Sequence[str] = ("Ċ Ċ", "Ġ Ġ", "1 2", "12 3", "a b")
) -> dict[str, Any]:
    tokens = [*SPECIAL, *_BYTES, *(merge.replace(" ", "") for merge in merges)]
    return {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "llama.block_count": 2,
        "llama.embedding_length": 64,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }


def build_gguf(
    keys: Mapping[str, Any], tensors: Mapping[str, Sequence[int]] | None = None, version: int = 3
) -> bytes:
    """A whole file; `tensors` are names and shapes of float32 zeros."""
    shapes = dict(tensors or {})
    header = b"GGUF" + struct.pack("<IQQ", version, len(shapes), len(keys))
    for key, value in keys.items():
        header += _text(key) + _value(value)
    offset = 0
    for name, shape in shapes.items():
        header += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", 0, offset)
        offset += 4 * _product(shape)
    if not shapes:
        return header
    return header + b"\0" * (-len(header) % 32) + b"\0" * offset


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<IQ", 10, value)
        case float():
            return struct.pack("<Id", 12, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
        case list():
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    raise TypeError(type(value))


def _product(shape: Sequence[int]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
