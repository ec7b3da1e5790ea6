"""Log-probabilities in the shapes of OpenAI's two routes, and of vLLM's for prompts."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import Any

from uzu_contract.logprobs import PromptLogprobs, ScoredToken, TokenLogprobs


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

    def take_shown(self, token: bytes, text: str) -> int:
        """Likewise in a text that does not show all of its tokens, as special ones, nor all of each.

        Args:
            token: the next one.
            text: begins with what is shown of the tokens.

        """
        offset = self._length
        piece = self._decoder.decode(token)
        shown = next((p for p in (piece, piece.lstrip(" ")) if text.startswith(p, offset)), "")
        self._length += len(shown)
        return offset


def completion_logprobs(places: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, list[Any]]:
    """`logprobs` of a choice of `/v1/completions`; `offsets` goes on where the choice's last call ended."""
    return {
        "tokens": [_name(place.chosen.token, "bytes:") for place in places],
        "token_logprobs": [place.chosen.logprob for place in places],
        "top_logprobs": [_alternatives(place) for place in places],
        "text_offset": [offsets.take(place.chosen.token) for place in places],
    }


def echoed_logprobs(
    prompt: PromptLogprobs, count: int, text: str, offsets: TextOffsets
) -> dict[str, list[Any]]:
    """The beginning of `logprobs` where the prompt is shown again; its first token has none.

    Args:
        prompt: its log-probabilities.
        count: how many of the likeliest tokens to show.
        text: begins with the prompt's.
        offsets: of the choice, still at its beginning.

    """
    tokens = [prompt.first_token, *(place.chosen.token for place in prompt.rest)]
    return {
        "tokens": [_name(token, "bytes:") for token in tokens],
        "token_logprobs": [None, *(place.chosen.logprob for place in prompt.rest)],
        "top_logprobs": [None, *(_alternatives(_cut(place, count)) for place in prompt.rest)],
        "text_offset": [offsets.take_shown(token, text) for token in tokens],
    }


def prompt_logprobs(prompt: PromptLogprobs, count: int) -> list[dict[str, Any] | None]:
    """What vLLM calls `prompt_logprobs`: for each token but the first an object of tokens by their ids.

    Args:
        prompt: its log-probabilities.
        count: how many of the likeliest tokens to show beside the one that is there.

    """
    return [
        None,
        *(
            {
                str(scored.token_id): {
                    "logprob": scored.logprob,
                    "rank": scored.rank,
                    "decoded_token": _name(scored.token, ""),
                }
                for scored in (place.chosen, *place.top[:count])
            }
            for place in prompt.rest
        ),
    ]


def mean_logprob(places: Sequence[TokenLogprobs]) -> float:
    """How likely an answer is, whatever its length."""
    return sum(place.chosen.logprob for place in places) / len(places) if places else -math.inf


def chat_logprobs(places: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """`logprobs` of a choice of `/v1/chat/completions`."""
    content = [
        {**_chat_token(place.chosen), "top_logprobs": [_chat_token(scored) for scored in place.top]}
        for place in places
    ]
    return {"content": content, "refusal": None}


def _cut(place: TokenLogprobs, count: int) -> TokenLogprobs:
    return TokenLogprobs(place.chosen, place.top[:count])


def _alternatives(place: TokenLogprobs) -> dict[str, float]:
    """By name; the chosen token is among them. Where two are written alike the likelier stands."""
    alternatives: dict[str, float] = {}
    for scored in (*place.top, place.chosen):
        alternatives.setdefault(_name(scored.token, "bytes:"), scored.logprob)
    return alternatives


def _chat_token(scored: ScoredToken) -> dict[str, Any]:
    return {"token": _name(scored.token, ""), "logprob": scored.logprob, "bytes": list(scored.token)}


def _name(token: bytes, prefix: str) -> str:
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in token)
