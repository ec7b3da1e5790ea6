"""The cache under `UZU_HOME`: folders that are either whole or absent, with a checksum for every file.

An entry is built in a temporary folder beside it and moved into place with one rename, under a lock that the
kernel releases when its holder dies. So two starts at once build once, and a start that was killed leaves
nothing but a temporary folder, which the next builder of that entry removes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from uzu.console import Console
from uzu.errors import PreparationError, UsageError

RECORD = ".uzu-entry.json"
_FORMAT = 1
_MARGIN_BYTES = 64 * 2**20
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

Build = Callable[[Path], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole folder in the store.

    Args:
        path: the folder; nobody changes it.
        details: what its builder recorded (where it came from, checksums of what it was made of).
        built: whether this call built it.

    """

    path: Path
    details: Mapping[str, str]
    built: bool


class Store:
    """Owns `UZU_HOME`'s `packages`, `models` and `digests`, and the locks and temporary folders for them."""

    def __init__(
        self,
        home: Path,
        console: Console,
        *,
        free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free,
    ) -> None:
        self._home = home
        self._console = console
        self._free_bytes = free_bytes

    def entry(self, kind: str, key: str, build: Build, *, needs_bytes: int, verify: bool = False) -> Entry:
        """Give the entry `key`, building it when it is absent or damaged.

        Args:
            kind: the folder under the home.
            key: the entry's name, made with `entry_key`.
            build: fills an empty folder, and returns what to record about it.
            needs_bytes: disk space that `build` takes.
            verify: read every file and compare its checksum, not just its size.

        Raises:
            UsageError: too little disk space, or the home cannot be written.
            PreparationError: whatever `build` raises.

        """
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no name for a store entry")
        path = self._home / kind / key
        found = _read(path, verify=verify)
        if found is not None:
            return found
        for folder in ("tmp", "locks", kind):
            _make_folder(self._home / folder)
        with self._locked(f"{kind}-{key}"):
            found = _read(path, verify=verify)
            if found is not None:
                return found
            for stale in (self._home / "tmp").glob(f"{kind}-{key}~*"):
                shutil.rmtree(stale, ignore_errors=True)
            self.check_space(needs_bytes, f"{kind}/{key}")
            return self._build(kind, key, path, build)

    def file_digest(self, path: Path) -> str:
        """SHA-256 of a file outside the store, remembered until its size or time of change differ."""
        status = path.stat()
        identity = [str(path.resolve()), status.st_size, status.st_mtime_ns]
        folder = self._home / "digests"
        memory = folder / f"{hashlib.sha256(str(identity[0]).encode()).hexdigest()[:32]}.json"
        try:
            remembered = json.loads(memory.read_text("utf-8"))
            if remembered["identity"] == identity:
                return str(remembered["sha256"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        digest = sha256_of(path)
        _make_folder(folder)
        write_atomically(memory, json.dumps({"identity": identity, "sha256": digest}))
        return digest

    def check_space(self, needs_bytes: int, what: str) -> None:
        """Raise a `UsageError` when `needs_bytes` do not fit on the disk of the home."""
        existing = next(folder for folder in (self._home, *self._home.parents) if folder.exists())
        free = self._free_bytes(existing)
        if free < needs_bytes + _MARGIN_BYTES:
            raise UsageError(
                f"too little disk space for {what}: {self._home} has {free / 1e6:.0f} MB free and "
                f"{(needs_bytes + _MARGIN_BYTES) / 1e6:.0f} MB are needed; free some, or set UZU_HOME to "
                "a folder on another disk"
            )

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        lock = FileLock(self._home / "locks" / f"{name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            self._console.note(f"another uzu is preparing {name}; waiting for it")
            lock.acquire()
        except OSError as error:
            raise UsageError(f"cannot lock {lock.lock_file}: {error.strerror}") from error
        try:
            yield
        finally:
            lock.release()

    def _build(self, kind: str, key: str, path: Path, build: Build) -> Entry:
        temporary = Path(tempfile.mkdtemp(prefix=f"{kind}-{key}~", dir=self._home / "tmp"))
        try:
            temporary.chmod(0o755)
            details = dict(build(temporary))
            record = {"format": _FORMAT, "details": details, "files": _describe_files(temporary)}
            write_atomically(temporary / RECORD, json.dumps(record, indent=1))
            if path.exists():
                path.rename(temporary.with_name(f"{temporary.name}.old"))
            temporary.rename(path)
        except OSError as error:
            raise PreparationError(f"cannot write {path}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.rmtree(temporary.with_name(f"{temporary.name}.old"), ignore_errors=True)
        return Entry(path, details, built=True)


def entry_key(*parts: str) -> str:
    """Join `parts` to a name that is safe as a folder's."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", "-".join(parts)).strip("-.")


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or none."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make {path}: {error.strerror}; set UZU_HOME to a folder of yours"
        ) from error


def _describe_files(folder: Path) -> dict[str, dict[str, int | str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)}
        for path in files
    }


def _read(path: Path, *, verify: bool) -> Entry | None:
    """The entry, or None when it is absent, of another format, or damaged."""
    try:
        record = json.loads((path / RECORD).read_text("utf-8"))
        if record["format"] != _FORMAT:
            return None
        for name, expected in record["files"].items():
            file = path / name
            if file.stat().st_size != expected["size"]:
                return None
            if verify and sha256_of(file) != expected["sha256"]:
                return None
        return Entry(path, record["details"], built=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
