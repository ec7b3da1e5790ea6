"""Writes beside converted weights the Hugging Face files that the engine reads, out of a GGUF's keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from uzu.gguf import GgufHeader
from uzu.gguf_tokenizer import build_tokenizer, end_token_ids, tokenizer_config

_SHAPE = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
}


def write_model_files(header: GgufHeader, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja, config.json, generation_config.json.

    The chat template is left out when the file has none.

    Raises:
        UsageError: the file lacks a key, or has a tokenizer that Uzu does not know.

    """
    build_tokenizer(header).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(header))
    template = header.keys.get("tokenizer.chat_template")
    if isinstance(template, str):
        (folder / "chat_template.jinja").write_text(template, "utf-8")
    config = _model_config(header)
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {key: config[key] for key in ("bos_token_id", "pad_token_id") if key in config}
        | {"eos_token_id": end_token_ids(header)},
    )


def _model_config(header: GgufHeader) -> dict[str, Any]:
    architecture = header.text("general.architecture")
    config: dict[str, Any] = {
        "model_type": architecture,
        "max_position_embeddings": header.integer(f"{architecture}.context_length"),
        "vocab_size": len(header.strings("tokenizer.ggml.tokens")),
    }
    named = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    values = {key: header.keys.get(f"tokenizer.ggml.{name}_token_id") for key, name in named.items()}
    values |= {key: header.keys.get(f"{architecture}.{name}") for key, name in _SHAPE.items()}
    return config | {key: value for key, value in values.items() if value is not None}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
