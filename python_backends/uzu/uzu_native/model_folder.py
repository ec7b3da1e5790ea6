"""Reads what the text layer and the engine need to know from a prepared model folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODEL_FILE = "openvino_model.xml"
WEIGHTS_FILE = "openvino_model.bin"
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "config.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
GENERATION_CONFIG_FILE = "generation_config.json"
TEMPLATE_FILE = "chat_template.jinja"


class ModelFolderError(Exception):
    """A model folder that cannot be served. The message is one line: what, where, how to mend it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model in the layout of Hugging Face and optimum-intel.

    Args:
        path: the folder.
        ir_path: the OpenVINO graph; its weights lie beside it.
        tokenizer_path: the `tokenizers` library's own format.
        context_length: tokens of prompt and output together; None when the model does not say.
        vocab_size: rows of the embedding, which may be more than the tokenizer knows.
        end_token_ids: tokens that end a text.
        bos_token: text of the beginning-of-sequence token.
        eos_token: text of the end-of-sequence token.
        adds_bos: whether texts begin with `bos_token`; None leaves it to the tokenizer's post-processor.
        chat_template: Jinja source for conversations; None when the model is not for chat.
        tool_chat_template: Jinja source that is used instead when the request brings tools.

    """

    path: Path
    ir_path: Path
    tokenizer_path: Path
    context_length: int | None
    vocab_size: int
    end_token_ids: frozenset[int]
    bos_token: str | None = None
    eos_token: str | None = None
    adds_bos: bool | None = None
    chat_template: str | None = None
    tool_chat_template: str | None = None


def load_model_folder(path: Path) -> ModelFolder:
    """Read a prepared model folder. The tokenizer, the templates and the graph are not parsed yet.

    Raises:
        ModelFolderError: a file is missing or unreadable, or a field has a value that cannot be.

    """
    if not path.is_dir():
        raise ModelFolderError(f"{path} is not a folder: prepare the model there, or mend the path")
    for name in (MODEL_FILE, WEIGHTS_FILE, TOKENIZER_FILE, CONFIG_FILE):
        if not (path / name).is_file():
            raise ModelFolderError(f"{path} has no {name}: prepare the model again, or mend the path")
    config = _read_json(path / CONFIG_FILE)
    generation = _read_optional_json(path / GENERATION_CONFIG_FILE)
    tokenizer = _read_optional_json(path / TOKENIZER_CONFIG_FILE)
    config_file = path / CONFIG_FILE
    vocab_size = _positive_integer(config_file, config, "vocab_size")
    if vocab_size is None:
        raise ModelFolderError(f"{config_file} has no vocab_size: add the number of rows of the embedding")
    adds_bos = tokenizer.get("add_bos_token")
    if adds_bos is not None and not isinstance(adds_bos, bool):
        raise _field_error(path / TOKENIZER_CONFIG_FILE, "add_bos_token", "true or false", adds_bos)
    chat_template, tool_chat_template = _read_templates(path, tokenizer)
    return ModelFolder(
        path=path,
        ir_path=path / MODEL_FILE,
        tokenizer_path=path / TOKENIZER_FILE,
        context_length=_positive_integer(config_file, config, "max_position_embeddings"),
        vocab_size=vocab_size,
        end_token_ids=_end_token_ids(config_file, _lookup(config, "eos_token_id"))
        | _end_token_ids(path / GENERATION_CONFIG_FILE, generation.get("eos_token_id")),
        bos_token=_token_text(path / TOKENIZER_CONFIG_FILE, tokenizer, "bos_token"),
        eos_token=_token_text(path / TOKENIZER_CONFIG_FILE, tokenizer, "eos_token"),
        adds_bos=adds_bos,
        chat_template=chat_template,
        tool_chat_template=tool_chat_template,
    )


def read_text(path: Path) -> str:
    """The UTF-8 text of a file in a model folder.

    Raises:
        ModelFolderError: it cannot be read or is not UTF-8.

    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelFolderError(f"{path} cannot be read ({error.strerror}): mend its permissions") from None
    except UnicodeDecodeError as error:
        raise ModelFolderError(f"{path} is not UTF-8 (byte {error.start}): prepare the model again") from None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ModelFolderError(
            f"{path} is not JSON ({error.msg} at {where}): prepare the model again"
        ) from None
    except RecursionError:
        raise ModelFolderError(f"{path} is nested too deeply: prepare the model again") from None
    if not isinstance(value, dict):
        raise ModelFolderError(f"{path} must hold a JSON object: prepare the model again")
    return value


def _read_optional_json(path: Path) -> dict[str, Any]:
    return _read_json(path) if path.is_file() else {}


def _lookup(config: Mapping[str, Any], name: str) -> Any:
    """The field, also where a multimodal model keeps that of its language model."""
    if config.get(name) is not None:
        return config[name]
    nested = config.get("text_config")
    return nested.get(name) if isinstance(nested, dict) else None


def _positive_integer(path: Path, config: Mapping[str, Any], name: str) -> int | None:
    value = _lookup(config, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _field_error(path, name, "a positive integer", value)
    return value


def _end_token_ids(path: Path, value: Any) -> frozenset[int]:
    if value is None:
        return frozenset()
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise _field_error(path, "eos_token_id", "a token id or a list of them", value)
    return frozenset(ids)


def _token_text(path: Path, config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise _field_error(path, name, "a string or an object with a content", value)
    return value or None


def _read_templates(path: Path, tokenizer: Mapping[str, Any]) -> tuple[str | None, str | None]:
    if (path / TEMPLATE_FILE).is_file():
        return read_text(path / TEMPLATE_FILE), None
    value = tokenizer.get("chat_template")
    if value is None or isinstance(value, str):
        return value, None
    try:
        named = {item["name"]: item["template"] for item in value}
    except (KeyError, TypeError):
        named = {None: None}
    if not all(isinstance(text, str) for item in named.items() for text in item):
        expected = "a string or a list of objects with name and template"
        raise _field_error(path / TOKENIZER_CONFIG_FILE, "chat_template", expected, value)
    return named.get("default"), named.get("tool_use")


def _field_error(path: Path, name: str, expected: str, value: object) -> ModelFolderError:
    return ModelFolderError(f"{path}: {name} must be {expected}, not {value!r:.60}: mend it by hand")
