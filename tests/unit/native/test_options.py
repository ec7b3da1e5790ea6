import json

import pytest

from uzu_native.errors import OptionsError
from uzu_native.options import EngineOptions, load_options, parse_options


def test_defaults():
    options = parse_options({"model": "weights"})
    assert options == EngineOptions(model="weights")
    assert 1 <= options.thread_count <= 16
    assert parse_options({"model": "weights", "threads": 3, "source": None}).thread_count == 3


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "option 'model' is missing"),
        (
            {"model": "m", "lane": 2},
            r"unknown option 'lane'; known: check_integrity, context_tokens, .*, threads$",
        ),
        ({"model": 3}, "option 'model' must be str, not 3"),
        ({"model": "m", "threads": True}, "option 'threads' must be int | null, not True"),
        ({"model": "m", "threads": 0}, "option 'threads' must be between 1 and 256, not 0"),
        ({"model": "m", "max_sequences": None}, "option 'max_sequences' must be int, not None"),
        ({"model": "m", "prefix_cache": 1}, "option 'prefix_cache' must be bool, not 1"),
        ({"model": "m", "speculation": "both"}, "must be ngram or draft or ngram.draft or off, not 'both'"),
        ({"model": "m", "speculation": "ngram+draft"}, "is 'ngram.draft': name a 'draft_model'"),
        ({"model": "m", "reuse_generated": True, "prefix_cache": False}, "needs 'prefix_cache'"),
    ],
)
def test_bad_options_name_key_value_and_range(raw, message):
    with pytest.raises(OptionsError, match=message.replace("|", r"\|")):
        parse_options(raw)


def test_files(tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"model": "weights"}))
    assert load_options(path).model == "weights"
    for text in ("{", "[]", '{"model": "m", "x": 1}'):
        path.write_text(text)
        with pytest.raises(OptionsError, match=r"model\.json"):
            load_options(path)
    with pytest.raises(OptionsError, match="cannot be read"):
        load_options(tmp_path / "none.json")
