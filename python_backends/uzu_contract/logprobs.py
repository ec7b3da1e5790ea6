"""Log-probabilities of generated tokens and of prompts, and how they are written as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token that could stand at a place.

    Args:
        token_id: which.
        token: its bytes; they need not be whole characters.
        logprob: natural logarithm of its probability, by the model's own logits: before biases, penalties,
            temperature and filters.
        rank: how many tokens are likelier, plus one.

    """

    token_id: int
    token: bytes
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model thought of a place.

    Args:
        chosen: the token that was generated, or stands in the prompt.
        top: the likeliest tokens, in descending order.

    """

    chosen: ScoredToken
    top: tuple[ScoredToken, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """What the model thought of a prompt, each place given the tokens before it.

    Args:
        first_id: the first token, before which there is nothing.
        first_token: its bytes.
        rest: the other places.

    """

    first_id: int
    first_token: bytes
    rest: tuple[TokenLogprobs, ...] = ()


def encode_logprobs(logprobs: Iterable[TokenLogprobs]) -> str:
    """A JSON array with an object for each token: `token_id`, `token`, `bytes`, `logprob`, `rank`, `top`."""
    return json.dumps([*map(_place, logprobs)])


def decode_logprobs(text: str) -> tuple[TokenLogprobs, ...]:
    """What `encode_logprobs` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is something else.

    """
    return tuple(TokenLogprobs(_scored(raw), tuple(map(_scored, raw["top"]))) for raw in json.loads(text))


def encode_prompt_logprobs(logprobs: PromptLogprobs) -> str:
    """A JSON array like that of `encode_logprobs`; in the first object `logprob` and `rank` are null."""
    first = _token(logprobs.first_id, logprobs.first_token) | {"logprob": None, "rank": None, "top": []}
    return json.dumps([first, *map(_place, logprobs.rest)])


def decode_prompt_logprobs(text: str) -> PromptLogprobs:
    """What `encode_prompt_logprobs` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is something else.

    """
    first, *rest = json.loads(text)
    places = tuple(TokenLogprobs(_scored(raw), tuple(map(_scored, raw["top"]))) for raw in rest)
    return PromptLogprobs(int(first["token_id"]), bytes(first["bytes"]), places)


def _place(place: TokenLogprobs) -> dict[str, Any]:
    return _object(place.chosen) | {"top": [*map(_object, place.top)]}


def _token(token_id: int, token: bytes) -> dict[str, Any]:
    return {"token_id": token_id, "token": token.decode("utf-8", "replace"), "bytes": list(token)}


def _object(scored: ScoredToken) -> dict[str, Any]:
    return _token(scored.token_id, scored.token) | {"logprob": scored.logprob, "rank": scored.rank}


def _scored(raw: Mapping[str, Any]) -> ScoredToken:
    return ScoredToken(int(raw["token_id"]), bytes(raw["bytes"]), float(raw["logprob"]), int(raw["rank"]))
