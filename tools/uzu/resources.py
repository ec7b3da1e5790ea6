"""Where the parts of the distribution lie that are not Python packages: backends and models."""

from __future__ import annotations

from pathlib import Path

from uzu.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent


def python_backends() -> Path:
    """The folder whose subfolders are Triton backends."""
    return _find("python_backends")


def model_repository() -> Path:
    """The model repository that comes with Uzu."""
    return _find("model_repository")


def _find(name: str) -> Path:
    """In a wheel the folder lies in the package; in a checkout, at its root."""
    for parent in (_PACKAGE / "_data", _PACKAGE.parent.parent):
        if (parent / name).is_dir():
            return parent / name
    raise UsageError(f"this installation of uzu has no {name}; install it again")
