"""The run directory: one model repository and one backend directory, laid together for one tritonserver."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from uzu.errors import UsageError
from uzu.triton import TritonInstallation

_LOCK = ".uzu-run.lock"
_KEEP = ".uzu-keep"
_VERSION = "1"
_SHELL_SAFE = re.compile(r"[\w/.,:+@%=-]+")
_SHARED_MEMORY = Path("/dev/shm")
_NATIVE_CONFIG = """backend: "uzu"
max_batch_size: 0
model_transaction_policy { decoupled: true }
instance_group [ { count: 1, kind: KIND_CPU } ]
"""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Where one run of tritonserver reads its models and backends."""

    path: Path

    @property
    def model_repository(self) -> Path:
        """Folder of model folders."""
        return self.path / "model_repository"

    @property
    def backends(self) -> Path:
        """Folder of backend folders."""
        return self.path / "backends"

    @property
    def shared_memory_prefix(self) -> str:
        """How the names of Triton's shared memory regions begin in this run, and in no other."""
        return f"uzu-{hashlib.sha256(str(self.path).encode()).hexdigest()[:16]}-"

    def remove(self) -> None:
        """Remove the folder, and shared memory that a killed Triton left."""
        shutil.rmtree(self.path, ignore_errors=True)
        self.remove_shared_memory()

    def remove_shared_memory(self) -> None:
        """Remove shared memory that a killed Triton left."""
        for region in _SHARED_MEMORY.glob(f"{self.shared_memory_prefix}*"):
            region.unlink(missing_ok=True)

    def lay_backends(self, triton: TritonInstallation, python_backends: Path) -> None:
        """Copy Triton's Python backend, with the stub for our Python, and link every folder of ours.

        It is copied since Triton refuses a library that a link takes out of its backend's folder.
        """
        python = self.backends / "python"
        try:
            shutil.copytree(triton.python_backend, python)
            if triton.stub is not None:
                shutil.copy2(triton.stub, python)
        except (OSError, shutil.Error) as error:
            reason = getattr(error, "strerror", None) or "not every file could be written"
            raise UsageError(
                f"cannot copy Triton's Python backend to {python}: {reason}; free some disk"
            ) from error
        for folder in python_backends.iterdir():
            if folder.is_dir() and any(folder.glob("*.py")):
                (self.backends / folder.name).symlink_to(folder)

    def lay_native_model(
        self,
        name: str,
        weights: Path,
        options: Mapping[str, Any],
        template: Path | None = None,
        instances: int | None = None,
    ) -> Path:
        """Lay the folder of a model that the native engine serves.

        Args:
            name: what Triton calls it.
            weights: the prepared folder; it is linked, not copied.
            options: more content for 1/model.json.
            template: a model folder whose configuration is taken along.
            instances: how many processes serve it; None leaves that to the template, or is one.

        Returns:
            The model's folder.

        """
        folder = self.model_repository / name
        version = folder / _VERSION
        version.mkdir(parents=True)
        config = _NATIVE_CONFIG if template is None else (template / "config.pbtxt").read_text("utf-8")
        if instances is not None or (template is not None and name != template.name):
            config = _changed(config, name, instances)
        (folder / "config.pbtxt").write_text(config, "utf-8")
        content = {**options, "model": "weights"}
        (version / "model.json").write_text(json.dumps(content, indent=2) + "\n", "utf-8")
        (version / "weights").symlink_to(weights)
        return folder


@contextmanager
def run_directory(home: Path, given: Path | None = None, *, keep: bool = False) -> Iterator[RunDirectory]:
    """Make an empty run directory and hold it; it is removed at the end unless `keep`.

    Directories that a killed `uzu` left under `home` are removed first.

    Args:
        home: `UZU_HOME`, under which it lies unless one is given.
        given: a folder to use instead: absent, empty, or left by an earlier run.
        keep: leave it for a person to look at.

    Raises:
        UsageError: the given folder holds something else, is in use, or cannot be written.

    """
    try:
        (home / "locks").mkdir(parents=True, exist_ok=True)
        with FileLock(home / "locks" / "run.lock"):
            _remove_stale(home / "run")
            path = _free_path(home / "run") if given is None else _emptied(given.absolute())
            _check_path(path, "UZU_HOME" if given is None else "--run-dir")
            path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path / _LOCK)
            lock.acquire(timeout=0)
        if keep:
            (path / _KEEP).touch()
    except OSError as error:
        raise UsageError(f"cannot make a run directory: {error.filename}: {error.strerror}") from error
    try:
        yield RunDirectory(path)
    finally:
        if not keep:
            RunDirectory(path).remove()
        lock.release()


def _check_path(path: Path, option: str) -> None:
    """Triton starts its stub through a shell and quotes nothing."""
    if not _SHELL_SAFE.fullmatch(str(path)):
        raise UsageError(
            f"{option}: {path} has spaces or signs that Triton's shell cannot take; name another"
        )


def _remove_stale(runs: Path) -> None:
    for path in runs.glob("*"):
        if not (path / _KEEP).exists() and not _is_held(path):
            RunDirectory(path).remove()


def _is_held(path: Path) -> bool:
    try:
        with FileLock(path / _LOCK, timeout=0):
            return False
    except Timeout:
        return True


def _free_path(runs: Path) -> Path:
    path = runs / str(os.getpid())
    number = 1
    while path.exists():
        number += 1
        path = runs / f"{os.getpid()}-{number}"
    return path


def _emptied(path: Path) -> Path:
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return path
    if not (path / _LOCK).is_file():
        raise UsageError(f"--run-dir: {path} is not an empty folder; name another one")
    if _is_held(path):
        raise UsageError(f"--run-dir: another uzu is serving from {path}; name another one")
    RunDirectory(path).remove()
    return path


def _changed(config: str, name: str, instances: int | None) -> str:
    """The same model configuration under another name, and with so many instances unless that is None."""
    text_format: Any = importlib.import_module("google.protobuf.text_format")
    model_config_pb2: Any = importlib.import_module("tritonclient.grpc.model_config_pb2")
    message = text_format.Parse(config, model_config_pb2.ModelConfig())
    message.name = name
    if instances is not None:
        del message.instance_group[:]
        message.instance_group.add(count=instances, kind=model_config_pb2.ModelInstanceGroup.KIND_CPU)
    return str(text_format.MessageToString(message))
