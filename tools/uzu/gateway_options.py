"""The gateway's options, checked before anything is started, with the gateway's own table of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from uzu.errors import UsageError
from uzu_gateway.settings import Settings

OURS = ("host", "port", "engine", "triton_url", "default_model", "log_level")
"""What `uzu serve` sets itself."""


def gateway_arguments(options: Mapping[str, str], data_dir: Path) -> list[str]:
    """The gateway's command line for options by name; where it keeps its data is `data_dir` unless they say.

    Raises:
        UsageError: an option that the gateway does not have or does not take, or that is set elsewhere.

    """
    for name in options:
        if name in OURS:
            raise UsageError(f"--gateway-option: {name} is set by uzu serve itself")
        if name not in Settings.model_fields:
            known = ", ".join(name for name in Settings.model_fields if name not in OURS)
            raise UsageError(
                f"--gateway-option: {name!r:.80} is not an option of the gateway; known: {known}"
            )
    given = {"data_dir": str(data_dir), **options}
    try:
        settings = Settings.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise UsageError(
            f"--gateway-option: {problem['loc'][0]} {problem['input']!r:.200}: {problem['msg']}"
        ) from None
    arguments: list[str] = []
    for name in given:
        value = getattr(settings, name)
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif value is not False and value is not None:
            arguments += [flag, str(value.absolute() if isinstance(value, Path) else value)]
    return arguments
