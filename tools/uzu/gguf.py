"""Reads the header of a GGUF file: its keys, and whether the file holds all the weights that it lists.

Format: little-endian `GGUF`, u32 version, u64 tensors, u64 keys; each key a string, a u32 type and a value;
each tensor a name, its dimensions, a u32 type and an offset (https://github.com/ggml-org/ggml/blob/master/
docs/gguf.md). Every length is checked against the file before anything is read or allocated.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from uzu.errors import UsageError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MAX_KEYS = 100_000
_MAX_TENSORS = 1_000_000
_MAX_DIMENSIONS = 8
_MAX_NESTING = 4
# ggml's tensor types: elements in a block, bytes of a block.
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says about itself.

    Args:
        path: the file.
        keys: its metadata, by key; arrays are lists.
        tensors: how many weights it lists.

    """

    path: Path
    keys: dict[str, Any]
    tensors: int

    def text(self, key: str) -> str:
        """The string under `key`. Raises `UsageError` when there is none."""
        return str(self._typed(key, str, "a string"))

    def strings(self, key: str) -> list[str]:
        """The list of strings under `key`. Raises `UsageError` when there is none."""
        values: list[Any] = self._typed(key, list, "a list of strings")
        if not all(isinstance(value, str) for value in values):
            raise UsageError(f"{self.path}: {key} is not a list of strings")
        return values

    def integer(self, key: str) -> int:
        """The whole number under `key`. Raises `UsageError` when there is none."""
        return int(self._typed(key, int, "a whole number"))

    def _typed(self, key: str, kind: type[Any], wanted: str) -> Any:
        if key not in self.keys:
            raise UsageError(f"{self.path}: this GGUF file has no {key}, which Uzu needs")
        value = self.keys[key]
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise UsageError(f"{self.path}: {key} is not {wanted}")
        return value


def read_header(path: Path) -> GgufHeader:
    """Read the keys and check that the weights are all there.

    Raises:
        UsageError: not a GGUF file, one of another version, or a damaged or shortened one.

    """
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise UsageError(f"{path}: is not a GGUF file (it does not begin with 'GGUF')")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).read()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


class _Reader:
    """A cursor over the file that never leaves it."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = len(_MAGIC)

    def read(self) -> GgufHeader:
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise UsageError(f"{self._path}: GGUF version {version} is not supported (2 and 3 are)")
        tensors, count = self._scalar("Q"), self._scalar("Q")
        if count > _MAX_KEYS or tensors > _MAX_TENSORS:
            raise self._damaged(f"it claims {count} keys and {tensors} tensors")
        keys: dict[str, Any] = {}
        for _ in range(count):
            key = self._text()
            keys[key] = self._value(self._scalar("I"))
        self._check_tensors(tensors, keys.get("general.alignment", 32))
        return GgufHeader(self._path, keys, tensors)

    def _check_tensors(self, count: int, alignment: Any) -> None:
        if not isinstance(alignment, int) or alignment < 1:
            raise self._damaged(f"its alignment is {alignment}")
        end = 0
        for _ in range(count):
            name = self._text()
            dimensions = self._scalar("I")
            if dimensions > _MAX_DIMENSIONS:
                raise self._damaged(f"tensor {name} has {dimensions} dimensions")
            elements = prod(self._scalar("Q") for _ in range(dimensions))
            kind, offset = self._scalar("I"), self._scalar("Q")
            if kind in _BLOCKS:
                per_block, block_bytes = _BLOCKS[kind]
                end = max(end, offset + elements // per_block * block_bytes)
            else:
                end = max(end, offset)
        needed = -(-self._at // alignment) * alignment + end
        if count and len(self._data) < needed:
            raise UsageError(
                f"{self._path}: is cut short: its weights need {needed} bytes and it has {len(self._data)}; "
                "download it again"
            )

    def _value(self, kind: int, nesting: int = 0) -> Any:
        if kind == _STRING:
            return self._text()
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind != _ARRAY or nesting >= _MAX_NESTING:
            raise self._damaged(f"it has a value of the unknown type {kind}")
        element, count = self._scalar("I"), self._scalar("Q")
        if element in _SCALARS:
            return list(self._unpack(f"<{count}{_SCALARS[element]}", count, _SCALARS[element]))
        self._require(count)
        return [self._value(element, nesting + 1) for _ in range(count)]

    def _text(self) -> str:
        length = self._scalar("Q")
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._damaged("it has a string that is not UTF-8") from error

    def _scalar(self, code: str) -> Any:
        return self._unpack(f"<{code}", 1, code)[0]

    def _unpack(self, layout: str, count: int, code: str) -> tuple[Any, ...]:
        return struct.unpack(layout, self._take(count * struct.calcsize(f"<{code}")))

    def _require(self, length: int) -> None:
        if length > len(self._data) - self._at:
            raise UsageError(f"{self._path}: is cut short inside its header; download it again")

    def _take(self, length: int) -> bytes:
        self._require(length)
        self._at += length
        return self._data[self._at - length : self._at]

    def _damaged(self, why: str) -> UsageError:
        return UsageError(f"{self._path}: is damaged: {why}; download it again")
