"""Words that must not be written: as token sequences, of which the last token is kept away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from uzu_contract.errors import invalid


def encode_words(
    words: Iterable[str], encode: Callable[[str], Sequence[int]], vocabulary: int
) -> list[tuple[int, ...]]:
    """Token sequences of these words, each as it is, and with and without a space before it.

    Sequences with a token that has no logit are left out: they cannot be generated.

    Args:
        words: not empty.
        encode: tokens of a text, nothing put before them.
        vocabulary: number of logits.

    Raises:
        RequestError: a word that has no tokens, or none that `encode` takes.
    """
    sequences: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        texts = (word, bare, f" {bare}") if bare else (word,)
        encoded = [tokens for text in texts if (tokens := tuple(encode(text)))]
        if not encoded:
            raise invalid("bad_words", f"{word!r:.60} has no tokens")
        sequences.update(dict.fromkeys(encoded))
    return [sequence for sequence in sequences if max(sequence) < vocabulary]


class BadWords:
    """Says which tokens would complete a sequence, from the tokens before.

    The cost of asking grows with the number of different lengths of the sequences, not with their number.

    Args:
        sequences: each of one token or more.
    """

    def __init__(self, sequences: Iterable[tuple[int, ...]]) -> None:
        completing: dict[tuple[int, ...], list[int]] = {}
        for sequence in sequences:
            completing.setdefault(sequence[:-1], []).append(sequence[-1])
        self._completing = {
            prefix: np.array(sorted(set(tokens)), np.int64) for prefix, tokens in completing.items()
        }
        self._lengths = sorted({len(prefix) for prefix in completing})

    @property
    def longest_prefix(self) -> int:
        """How many of the latest tokens matter."""
        return self._lengths[-1] if self._lengths else 0

    def forbid(self, row: NDArray[np.float32], latest: Sequence[int]) -> None:
        """Set the logits of the completing tokens to minus infinity.

        Args:
            row: changed in place.
            latest: the tokens before, at least `longest_prefix` of them unless there are fewer.
        """
        for length in self._lengths:
            if length > len(latest):
                break
            tokens = self._completing.get(tuple(latest[len(latest) - length :]))
            if tokens is not None:
                row[tokens] = -np.inf
