"""Guesses the next tokens of a sequence from its own text, so that one step may yield several.

A guess is what followed the last time the sequence's latest tokens occurred in its prompt or output (prompt
lookup, as in A. Saxena's prompt-lookup-decoding). Guesses are verified by sampling from the model and
accepting while the sample equals the guess, so they change the speed and never the tokens.

Whether a guess is worth a row is arithmetic: a row more costs a known share of its step, and earns its
chance of being accepted. With few rows in a step a row costs next to nothing; in a full one it costs a step's
share, and guessing ends by itself.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

LONGEST_MATCH = 4
SHORTEST_MATCH = 2
DEAREST_ROW = 0.25
"""Highest cost of a row that is believed, as a share of a step with one row."""

PROBE_COST = 0.5
"""Highest share of a token that a probe may cost."""

INDEX_STRIDE = 512
"""Tokens indexed at one time: a long prompt must not hold up the loop."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Duration of a step with n one-token rows: `base_s + n * row_s`, in seconds."""

    base_s: float
    row_s: float

    def marginal_share(self, rows: int) -> float:
        """What one more row costs, as a share of the step, times `rows`.

        A step of `rows` rows yields about as many tokens, so this is the chance of acceptance from which one
        more row raises the tokens per second.
        """
        return rows * self.row_s / (self.base_s + rows * self.row_s)

    @classmethod
    def fitted(cls, samples: Sequence[tuple[int, float]]) -> StepCosts:
        """The least-squares line through (rows, seconds), which never falls and never rises too steeply.

        A step reads all weights whatever its rows, so a row costs little beside it. A steeper line was
        measured on a busy machine.
        """
        mean_rows = statistics.fmean(rows for rows, _ in samples)
        mean_s = statistics.fmean(seconds for _, seconds in samples)
        spread = sum((rows - mean_rows) ** 2 for rows, _ in samples)
        slope = sum((rows - mean_rows) * (s - mean_s) for rows, s in samples) / spread if spread else 0.0
        fewest_rows, fewest_s = min(samples)
        slope = min(max(slope, 0.0), DEAREST_ROW * fewest_s / fewest_rows, mean_s / mean_rows)
        return cls(mean_s - slope * mean_rows, slope)


@dataclass(slots=True)
class DraftHistory:
    """What one sequence's guesses were worth, and where its n-grams ended last.

    Args:
        accepted: guesses accepted, older ones counting less and less.
        rejected: guesses refused, likewise.
        idle_steps: steps since it guessed last.
    """

    accepted: float = 1.0
    rejected: float = 1.0
    idle_steps: int = 0
    drafted_total: int = 0
    accepted_total: int = 0
    _indexed: int = 0
    _ends: dict[tuple[int, ...], tuple[int, int]] = field(default_factory=dict)

    @property
    def acceptance(self) -> float:
        """Estimated chance that a guess is accepted, given that those before it were."""
        return self.accepted / (self.accepted + self.rejected)

    def record(self, drafted: int, accepted: int, decay: float = 0.8) -> None:
        """Learn from a step that verified `drafted` guesses and accepted the first `accepted`."""
        self.accepted = self.accepted * decay + accepted
        self.rejected = self.rejected * decay + (1 if accepted < drafted else 0)
        self.drafted_total += drafted
        self.accepted_total += accepted

    def guess(self, token_ids: Sequence[int], most: int) -> list[int]:
        """Up to `most` tokens that followed the longest recent n-gram where it stood before."""
        self._index(token_ids)
        length = len(token_ids)
        if self._indexed < length:
            return []
        for size in range(min(LONGEST_MATCH, length), SHORTEST_MATCH - 1, -1):
            last, before = self._ends.get(tuple(token_ids[length - size :]), (-1, -1))
            # The n-gram at the very end is in the index too; what is wanted is the one before it.
            end = before if last == length else last
            if 0 < end < length:
                return list(token_ids[end : end + most])
        return []

    def _index(self, token_ids: Sequence[int]) -> None:
        limit = min(len(token_ids), self._indexed + INDEX_STRIDE)
        for end in range(self._indexed + 1, limit + 1):
            for size in range(SHORTEST_MATCH, min(LONGEST_MATCH, end) + 1):
                key = tuple(token_ids[end - size : end])
                self._ends[key] = (end, self._ends.get(key, (-1, -1))[0])
        self._indexed = limit


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that may guess.

    Args:
        token_ids: its known tokens.
        history: its record.
        room: how many tokens it may still produce beyond the next one.
    """

    token_ids: Sequence[int]
    history: DraftHistory
    room: int


class Speculator:
    """Shares out the rows for guesses in a step among its sequences.

    Args:
        costs: what rows cost here.
        most: longest guess for one sequence.
        probe_interval: a sequence that does not seem worth guessing for is tried again after so many steps.
    """

    def __init__(self, costs: StepCosts, most: int, probe_interval: int = 32) -> None:
        self._costs = costs
        self._most = most
        self._probe_interval = probe_interval

    def draft(self, candidates: Sequence[Candidate]) -> list[list[int]]:
        """A guess for each candidate, empty where none is worth its rows.

        The step has one row for each candidate already; rows are added in order of their chance of being
        accepted, as long as that is above what they cost.
        """
        rows = len(candidates)
        drafts: list[list[int]] = [[] for _ in candidates]
        guesses = [self._guess(c) if self._costs.marginal_share(rows) < 1 else [] for c in candidates]
        chances = [(-c.history.acceptance, i) for i, c in enumerate(candidates) if guesses[i]]
        heapq.heapify(chances)
        while chances:
            negative, index = heapq.heappop(chances)
            if -negative <= self._costs.marginal_share(rows):
                break
            taken = len(drafts[index])
            drafts[index].append(guesses[index][taken])
            rows += 1
            if taken + 1 < len(guesses[index]):
                heapq.heappush(chances, (negative * candidates[index].history.acceptance, index))
        self._probe(candidates, guesses, drafts, rows)
        return drafts

    def _guess(self, candidate: Candidate) -> list[int]:
        most = min(self._most, candidate.room)
        return candidate.history.guess(candidate.token_ids, most) if most > 0 else []

    def _probe(
        self,
        candidates: Sequence[Candidate],
        guesses: Sequence[list[int]],
        drafts: Sequence[list[int]],
        rows: int,
    ) -> None:
        """Try one guess of a sequence that has not guessed for long: its text may have become predictable."""
        affordable = self._costs.marginal_share(rows) < PROBE_COST
        for candidate, guess, draft in zip(candidates, guesses, drafts, strict=True):
            history = candidate.history
            history.idle_steps = 0 if draft else history.idle_steps + 1
            if affordable and guess and history.idle_steps >= self._probe_interval:
                draft.append(guess[0])
                history.idle_steps = 0
