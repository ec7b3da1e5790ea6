"""Log-probabilities in the shapes of OpenAI's two routes."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from uzu_contract.logprobs import ScoredToken, TokenLogprobs


class TextOffsets:
    """Where the tokens of a text begin, in characters; one that begins inside a character has its place."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def take(self, token: bytes) -> int:
        """The place of the next token."""
        offset = self._length
        self._length += len(self._decoder.decode(token))
        return offset


def completion_logprobs(places: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any]:
    """`logprobs` of a choice of `/v1/completions`; `offsets` goes on where the choice's last call ended."""
    return {
        "tokens": [_name(place.chosen, "bytes:") for place in places],
        "token_logprobs": [place.chosen.logprob for place in places],
        "top_logprobs": [_alternatives(place) for place in places],
        "text_offset": [offsets.take(place.chosen.token) for place in places],
    }


def chat_logprobs(places: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """`logprobs` of a choice of `/v1/chat/completions`."""
    content = [
        {**_chat_token(place.chosen), "top_logprobs": [_chat_token(scored) for scored in place.top]}
        for place in places
    ]
    return {"content": content, "refusal": None}


def _alternatives(place: TokenLogprobs) -> dict[str, float]:
    """By name; the chosen token is among them. Where two are written alike the likelier stands."""
    alternatives: dict[str, float] = {}
    for scored in (*place.top, place.chosen):
        alternatives.setdefault(_name(scored, "bytes:"), scored.logprob)
    return alternatives


def _chat_token(scored: ScoredToken) -> dict[str, Any]:
    return {"token": _name(scored, ""), "logprob": scored.logprob, "bytes": list(scored.token)}


def _name(scored: ScoredToken, prefix: str) -> str:
    try:
        return scored.token.decode("utf-8")
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in scored.token)
