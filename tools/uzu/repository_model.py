"""Reads a native model's folder in a Triton model repository, and links its weights."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uzu.errors import UsageError
from uzu.sources.prepare import Preparer, Source
from uzu.sources.specifier import RepositoryModel, parse_specifier

NATIVE_BACKEND = "uzu"
VERSION = "1"
_BACKEND = re.compile(r'^\s*backend\s*:\s*"(?P<name>[^"]*)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class NativeModel:
    """A model folder whose backend is the native engine.

    Args:
        place: where it lies.
        options: the content of 1/model.json.

    """

    place: RepositoryModel
    options: dict[str, Any]

    @classmethod
    def load(cls, place: RepositoryModel) -> NativeModel:
        """Read config.pbtxt and 1/model.json.

        Raises:
            UsageError: another backend, or a model.json that is not a JSON object with a `model`.

        """
        config = place.path / "config.pbtxt"
        match = _BACKEND.search(config.read_text("utf-8", "replace"))
        if match is None or match["name"] != NATIVE_BACKEND:
            backend = match["name"] if match else ""
            raise UsageError(
                f'{config}: backend is "{backend}"; this version serves "{NATIVE_BACKEND}" models'
            )
        path = place.path / VERSION / "model.json"
        try:
            options = json.loads(path.read_text("utf-8"))
        except FileNotFoundError as error:
            raise UsageError(f"{path} does not exist; it holds the model's engine options") from error
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: is not readable as JSON: {error}") from error
        if not isinstance(options, dict) or not isinstance(options.get("model"), str):
            raise UsageError(f'{path}: must be an object with a "model", the path of the weights')
        return cls(place, options)

    @property
    def options_path(self) -> Path:
        """The file of `options`."""
        return self.place.path / VERSION / "model.json"

    @property
    def weights(self) -> Path:
        """Where the engine looks for its model folder; a link that `uzu fetch` makes may be there."""
        return self.place.path / VERSION / str(self.options["model"])

    def source(self) -> Source | None:
        """Where the weights come from, when model.json says so.

        Raises:
            UsageError: `source` names nothing that can be fetched.

        """
        text = self.options.get("source")
        if text is None:
            return None
        path = self.options_path
        if not isinstance(text, str):
            raise UsageError(f'{path}: "source" must be text such as pypi:PACKAGE==VERSION or ORG/NAME')
        source = parse_specifier(text, self.place.repository)
        if isinstance(source, RepositoryModel):
            raise UsageError(f'{path}: "source" must not name another model of the repository')
        return source

    def prepare(self, preparer: Preparer, *, verify: bool = False) -> Path:
        """The prepared folder: what lies at `weights`, else its source's.

        Raises:
            UsageError: there is neither.
            PreparationError: fetching the source failed.

        """
        source = self.source()
        if self.weights.exists() and (source is None or not self.weights.is_symlink()):
            return self.weights.resolve()
        if source is None:
            raise UsageError(f'{self.weights} does not exist, and its model.json names no "source" to fetch')
        return preparer.prepare(source, verify=verify)

    def link(self, folder: Path) -> Path:
        """Make `weights` a link to `folder`, replacing an older link; gives the link.

        Raises:
            UsageError: something else than a link is there, or the repository cannot be written.

        """
        if self.weights.exists() and not self.weights.is_symlink():
            return self.weights
        if Path(str(self.options["model"])).is_absolute():
            raise UsageError(
                f"{self.weights} does not exist; give a path inside the model's folder to be linked"
            )
        temporary = self.weights.with_name(f".{self.weights.name}.new")
        try:
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(folder)
            temporary.replace(self.weights)
        except OSError as error:
            raise UsageError(
                f"cannot link {self.weights} to {folder}: {error.strerror}; copy the model's folder to a "
                "repository of yours and name that with --repository"
            ) from error
        return self.weights


def native_models(repository: Path) -> list[NativeModel]:
    """The models of a repository that the native engine serves, by name.

    Raises:
        UsageError: the 1/model.json of one cannot be used.

    """
    configs = sorted(repository.glob("*/config.pbtxt"))
    matches = [(config, _BACKEND.search(config.read_text("utf-8", "replace"))) for config in configs]
    folders = [config.parent for config, match in matches if match and match["name"] == NATIVE_BACKEND]
    return [NativeModel.load(RepositoryModel(repository, folder.name)) for folder in folders]
