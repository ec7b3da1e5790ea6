"""Log-probabilities of generated tokens, and how they are written as JSON."""

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
        chosen: the token that was generated.
        top: the likeliest tokens, in descending order.

    """

    chosen: ScoredToken
    top: tuple[ScoredToken, ...] = ()


def encode_logprobs(logprobs: Iterable[TokenLogprobs]) -> str:
    """A JSON array with an object for each token: `token_id`, `token`, `bytes`, `logprob`, `rank`, `top`."""
    return json.dumps([_object(place.chosen) | {"top": [*map(_object, place.top)]} for place in logprobs])


def decode_logprobs(text: str) -> tuple[TokenLogprobs, ...]:
    """What `encode_logprobs` wrote.

    Raises:
        ValueError, KeyError, TypeError: it is something else.

    """
    return tuple(TokenLogprobs(_scored(raw), tuple(map(_scored, raw["top"]))) for raw in json.loads(text))


def _object(scored: ScoredToken) -> dict[str, Any]:
    return {
        "token_id": scored.token_id,
        "token": scored.token.decode("utf-8", "replace"),
        "bytes": list(scored.token),
        "logprob": scored.logprob,
        "rank": scored.rank,
    }


def _scored(raw: Mapping[str, Any]) -> ScoredToken:
    return ScoredToken(int(raw["token_id"]), bytes(raw["bytes"]), float(raw["logprob"]), int(raw["rank"]))
