"""Uploaded files and the results of batches, with what is known about each."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError

from uzu_gateway.batches.folder import DataFolder, unavailable
from uzu_gateway.errors import GatewayError

_ID = re.compile(r"file-[0-9a-f]{32}")
_MAX_FILENAME = 255


class StoredFile(BaseModel):
    """What is known about a file.

    Args:
        id: its name, here and for clients.
        bytes: its length.
        created_at: Unix time, seconds.
        expires_at: likewise; then it goes.
        filename: what the client calls it; never a path here.
        purpose: `batch` or `batch_output`.

    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    bytes: int
    created_at: int
    expires_at: int
    filename: str
    purpose: str

    def shown(self) -> dict[str, Any]:
        """OpenAI's file object."""
        return {**self.model_dump(), "object": "file", "status": "processed", "status_details": None}


def new_file_id() -> str:
    """A name for a file."""
    return f"file-{uuid.uuid4().hex}"


class FileStore:
    """Owns the files of a data folder. A file exists when its description does.

    Args:
        folder: has been opened.
        ttl_s: how long a file is kept at most.
        max_bytes: of all files together.
        clock: Unix time.

    """

    def __init__(
        self, folder: DataFolder, ttl_s: float, max_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._folder = folder
        self._ttl_s = ttl_s
        self._max_bytes = max_bytes
        self._clock = clock
        self._files: dict[str, StoredFile] = {}

    def load(self) -> None:
        """Read what is there; content without a description is removed."""
        for path in self._folder.files.glob("*.json"):
            try:
                stored = StoredFile.model_validate_json(path.read_bytes())
            except (OSError, ValidationError):
                # Not written by this version; it is left alone.
                continue
            if self._content(stored.id).exists():
                self._files[stored.id] = stored
        for path in self._folder.files.glob("*.data"):
            if path.stem not in self._files and not path.with_suffix(".json").exists():
                path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what has expired."""
        for stored in [f for f in self._files.values() if f.expires_at <= self._clock()]:
            self._remove(stored.id)

    async def create(
        self, source: BinaryIO, filename: str, purpose: str, expires_after_s: int | None = None
    ) -> StoredFile:
        """Keep a copy of `source`, from where it stands.

        Raises:
            GatewayError: `store_unavailable`: there is no room.

        """
        scratch = self._folder.scratch()

        def copy() -> int:
            with scratch.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                return target.tell()

        try:
            length = await asyncio.to_thread(copy)
            if length + sum(stored.bytes for stored in self._files.values()) > self._max_bytes:
                raise unavailable("there is no room; delete files that are no longer needed")
            return self.adopt(new_file_id(), scratch, filename, purpose, expires_after_s)
        except OSError as error:
            raise unavailable("the gateway's --data-dir cannot be written to") from error
        finally:
            scratch.unlink(missing_ok=True)

    def adopt(
        self, file_id: str, path: Path, filename: str, purpose: str, expires_after_s: int | None = None
    ) -> StoredFile:
        """Keep a file of the same file system under a name too; again, it changes nothing.

        The file itself is left where it is: until the description is written, it is all that there is.

        Raises:
            GatewayError: `store_unavailable`.

        """
        if file_id in self._files:
            return self._files[file_id]
        content = self._content(file_id)
        try:
            content.unlink(missing_ok=True)
            os.link(path, content)
            length = content.stat().st_size
        except OSError as error:
            raise unavailable("the gateway's --data-dir cannot be written to") from error
        now = int(self._clock())
        kept_s = self._ttl_s if expires_after_s is None else min(expires_after_s, self._ttl_s)
        stored = StoredFile(
            id=file_id,
            bytes=length,
            created_at=now,
            expires_at=now + int(kept_s),
            filename=filename[:_MAX_FILENAME],
            purpose=purpose,
        )
        self._folder.write(content.with_suffix(".json"), stored.model_dump_json().encode())
        self._files[file_id] = stored
        return stored

    def get(self, file_id: str) -> StoredFile:
        """What is known about a file.

        Raises:
            GatewayError: `not_found`.

        """
        stored = self._files.get(file_id) if _ID.fullmatch(file_id) else None
        if stored is None or stored.expires_at <= self._clock():
            raise GatewayError("not_found", f"There is no file {file_id!r:.80}; it may have expired.")
        return stored

    def path(self, file_id: str) -> Path:
        """Where its content is.

        Raises:
            GatewayError: `not_found`.

        """
        return self._content(self.get(file_id).id)

    def delete(self, file_id: str) -> None:
        """Remove a file.

        Raises:
            GatewayError: `not_found`.

        """
        self._remove(self.get(file_id).id)

    def list(self, purpose: str | None = None) -> list[StoredFile]:
        """All files, the oldest first."""
        now = self._clock()
        kept = [f for f in self._files.values() if f.expires_at > now and purpose in (None, f.purpose)]
        return sorted(kept, key=lambda stored: (stored.created_at, stored.id))

    def _content(self, file_id: str) -> Path:
        return self._folder.files / f"{file_id}.data"

    def _remove(self, file_id: str) -> None:
        self._files.pop(file_id, None)
        content = self._content(file_id)
        # The description goes first: without it, the content is removed at the next start at the latest.
        content.with_suffix(".json").unlink(missing_ok=True)
        content.unlink(missing_ok=True)
