"""What `logit_bias`, the penalties and `bad_words` do to logits, as in OpenAI's API and vLLM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from uzu_contract.sampling import SamplingParams
from uzu_native.bad_words import BadWords


class LogitAdjustment:
    """One sequence's bias, penalties and forbidden words.

    The adjusted logits are a function of the model's logits, the sampling parameters and the tokens that come
    before; what has been counted of them is only remembered, so they are the same after a preemption and for
    guesses. The cost grows with the number of different tokens that are concerned, not with the vocabulary.

    Args:
        sampling: the request's parameters.
        token_ids: the sequence's known tokens, of which it reads those that are added later as well.
        prompt_length: how many of them are the prompt.
        bad_words: token sequences that must not be generated; they begin after the prompt.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        token_ids: Sequence[int],
        prompt_length: int,
        bad_words: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self._biased = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in sampling.logit_bias], np.float32)
        self._presence = np.float32(sampling.presence_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._repetition = np.float32(sampling.repetition_penalty)
        self._token_ids = token_ids
        self._prompt_length = prompt_length
        self._counted = prompt_length
        self._counts: Counter[int] = Counter()
        repeats = sampling.repetition_penalty != 1
        self._prompt = frozenset(token_ids[:prompt_length]) if repeats else frozenset()
        self._counts_tokens = repeats or bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._bad_words = BadWords(bad_words)

    @classmethod
    def of(
        cls,
        sampling: SamplingParams,
        token_ids: Sequence[int],
        prompt_length: int,
        bad_words: Sequence[tuple[int, ...]] = (),
    ) -> LogitAdjustment | None:
        """The adjustment that these parameters ask for; None when they ask for none."""
        penalties = sampling.presence_penalty or sampling.frequency_penalty
        if not (sampling.logit_bias or penalties or sampling.repetition_penalty != 1 or bad_words):
            return None
        return cls(sampling, token_ids, prompt_length, bad_words)

    def apply(self, row: NDArray[np.float32], following: Sequence[int] = ()) -> NDArray[np.float32]:
        """Adjusted logits of the token after the known ones and `following`; the row is not changed."""
        row = row.copy()
        if len(self._biased):
            row[self._biased] += self._biases
        if self._counts_tokens:
            self._catch_up()
            self._penalize(row, self._counts + Counter(following) if following else self._counts)
        self._bad_words.forbid(row, [*self._latest(), *following])
        return row

    def _latest(self) -> Sequence[int]:
        """The end of what is known to be generated."""
        begin = len(self._token_ids) - self._bad_words.longest_prefix
        return self._token_ids[max(self._prompt_length, begin) :]

    def _catch_up(self) -> None:
        self._counts.update(self._token_ids[self._counted :])
        self._counted = len(self._token_ids)

    def _penalize(self, row: NDArray[np.float32], counts: Counter[int]) -> None:
        if self._repetition != 1:
            met = np.array([*(self._prompt | counts.keys())], np.int64)
            logits = row[met]
            row[met] = np.where(logits > 0, logits / self._repetition, logits * self._repetition)
        if counts:
            generated = np.fromiter(counts.keys(), np.int64, len(counts))
            times = np.fromiter(counts.values(), np.float32, len(counts))
            row[generated] -= self._frequency * times + self._presence
