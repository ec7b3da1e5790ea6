import json
from pathlib import Path
from typing import Any

import pytest
from gguf_builder import build_gguf, tiny_keys
from tokenizers import Tokenizer

from uzu.errors import UsageError
from uzu.gguf import GgufHeader, read_header
from uzu.gguf_files import write_model_files
from uzu.gguf_tokenizer import build_tokenizer, end_token_ids


def header_of(tmp_path: Path, **changes: Any) -> GgufHeader:
    keys = {**tiny_keys(), **{key.replace("__", "."): value for key, value in changes.items()}}
    path = tmp_path / "tiny.gguf"
    path.write_bytes(build_gguf({key: value for key, value in keys.items() if value is not None}))
    return read_header(path)


def with_pre(tmp_path: Path, pre: str) -> Tokenizer:
    return build_tokenizer(header_of(tmp_path, tokenizer__ggml__pre=pre))


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        # smollm: every digit by itself first, so that "\n\n" before one stays together.
        ("smollm", "\n\n1. ", ["ĊĊ", "1", ".", "Ġ"]),
        ("smollm", "a  12", ["a", "ĠĠ", "1", "2"]),
        ("smollm", "123", ["1", "2", "3"]),
        # gpt-2 gives the last white space to the next word, and keeps digits together.
        ("gpt-2", "\n\n1", ["Ċ", "Ċ", "1"]),
        ("gpt-2", "123", ["123"]),
        # llama-bpe: groups of up to three digits; qwen2: one by one; both keep line breaks together.
        ("llama-bpe", "1231", ["123", "1"]),
        ("llama-bpe", "\n\n1", ["ĊĊ", "1"]),
        ("qwen2", "123", ["1", "2", "3"]),
        ("qwen2", "\n\n1", ["ĊĊ", "1"]),
    ],
)
def test_text_is_split_as_the_model_was_trained(
    tmp_path: Path, pre: str, text: str, tokens: list[str]
) -> None:
    tokenizer = with_pre(tmp_path, pre)
    encoded = tokenizer.encode(text, add_special_tokens=False)
    assert encoded.tokens == tokens
    assert tokenizer.decode(encoded.ids) == text


def test_special_tokens_are_found_unless_asked_otherwise(tmp_path: Path) -> None:
    tokenizer = with_pre(tmp_path, "smollm")
    assert tokenizer.encode("<|im_end|>").ids == [2]
    tokenizer.encode_special_tokens = True
    plain = tokenizer.encode("<|im_end|>")
    assert 2 not in plain.ids
    assert tokenizer.decode(plain.ids) == "<|im_end|>"


def test_bos_is_added_only_where_the_model_wants_it(tmp_path: Path) -> None:
    assert with_pre(tmp_path, "smollm").encode("ab").ids[0] != 1
    added = header_of(tmp_path, tokenizer__ggml__add_bos_token=True)
    assert build_tokenizer(added).encode("ab").ids[0] == 1
    silent = header_of(tmp_path, tokenizer__ggml__add_bos_token=None, tokenizer__ggml__pre="llama-bpe")
    assert build_tokenizer(silent).encode("ab").ids[0] == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokenizer__ggml__pre": "tekken"}, r"pre is 'tekken', which Uzu does not know \(it knows gpt-2,"),
        ({"tokenizer__ggml__model": "llama"}, "kind 'llama'"),
        ({"tokenizer__ggml__pre": None}, r"has no tokenizer\.ggml\.pre"),
        ({"tokenizer__ggml__token_type": [1, 2]}, "token_type does not match"),
        ({"tokenizer__ggml__merges": ["zz qq"]}, "vocabulary and merges disagree"),
        ({"tokenizer__ggml__tokens": ["a", "a"], "tokenizer__ggml__token_type": [1, 1]}, "same token twice"),
    ],
)
def test_what_is_not_known_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build_tokenizer(header_of(tmp_path, **changes))


def test_a_token_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="bos_token_id is 99999, outside the vocabulary"):
        write_model_files(header_of(tmp_path, tokenizer__ggml__bos_token_id=99999), tmp_path)


def test_end_tokens_are_the_named_ones_then_those_that_end_turns(tmp_path: Path) -> None:
    assert end_token_ids(header_of(tmp_path)) == [2, 0]


def test_files_say_what_the_keys_say(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_model_files(header_of(tmp_path), out)

    def read(name: str) -> Any:
        return json.loads((out / name).read_text("utf-8"))

    assert read("generation_config.json")["eos_token_id"] == [2, 0]
    config = read("config.json")
    assert (config["max_position_embeddings"], config["model_type"], config["eos_token_id"]) == (
        512,
        "llama",
        2,
    )
    assert config["vocab_size"] == len(tiny_keys()["tokenizer.ggml.tokens"])
    named = read("tokenizer_config.json")
    assert (named["bos_token"], named["eos_token"], named["unk_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert (out / "chat_template.jinja").read_text("utf-8") == tiny_keys()["tokenizer.chat_template"]
    assert Tokenizer.from_file(str(out / "tokenizer.json")).encode("\n\n1").tokens == ["ĊĊ", "1"]
