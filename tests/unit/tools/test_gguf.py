import random
import struct
from pathlib import Path

import pytest
from gguf_builder import build_gguf, tiny_keys

from uzu.errors import UsageError
from uzu.gguf import read_header

TENSORS = {"token_embd.weight": [8, 4], "output.weight": [4, 8]}


def write(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    return path


def test_reads_every_kind_of_value(tmp_path: Path) -> None:
    keys = {"text": "größe", "whole": 7, "yes": True, "real": 0.5, "texts": ["a", "b"], "numbers": [1, -2]}
    header = read_header(write(tmp_path, build_gguf(keys, TENSORS)))
    assert header.keys == keys
    assert header.tensors == 2


def test_every_shortened_file_is_refused_clearly(tmp_path: Path) -> None:
    data = build_gguf({"general.name": "x", "list": ["a", "bc"], "n": [1, 2, 3]}, {"w": [4, 2]})
    for length in range(len(data)):
        with pytest.raises(UsageError, match=r"model\.gguf: (is cut short|is not a GGUF|cannot be read)"):
            read_header(write(tmp_path, data[:length]))
    read_header(write(tmp_path, data))


def test_damaged_bytes_never_give_another_error(tmp_path: Path) -> None:
    original = build_gguf(tiny_keys(), TENSORS)
    generator = random.Random(7)
    refused = 0
    for _ in range(300):
        data = bytearray(original)
        for _ in range(generator.randint(1, 4)):
            data[generator.randrange(min(len(data), 400))] = generator.randrange(256)
        try:
            read_header(write(tmp_path, bytes(data)))
        except UsageError as error:
            refused += "model.gguf" in str(error)
    assert refused > 50


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GGML" + b"\0" * 100, "is not a GGUF file"),
        (b"", "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1 is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "damaged: it claims"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "cut short inside its header"),
        (
            b"GGUF" + struct.pack("<IQQQcIIQ", 3, 0, 1, 1, b"k", 9, 6, 2**61),
            "cut short inside its header",
        ),
        (b"GGUF" + struct.pack("<IQQQcI", 3, 0, 1, 1, b"k", 77), "unknown type 77"),
    ],
)
def test_odd_files_are_refused_by_what_is_wrong(tmp_path: Path, data: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_header(write(tmp_path, data))


def test_missing_weights_are_counted(tmp_path: Path) -> None:
    data = build_gguf(tiny_keys(), TENSORS)
    with pytest.raises(UsageError, match=rf"need {len(data)} bytes and it has {len(data) - 1}"):
        read_header(write(tmp_path, data[:-1]))


def test_a_missing_or_mistyped_key_is_named(tmp_path: Path) -> None:
    header = read_header(write(tmp_path, build_gguf({"a": 1})))
    with pytest.raises(UsageError, match=r"has no general\.architecture"):
        header.text("general.architecture")
    with pytest.raises(UsageError, match="a is not a string"):
        header.text("a")
    with pytest.raises(UsageError, match="a is not a list of strings"):
        header.strings("a")
