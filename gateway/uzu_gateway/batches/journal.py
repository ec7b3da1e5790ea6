"""The lines that a batch has written: each once, however often the process is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """Appends to a file of JSON lines. A line that was not written to its end is taken back.

    Args:
        path: is made when it is missing.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.custom_ids: set[str] = set()
        end = 0
        if path.exists():
            with path.open("rb") as file:
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    end += len(raw)
                    self.custom_ids.add(json.loads(raw)["custom_id"])
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.ftruncate(self._file, end)

    def add(self, line: dict[str, Any]) -> None:
        """Write a line, whose `custom_id` is new.

        Raises:
            OSError: it could not be written; the file is as it was.

        """
        raw = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        before = os.fstat(self._file).st_size
        try:
            written = 0
            while written < len(raw):
                written += os.write(self._file, raw[written:])
        except OSError:
            os.ftruncate(self._file, before)
            raise
        self.custom_ids.add(line["custom_id"])

    def close(self) -> None:
        """Put everything on the disk and end."""
        os.fsync(self._file)
        os.close(self._file)
