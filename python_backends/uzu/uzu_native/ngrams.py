"""Finds what followed a sequence's latest tokens where they stood before, in its prompt or its output.

The longest match wins; among equally long ones the continuation that followed most often, then the latest.
Prompt lookup is A. Saxena's (prompt-lookup-decoding); to weigh continuations by how often they occurred is as
in suffix decoding (SuffixDecoding, arXiv:2411.04975).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST_MATCH = 8
OCCURRENCES = 16
"""How many of the places where the latest token stood are compared, latest first: it bounds the time."""

INDEX_STRIDE = 4096
"""Tokens indexed at one time: a long prompt must not hold up the loop."""


@dataclass(frozen=True, slots=True)
class Match:
    """A continuation, and how many tokens before it agreed, at most `LONGEST_MATCH`."""

    token_ids: list[int]
    length: int


NO_MATCH = Match([], 0)


class NgramIndex:
    """Where each token of one growing sequence stands."""

    def __init__(self) -> None:
        self._ends: dict[int, list[int]] = {}
        self._indexed = 0

    def continuation(self, token_ids: Sequence[int], most: int) -> Match:
        """Up to `most` tokens, at least one, or `NO_MATCH`.

        Args:
            token_ids: the sequence, which begins with what it was at the call before.
            most: at least one.
        """
        self._index(token_ids)
        length = len(token_ids)
        if not length or self._indexed < length:
            return NO_MATCH
        # The last of them is the sequence's own end.
        places = self._ends[token_ids[-1]][-1 - OCCURRENCES : -1]
        longest, ends = 0, []
        for end in places:
            matched = _agreement(token_ids, end, length)
            if matched > longest:
                longest, ends = matched, [end]
            elif matched == longest:
                ends.append(end)
        return Match(_most_frequent(token_ids, ends, most), longest) if ends else NO_MATCH

    def _index(self, token_ids: Sequence[int]) -> None:
        limit = min(len(token_ids), self._indexed + INDEX_STRIDE)
        for place in range(self._indexed, limit):
            self._ends.setdefault(token_ids[place], []).append(place + 1)
        self._indexed = limit


def _agreement(token_ids: Sequence[int], end: int, length: int) -> int:
    """How many tokens before `end` are those before `length`; the last of each is known to agree."""
    matched = 1
    most = min(LONGEST_MATCH, end)
    while matched < most and token_ids[end - 1 - matched] == token_ids[length - 1 - matched]:
        matched += 1
    return matched


def _most_frequent(token_ids: Sequence[int], ends: list[int], most: int) -> list[int]:
    """Token by token what most of the places go on with, dropping those that go on otherwise."""
    length = len(token_ids)
    guess: list[int] = []
    while len(guess) < most:
        followers: dict[int, list[int]] = {}
        for end in ends:
            place = end + len(guess)
            if place < length:
                followers.setdefault(token_ids[place], []).append(end)
        if not followers:
            break
        token, ends = max(followers.items(), key=lambda item: (len(item[1]), item[1][-1]))
        guess.append(token)
    return guess
