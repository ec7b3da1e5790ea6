"""Guesses the next tokens of a sequence, so that one step may yield several.

Guesses come from the sequence's own text (`ngrams.py`) or from a smaller model (`draft_model.py`). They are
verified by sampling from the model and accepting while the sample equals the guess, so they change the speed
and never the tokens.

Whether a guess is worth it is arithmetic: it costs a row of the step, and the draft model's time if it made
it; it earns its chance of being accepted. It is made if that yields more tokens a second than the step does
without it. In a full step a row costs what a token earns, and guessing ends by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from uzu_native.draft_model import DraftContext, DraftModel, DraftRequest
from uzu_native.ngrams import NO_MATCH, Match, NgramIndex
from uzu_native.step_costs import StepCosts

PROBE_COST = 0.5
"""Highest share of a token's time that a probe may cost."""


class GuessKind(StrEnum):
    """Who guessed."""

    NGRAM = "ngram"
    DRAFT = "draft"


@dataclass(slots=True)
class Record:
    """How many guesses were accepted and refused, older ones counting less and less."""

    accepted: float
    rejected: float

    @property
    def chance(self) -> float:
        """Estimated chance that a guess is accepted, given that those before it were."""
        return self.accepted / (self.accepted + self.rejected)

    def add(self, drafted: int, accepted: int, decay: float = 0.85) -> None:
        """Learn from a step that verified `drafted` guesses and accepted the first `accepted`."""
        self.accepted = self.accepted * decay + accepted
        self.rejected = self.rejected * decay + (1 if accepted < drafted else 0)


def _match_records() -> dict[int, Record]:
    """A record for each length of match from which it counts; where they begin was tuned on Spec-Bench."""
    return {8: Record(5, 1), 4: Record(2, 1), 3: Record(1, 1), 2: Record(1, 1.5), 1: Record(1, 3)}


@dataclass(slots=True)
class DraftHistory:
    """What one sequence's guesses were worth, and what is kept to make the next.

    Args:
        matches: records of guesses from its text, by length of the match, longest first.
        model: record of the draft model's guesses.
        context: what the draft model has computed of it.
        idle_steps: steps since it guessed last.
        pending: whose guess is being verified, and the record that learns from it.
    """

    matches: dict[int, Record] = field(default_factory=_match_records)
    model: Record = field(default_factory=lambda: Record(1, 1))
    context: DraftContext = field(default_factory=DraftContext)
    index: NgramIndex = field(default_factory=NgramIndex)
    idle_steps: int = 0
    pending: tuple[GuessKind, Record] | None = None
    drafted_total: int = 0
    accepted_total: int = 0

    def record(self, drafted: int, accepted: int) -> GuessKind:
        """Learn from a step that verified `drafted` guesses, accepted the first `accepted`; says whose."""
        self.drafted_total += drafted
        self.accepted_total += accepted
        if self.pending is None:
            return GuessKind.NGRAM
        kind, record = self.pending
        record.add(drafted, accepted)
        self.pending = None
        return kind

    def match_record(self, match: Match) -> Record:
        """The record of guesses from such matches."""
        return next(record for length, record in self.matches.items() if match.length >= length)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that may guess.

    Args:
        token_ids: its known tokens.
        history: its record.
        room: how many tokens it may still produce beyond the next one.
        generated: how many of its tokens were generated.
    """

    token_ids: Sequence[int]
    history: DraftHistory
    room: int
    generated: int = 1


@dataclass(slots=True)
class _Step:
    """The step that is being filled: its duration, in seconds, and the tokens expected of it."""

    seconds: float
    tokens: float

    def pays(self, seconds: float, tokens: float) -> bool:
        """Whether that raises the tokens a second."""
        return tokens * self.seconds > seconds * self.tokens

    def add(self, seconds: float, tokens: float) -> None:
        self.seconds += seconds
        self.tokens += tokens


class Speculator:
    """Decides for whom to guess in a step, how much, and from what.

    Args:
        costs: what rows cost here.
        most: longest guess from a sequence's own text; 0 makes none.
        draft_model: a smaller model to guess with.
        draft_most: its longest guess.
        probe_interval: a sequence that does not seem worth guessing for is tried again after so many steps.
    """

    def __init__(
        self,
        costs: StepCosts,
        most: int,
        draft_model: DraftModel | None = None,
        draft_most: int = 0,
        probe_interval: int = 32,
    ) -> None:
        self._costs = costs
        self._most = most
        self.draft_model = draft_model
        self._draft_most = draft_most
        self._probe_interval = probe_interval

    def draft(self, candidates: Sequence[Candidate], alone: bool = True) -> list[list[int]]:
        """A guess for each candidate, empty where none is worth it.

        The step has one row for each candidate already. Called between steps: the draft model runs now.

        Args:
            candidates: the sequences that decode in the step.
            alone: whether no other step runs beside it, whose threads the draft model would take.
        """
        contexts = [len(c.token_ids) for c in candidates]
        step = _Step(
            self._costs.base_s + sum(self._costs.row_seconds(n) for n in contexts), float(len(candidates))
        )
        by_model = range(len(candidates)) if self.draft_model is not None and alone else range(0)
        preferred = self._depths(candidates, by_model, _Step(step.seconds, step.tokens))
        drafts, matches = self._from_text(candidates, step, preferred)
        rest = [i for i in by_model if not drafts[i]]
        if rest:
            self._from_model(candidates, self._depths(candidates, rest, step), drafts)
        self._probe(candidates, matches, drafts, step, alone)
        return drafts

    def forget(self, history: DraftHistory) -> None:
        """Free what the draft model keeps of a sequence that ended or lost its blocks."""
        if self.draft_model is not None:
            self.draft_model.forget(history.context)

    def check_integrity(self, histories: Iterable[DraftHistory]) -> None:
        """Compare the draft model's books with the sequences that run.

        Raises:
            RuntimeError: they disagree.
        """
        if self.draft_model is not None:
            self.draft_model.check_integrity(history.context for history in histories)

    @property
    def draft_failures(self) -> int:
        """Sequences that went on without the draft model after it had failed."""
        return 0 if self.draft_model is None else self.draft_model.failures

    def _from_text(
        self, candidates: Sequence[Candidate], step: _Step, preferred: dict[int, int]
    ) -> tuple[list[list[int]], list[Match]]:
        """Rows for guesses from the texts, likeliest first, as long as they pay; they are added to `step`."""
        drafts: list[list[int]] = [[] for _ in candidates]
        matches = [self._match(c, step) for c in candidates]
        for index, depth in preferred.items():
            share = _Step(step.seconds / len(candidates), 1.0)
            if not self._text_is_better(candidates[index], matches[index], depth, share, len(candidates)):
                matches[index] = NO_MATCH
        heap = []
        for index, (candidate, match) in enumerate(zip(candidates, matches, strict=True)):
            if match.token_ids:
                chance = candidate.history.match_record(match).chance
                heap.append((-chance / self._row_seconds(candidate), chance, chance, index))
        heapq.heapify(heap)
        while heap:
            _, arrives, chance, index = heapq.heappop(heap)
            row_s = self._row_seconds(candidates[index])
            if not step.pays(row_s, arrives):
                continue
            step.add(row_s, arrives)
            match, draft = matches[index], drafts[index]
            draft.append(match.token_ids[len(draft)])
            if len(draft) < len(match.token_ids):
                heapq.heappush(heap, (-arrives * chance / row_s, arrives * chance, chance, index))
        for candidate, match, draft in zip(candidates, matches, drafts, strict=True):
            if draft:
                history = candidate.history
                history.pending = (GuessKind.NGRAM, history.match_record(match))
        return drafts, matches

    def _match(self, candidate: Candidate, step: _Step) -> Match:
        """What its text suggests, unless nothing of that could pay."""
        history = candidate.history
        most = min(self._most, candidate.room)
        best = max(record.chance for record in history.matches.values())
        due = history.idle_steps + 1 >= self._probe_interval
        if most < 1 or not (due or step.pays(self._row_seconds(candidate), best)):
            return NO_MATCH
        return history.index.continuation(candidate.token_ids, most)

    def _text_is_better(
        self, candidate: Candidate, match: Match, depth: int, share: _Step, sharers: int
    ) -> bool:
        """Whether a guess from its text yields more tokens a second than one of the draft model.

        Args:
            candidate: for whom to guess.
            match: what its text suggests.
            depth: how many tokens the draft model would guess.
            share: its part of the step without a guess.
            sharers: among how many the draft model's steps are shared out.
        """
        if not match.token_ids or self.draft_model is None:
            return False
        history, row_s = candidate.history, self._row_seconds(candidate)
        by_text, by_model = replace(share), replace(share)
        arrives = 1.0
        for _ in match.token_ids:
            arrives *= history.match_record(match).chance
            if not by_text.pays(row_s, arrives):
                break
            by_text.add(row_s, arrives)
        costs = self.draft_model.costs
        wave_s = row_s + costs.row_seconds(len(candidate.token_ids)) + costs.base_s / sharers
        for guesses in range(1, depth + 1):
            by_model.add(wave_s, history.model.chance**guesses)
        return by_text.tokens * by_model.seconds >= by_model.tokens * by_text.seconds

    def _row_seconds(self, candidate: Candidate) -> float:
        return self._costs.row_seconds(len(candidate.token_ids))

    def _depths(self, candidates: Sequence[Candidate], indices: Iterable[int], step: _Step) -> dict[int, int]:
        """How many tokens to ask the draft model for, by index of the candidate; `step` grows by them.

        Each of its steps drafts one token for all that are still in; it must pay for itself.
        """
        depths: dict[int, int] = {}
        if self.draft_model is None:
            return depths
        costs = self.draft_model.costs
        chances = {i: candidates[i].history.model.chance for i in indices if self._may_ask(candidates[i])}
        before = step.seconds / step.tokens if step.tokens else 0.0
        for depth in range(1, self._draft_most + 1):
            wave_s, wave_tokens = costs.base_s, 0.0
            wave = []
            for index, chance in chances.items():
                candidate = candidates[index]
                row_s = self._row_seconds(candidate) + costs.row_seconds(len(candidate.token_ids))
                arrives = chance**depth
                if depth <= candidate.room and step.pays(row_s, arrives):
                    wave.append(index)
                    wave_s += row_s
                    wave_tokens += arrives
            if not step.pays(wave_s, wave_tokens):
                break
            step.add(wave_s, wave_tokens)
            chances = {index: chances[index] for index in wave}
            depths |= dict.fromkeys(wave, depth)
        saved_s = before - step.seconds / step.tokens if step.tokens else 0.0
        return {i: d for i, d in depths.items() if self._is_worth_catching_up(candidates[i], saved_s)}

    def _may_ask(self, candidate: Candidate) -> bool:
        model, context = self.draft_model, candidate.history.context
        return model is not None and candidate.room > 0 and model.can_follow(context, candidate.token_ids)

    def _is_worth_catching_up(self, candidate: Candidate, saved_s: float) -> bool:
        """Whether computing what the draft model has not seen is made up for by what will be saved.

        Nobody knows how long a text gets; half way through it is the best guess that needs no knowledge.
        """
        to_come = min(candidate.room, candidate.generated)
        return self._catch_up_seconds(candidate) <= to_come * saved_s

    def _catch_up_seconds(self, candidate: Candidate) -> float:
        """What the draft model needs for the tokens it has not seen, beyond the few of every step."""
        if self.draft_model is None:
            return 0.0
        unseen = self.draft_model.unseen(candidate.history.context, candidate.token_ids)
        return max(0, unseen - self._draft_most - 1) * self.draft_model.costs.prompt_token_s

    def _from_model(
        self, candidates: Sequence[Candidate], depths: dict[int, int], drafts: list[list[int]]
    ) -> None:
        if self.draft_model is None or not depths:
            return
        asked = [
            DraftRequest(candidates[i].history.context, candidates[i].token_ids, depth)
            for i, depth in depths.items()
        ]
        for index, guess in zip(depths, self.draft_model.draft(asked), strict=True):
            if guess:
                drafts[index] = guess
                history = candidates[index].history
                history.pending = (GuessKind.DRAFT, history.model)

    def _probe(
        self,
        candidates: Sequence[Candidate],
        matches: Sequence[Match],
        drafts: list[list[int]],
        step: _Step,
        alone: bool,
    ) -> None:
        """Try one guess of a sequence that has not guessed for long: its text may have become predictable."""
        token_s = PROBE_COST * step.seconds / step.tokens if step.tokens else 0.0
        due: dict[int, int] = {}
        for index, (candidate, match) in enumerate(zip(candidates, matches, strict=True)):
            history = candidate.history
            history.idle_steps = 0 if drafts[index] else history.idle_steps + 1
            if history.idle_steps < self._probe_interval:
                continue
            if match.token_ids and self._row_seconds(candidate) < token_s:
                drafts[index] = match.token_ids[:1]
                history.pending = (GuessKind.NGRAM, history.match_record(match))
                history.idle_steps = 0
            elif alone and self._may_ask(candidate) and self.draft_model is not None:
                probe_s = self.draft_model.costs.base_s + self._catch_up_seconds(candidate)
                if probe_s + self._row_seconds(candidate) < token_s:
                    due[index] = 1
                    history.idle_steps = 0
        self._from_model(candidates, due, drafts)
