"""`uzu fetch`: prepares a model without serving it."""

from __future__ import annotations

from pathlib import Path

from uzu.console import Console
from uzu.model_folder import check_model_folder
from uzu.repository_model import NativeModel
from uzu.settings import Settings
from uzu.sources.prepare import Preparer
from uzu.sources.specifier import RepositoryModel, parse_specifier
from uzu.store import Store


def fetch(model: str, repository: Path, settings: Settings, console: Console) -> Path:
    """Prepare `model`, checking the SHA-256 of what is in the cache already.

    A name in `repository` also gets its `1/weights` linked, so that a plain tritonserver loads it.

    Returns:
        The prepared folder, or the link to it.

    Raises:
        UsageError: no such model, too little disk, or the link cannot be made.
        PreparationError: a download or a conversion failed.

    """
    specifier = parse_specifier(model, repository)
    preparer = Preparer(Store(settings.home, console), console, settings.environment)
    if not isinstance(specifier, RepositoryModel):
        return preparer.prepare(specifier, verify=True)
    native = NativeModel.load(specifier)
    folder = native.prepare(preparer, verify=True)
    check_model_folder(folder)
    return native.link(folder)
