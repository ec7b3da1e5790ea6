"""Fields that are known and not supported, and fields that are known and change nothing here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uzu_contract.errors import unsupported
from uzu_contract.sampling import NEUTRAL_VALUES

REFUSED: Mapping[str, tuple[Any, ...]] = {
    **{name: values for name, values in NEUTRAL_VALUES.items() if name not in ("n", "best_of")},
    "add_special_tokens": (True, None),
    "allowed_token_ids": (None,),
    "audio": (None,),
    "chat_template": (None,),
    "documents": ([], None),
    "function_call": ("none", None),
    "functions": ([], None),
    "length_penalty": (1, None),
    "modalities": (["text"], None),
    "prompt_embeds": (None,),
    "reasoning_effort": ("none", None),
    "suffix": ("", None),
    "tool_choice": ("none", None),
    "tools": ([], None),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (False, None),
    "verbosity": ("medium", None),
    "web_search_options": (None,),
}
"""Fields that would change the answer, with the values that ask for nothing and are accepted."""

IGNORED: Mapping[str, str] = {
    "metadata": "kept by nobody",
    "parallel_tool_calls": "means nothing without tools",
    "prediction": "a hint for speed",
    "prompt_cache_key": "a hint for routing",
    "prompt_cache_retention": "a hint for caching",
    "safety_identifier": "kept by nobody",
    "service_tier": "there is one tier",
    "store": "nothing is stored",
    "user": "kept by nobody",
}
"""Fields that are accepted with any value, and why they change nothing."""


def refuse_unsupported(raw: Mapping[str, Any], honoured: frozenset[str]) -> None:
    """Refuse what is not supported, in the order of the body.

    Raises:
        RequestError: `UNSUPPORTED_PARAMETER`, naming the field and the values it may have.

    """
    for name, value in raw.items():
        if name in REFUSED and name not in honoured and not _is_among(value, REFUSED[name]):
            raise unsupported(name, f"is not supported; leave it out or give {shown_values(name)}")


def shown_values(name: str) -> str:
    """The neutral values of a refused field, for people."""
    words = {True: "true", False: "false", None: "null"}
    values = [
        words[value] if value is None or isinstance(value, bool) else repr(value).replace("'", '"')
        for value in REFUSED[name]
    ]
    return " or ".join(values)


def _is_among(value: object, neutral: tuple[Any, ...]) -> bool:
    return any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in neutral)
