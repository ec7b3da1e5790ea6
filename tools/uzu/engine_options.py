"""Checks the native engine's options before anything is started, with the engine's own table of them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from uzu.errors import UsageError
from uzu.resources import python_backends

_BACKEND = "uzu"


def check_engine_options(options: Mapping[str, object], where: str) -> None:
    """Make sure that the engine accepts `options`, the content of a 1/model.json.

    Raises:
        UsageError: it does not; the text begins with `where` and names key, value and range.

    """
    folder = str(python_backends() / _BACKEND)
    if folder not in sys.path:
        sys.path.append(folder)
    table: Any = importlib.import_module("uzu_native.options")
    errors: Any = importlib.import_module("uzu_native.errors")
    try:
        table.parse_options(options)
    except errors.OptionsError as error:
        raise UsageError(f"{where}: {error}") from error
