"""The folder that outlives the process: one gateway at a time uses it, and nothing in it is half written."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from filelock import FileLock, Timeout

from uzu_gateway.errors import GatewayError


class DataFolder:
    """Owns a folder and its parts.

    Args:
        path: is made when it is missing.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = path / "files"
        self.batches = path / "batches"
        self._scratch = path / "scratch"
        self._lock = FileLock(path / "lock", thread_local=False)

    def open(self) -> None:
        """Make this process the only one that uses the folder, and remove what another left half written.

        Raises:
            GatewayError: `store_unavailable`: another process uses it, or it cannot be written to.

        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(blocking=False)
            for part in (self.files, self.batches, self._scratch):
                part.mkdir(exist_ok=True)
            for left in self._scratch.iterdir():
                left.unlink()
        except Timeout:
            raise unavailable("another gateway uses the same --data-dir") from None
        except OSError as error:
            raise unavailable("the gateway's --data-dir cannot be written to") from error

    def close(self) -> None:
        """Let another process use it."""
        self._lock.release()

    def scratch(self) -> Path:
        """A path on the same file system, for what is then moved to where it belongs."""
        return self._scratch / uuid.uuid4().hex

    def write(self, path: Path, content: bytes) -> None:
        """Let `path` be a file of that content: as it was, or as it is to be, whenever the process ends.

        Raises:
            GatewayError: `store_unavailable`.

        """
        made = self.scratch()
        try:
            with made.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            made.replace(path)
        except OSError as error:
            made.unlink(missing_ok=True)
            raise unavailable("the gateway's --data-dir cannot be written to") from error


def unavailable(why: str) -> GatewayError:
    """The error for what is kept and cannot be."""
    return GatewayError("store_unavailable", f"Files and batches are not to be had: {why}.")
