"""The settings of the `uzu` command that come from the environment; nothing else of it reads that."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uzu.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says.

    Args:
        home: folder of everything that uzu keeps between starts, and of run directories; absolute.
        color: whether colours are wanted on a terminal.
        environment: what child processes inherit.

    """

    home: Path
    color: bool
    environment: Mapping[str, str]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Read `UZU_HOME`, `XDG_CACHE_HOME` and `NO_COLOR`.

        Raises:
            UsageError: `UZU_HOME` names something that is not a folder.

        """
        values = dict(os.environ if environment is None else environment)
        if values.get("UZU_HOME"):
            home = Path(values["UZU_HOME"]).expanduser().absolute()
        else:
            cache = values.get("XDG_CACHE_HOME") or "~/.cache"
            home = Path(cache).expanduser().absolute() / "uzu"
        if home.exists() and not home.is_dir():
            raise UsageError(f"UZU_HOME: {home} is not a folder; name another one")
        return cls(home=home, color=not values.get("NO_COLOR"), environment=values)
