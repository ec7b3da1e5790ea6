"""Blaming a field by the name that a client gave it, when a request was turned into one of another kind."""

from __future__ import annotations

from collections.abc import Mapping

from uzu_contract.errors import RequestError


def renamed(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The error with the client's name of the field.

    Args:
        error: names a field, or a path below it, of what the request was turned into.
        names: from such fields to the client's; what follows the name is kept, but not where the client's
            name ends in `!`, since places in it are not places in the client's field.

    """
    param = error.param
    if param is None:
        return error
    for name in sorted(names, key=len, reverse=True):
        rest = param.removeprefix(name)
        if param.startswith(name) and (not rest or rest[0] in ".["):
            client = names[name]
            field = client[:-1] if client.endswith("!") else client + rest
            text = error.message.removeprefix(f"{param}: ")
            return RequestError(error.code, f"{field}: {text}", field)
    return error
