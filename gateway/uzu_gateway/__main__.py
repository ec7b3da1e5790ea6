"""The gateway's command line, made from its settings: `python -m uzu_gateway --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pydantic import ValidationError

from uzu_gateway.server import serve
from uzu_gateway.settings import Settings


def parse_arguments(arguments: Sequence[str]) -> Settings:
    """Settings out of a command line; ends the process with one clear line when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="uzu_gateway", description="OpenAI-compatible gateway of Uzu.", allow_abbrev=False
    )
    for name, field in Settings.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        shown = "" if field.default is None else f" (default {field.default})"
        if field.annotation is bool:
            parser.add_argument(flag, action="store_true", default=None, help=field.description)
        else:
            parser.add_argument(flag, metavar="VALUE", help=f"{field.description}{shown}")
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        flag = f"--{str(problem['loc'][0]).replace('_', '-')}"
        parser.error(f"{flag} {problem['input']!r}: {problem['msg']}")


def main() -> int:
    """Parse, serve, and say by the exit code how it went."""
    return 0 if serve(parse_arguments(sys.argv[1:])) else 1


if __name__ == "__main__":
    sys.exit(main())
