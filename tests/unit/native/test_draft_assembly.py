import json

import pytest
from text_fixtures import write_folder

from uzu_native.draft_assembly import check_same_tokenizer
from uzu_native.model_folder import ModelFolderError, load_model_folder

BPE = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
TOKENIZER = {
    "model": BPE,
    "added_tokens": [{"id": 3, "content": "<end>"}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel"},
    "post_processor": None,
}


def folder(path, name, vocab_size=4, text=None, **changes):
    place = path / name
    place.mkdir()
    write_folder(place, config={"vocab_size": vocab_size})
    (place / "tokenizer.json").write_text(text or json.dumps({**TOKENIZER, **changes}))
    return load_model_folder(place)


def test_the_same_tokenizer_may_be_written_otherwise(tmp_path):
    target = folder(tmp_path, "target")
    draft = folder(
        tmp_path, "draft", text=json.dumps({**TOKENIZER, "post_processor": {"type": "x"}}, indent=2)
    )
    check_same_tokenizer(target, draft)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 5}, "vocabulary has 5 tokens, and that of .*target has 4"),
        (
            {"model": {**TOKENIZER["model"], "vocab": {"b": 0, "a": 1, "ab": 2}}},
            "'model' in its tokenizer.json",
        ),
        (
            {"model": {**TOKENIZER["model"], "merges": []}},
            "'model' in its tokenizer.json is not that of .*target",
        ),
        ({"added_tokens": []}, "'added_tokens' in its tokenizer.json"),
        ({"pre_tokenizer": None}, "'pre_tokenizer' in its tokenizer.json"),
        ({"text": "[]"}, "draft/tokenizer.json is not a JSON object: prepare the model again"),
        ({"text": "{"}, "draft/tokenizer.json is not a JSON object: prepare the model again"),
    ],
)
def test_another_tokenizer_is_refused_by_name(tmp_path, changes, message):
    target = folder(tmp_path, "target")
    draft = folder(tmp_path, "draft", **changes)
    with pytest.raises(ModelFolderError, match=message):
        check_same_tokenizer(target, draft)
