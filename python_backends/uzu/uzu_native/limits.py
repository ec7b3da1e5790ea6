"""How long a sequence may get, and what is said when it would be longer."""

from __future__ import annotations

from uzu_contract.errors import ErrorCode, RequestError


def prompt_too_long(tokens: str, limit: int) -> RequestError:
    """The error for a prompt that fills the context; `tokens` says how many it has, for people."""
    return RequestError(
        ErrorCode.CONTEXT_LENGTH_EXCEEDED,
        f"the prompt has {tokens} tokens; the model's context of {limit} tokens leaves no room for an answer",
    )


def longest_sequence(prompt_length: int, max_tokens: int | None, limit: int) -> int:
    """Length, in tokens, at which a sequence ends.

    Args:
        prompt_length: tokens of the prompt.
        max_tokens: what may follow; None is what fits.
        limit: what context and KV pool hold.

    Raises:
        RequestError: `CONTEXT_LENGTH_EXCEEDED`.
    """
    if prompt_length >= limit:
        raise prompt_too_long(str(prompt_length), limit)
    if max_tokens is None:
        return limit
    if prompt_length + max_tokens > limit:
        raise RequestError(
            ErrorCode.CONTEXT_LENGTH_EXCEEDED,
            f"max_tokens: the prompt's {prompt_length} tokens and max_tokens {max_tokens} are more than the "
            f"model's context of {limit} tokens",
            "max_tokens",
        )
    return prompt_length + max_tokens
