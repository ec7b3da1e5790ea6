"""The tables of docs/errors.md and docs/api.md, made from the code.

`python -m uzu_gateway.docs --check` or `--write`. A table stands between two marker comments; the text around
it is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from fastapi.routing import APIRoute
from pydantic import BaseModel

from uzu_gateway.app import ROUTERS
from uzu_gateway.errors import ERRORS
from uzu_gateway.schemas.batches import BatchRequest
from uzu_gateway.schemas.chat import ChatRequest
from uzu_gateway.schemas.completions import CompletionRequest
from uzu_gateway.schemas.fields import GenerationFields
from uzu_gateway.schemas.messages import MessagesRequest
from uzu_gateway.schemas.refused import IGNORED, REFUSED, shown_values
from uzu_gateway.schemas.responses import ResponsesRequest
from uzu_gateway.schemas.tokens import DetokenizeRequest, TokenizeRequest
from uzu_gateway.schemas.vectors import EmbeddingsRequest, RerankRequest, ScoreRequest
from uzu_gateway.settings import Settings

Rows = Iterable[Sequence[str]]


def errors_table() -> str:
    """Every code with its row."""
    return _table(
        ("code", "status", "type", "retry", "`Retry-After`", "meaning"),
        (
            (
                f"`{code!s}`",
                str(spec.status),
                f"`{spec.type}`",
                "yes" if spec.should_retry else "no",
                f"{spec.retry_after_s} s" if spec.retry_after_s is not None else "",
                spec.meaning,
            )
            for code, spec in ERRORS.items()
        ),
    )


def routes_table() -> str:
    """Every route."""
    routes = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    return _table(
        ("route", "answers"),
        (
            (
                f"`{' '.join(sorted(route.methods or ()))} {route.path.replace(':path', '')}`",
                (route.endpoint.__doc__ or "").strip(),
            )
            for route in routes
        ),
    )


def _fields_table(schema: type[BaseModel], without: Iterable[str] = ()) -> str:
    return _table(
        ("field", "meaning"),
        (
            (f"`{name}`" + (" (required)" if field.is_required() else ""), field.description or "")
            for name, field in schema.model_fields.items()
            if name not in without
        ),
    )


def _settings_table() -> str:
    return _table(
        ("option", "default", "meaning"),
        (
            (f"`--{name.replace('_', '-')}`", _shown_default(field.default), field.description or "")
            for name, field in Settings.model_fields.items()
        ),
    )


TABLES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "errors.md": {"errors": errors_table},
    "api.md": {
        "routes": routes_table,
        "fields": lambda: _fields_table(GenerationFields),
        "completions": lambda: _fields_table(CompletionRequest, GenerationFields.model_fields),
        "chat": lambda: _fields_table(ChatRequest, GenerationFields.model_fields),
        "responses": lambda: _fields_table(ResponsesRequest),
        "messages": lambda: _fields_table(MessagesRequest),
        "batches": lambda: _fields_table(BatchRequest),
        "tokenize": lambda: _fields_table(TokenizeRequest),
        "detokenize": lambda: _fields_table(DetokenizeRequest),
        "embeddings": lambda: _fields_table(EmbeddingsRequest),
        "rerank": lambda: _fields_table(RerankRequest),
        "score": lambda: _fields_table(ScoreRequest),
        "refused": lambda: _table(
            ("field", "accepted values"),
            ((f"`{name}`", f"`{shown_values(name)}`") for name in sorted(REFUSED)),
        ),
        "ignored": lambda: _table(
            ("field", "why it changes nothing"), ((f"`{name}`", why) for name, why in sorted(IGNORED.items()))
        ),
        "options": _settings_table,
    },
}
"""For each page, its tables by the name in their markers."""


def render(page: str, text: str) -> str:
    """The text of a page with its tables made anew.

    Raises:
        ValueError: a marker is missing.

    """
    for name, make in TABLES[page].items():
        begin, end = f"<!-- table:{name} -->", f"<!-- /table:{name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{page} lacks {begin} … {end}")
        made = f"{begin}\n{make()}\n{end}"
        text = pattern.sub(lambda _, made=made: made, text)  # type: ignore[misc]
    return text


def outdated(folder: Path) -> list[str]:
    """Pages in `folder` whose tables differ from the code."""
    texts = {page: (folder / page).read_text("utf-8") for page in TABLES}
    return [page for page, text in texts.items() if render(page, text) != text]


def main(arguments: Sequence[str]) -> int:
    """Check or write the pages."""
    parser = argparse.ArgumentParser(prog="uzu_gateway.docs", description=__doc__, allow_abbrev=False)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="fail when a table differs from the code")
    action.add_argument("--write", action="store_true", help="make the tables anew")
    parser.add_argument(
        "--folder", type=Path, default=Path("docs"), help="where the pages are (default docs)"
    )
    options = parser.parse_args(arguments)
    pages = outdated(options.folder)
    if options.write:
        for page in pages:
            path = options.folder / page
            path.write_text(render(page, path.read_text("utf-8")), "utf-8")
        return 0
    for page in pages:
        sys.stderr.write(f"{page} is outdated; run python -m uzu_gateway.docs --write\n")
    return 1 if pages else 0


def _shown_default(default: object) -> str:
    return "" if default is None or default is False else f"`{default}`"


def _table(header: Sequence[str], rows: Rows) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
