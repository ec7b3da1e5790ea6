import json

import pytest
from text_fixtures import CHATML, write_folder

from uzu_native.model_folder import ModelFolderError, load_model_folder


def test_reads_everything(tmp_path):
    write_folder(
        tmp_path,
        config={"vocab_size": 512, "max_position_embeddings": 8192, "eos_token_id": 2},
        tokenizer_config={
            "bos_token": {"content": "<|im_start|>", "lstrip": False},
            "eos_token": "<|im_end|>",
            "add_bos_token": False,
            "chat_template": "loses",
        },
        eos_token_id=[2, 0],
        template=CHATML,
    )
    folder = load_model_folder(tmp_path)
    assert folder.ir_path == tmp_path / "openvino_model.xml"
    assert folder.tokenizer_path == tmp_path / "tokenizer.json"
    assert (folder.vocab_size, folder.context_length) == (512, 8192)
    assert folder.end_token_ids == {0, 2}
    assert (folder.bos_token, folder.eos_token, folder.adds_bos) == ("<|im_start|>", "<|im_end|>", False)
    assert (folder.chat_template, folder.tool_chat_template) == (CHATML, None)


def test_little_is_needed(tmp_path):
    write_folder(tmp_path, config={"vocab_size": 7})
    (tmp_path / "tokenizer_config.json").unlink()
    folder = load_model_folder(tmp_path)
    assert folder.vocab_size == 7
    assert folder.end_token_ids == frozenset()
    assert {folder.context_length, folder.bos_token, folder.adds_bos, folder.chat_template} == {None}


def test_reads_the_language_model_of_a_multimodal_config(tmp_path):
    nested = {"vocab_size": 9, "max_position_embeddings": 128, "eos_token_id": [4, 5]}
    write_folder(tmp_path, config={"vocab_size": None, "text_config": nested})
    folder = load_model_folder(tmp_path)
    assert (folder.vocab_size, folder.context_length, folder.end_token_ids) == (9, 128, {4, 5})


def test_named_templates(tmp_path):
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    write_folder(tmp_path, tokenizer_config={"chat_template": named})
    folder = load_model_folder(tmp_path)
    assert (folder.chat_template, folder.tool_chat_template) == ("D", "T")


@pytest.mark.parametrize(
    "name", ["openvino_model.xml", "openvino_model.bin", "tokenizer.json", "config.json"]
)
def test_names_the_missing_file(tmp_path, name):
    (write_folder(tmp_path) / name).unlink()
    with pytest.raises(ModelFolderError, match=f"has no {name}: prepare the model again"):
        load_model_folder(tmp_path)


def test_names_the_missing_folder(tmp_path):
    with pytest.raises(ModelFolderError, match="absent is not a folder"):
        load_model_folder(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", r"config.json is not JSON \(.* at line 1, column 2\)"),
        ("config.json", "[]", "config.json must hold a JSON object"),
        ("config.json", b"\xff", r"config.json is not UTF-8 \(byte 0\)"),
        ("config.json", {}, "config.json has no vocab_size"),
        ("config.json", {"vocab_size": "many"}, "vocab_size must be a positive integer, not 'many'"),
        ("config.json", {"vocab_size": True}, "vocab_size must be a positive integer, not True"),
        ("config.json", {"vocab_size": 5, "eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        (
            "config.json",
            {"vocab_size": 5, "max_position_embeddings": 0},
            "max_position_embeddings must be a positive integer, not 0",
        ),
        ("generation_config.json", {"eos_token_id": [1, -1]}, "eos_token_id must be a token id"),
        ("tokenizer_config.json", {"bos_token": 1}, "bos_token must be a string"),
        ("tokenizer_config.json", {"add_bos_token": 1}, "add_bos_token must be true or false, not 1"),
        ("tokenizer_config.json", {"chat_template": [{"name": "x"}]}, "chat_template must be a string or"),
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template must be a string or"),
    ],
)
def test_broken_files(tmp_path, name, content, message):
    data = content if isinstance(content, bytes) else None
    if data is None:
        data = (content if isinstance(content, str) else json.dumps(content)).encode()
    (write_folder(tmp_path) / name).write_bytes(data)
    with pytest.raises(ModelFolderError, match=message) as caught:
        load_model_folder(tmp_path)
    assert "\n" not in str(caught.value)
