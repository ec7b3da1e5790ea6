"""Decides which tokens a lane computes next, and who may own KV blocks.

There are no prefill and decode phases: a sequence has known and computed tokens, and a step moves the second
towards the first. Three rules keep a sequence's numbers independent of its neighbours (why is told in
docs/backends/native.md): prompt tokens are computed in chunks of two or more, generated tokens one to a row,
and the rows of one sequence never run in two lanes at once.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace

from uzu_native.block_pool import BlockPool, chain_hashes
from uzu_native.lanes import Lanes
from uzu_native.options import EngineOptions
from uzu_native.prefix_waits import PrefixWaits
from uzu_native.sequence import Sequence
from uzu_native.speculation import Candidate, Speculator
from uzu_native.step import Lane, Row, StepPlan

MAX_SCORED_TOKENS = 64
"""Prompt tokens of a step that have logits of their own: they take as much memory as a vocabulary is long."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One sequence's part in a step.

    Args:
        sequence: whose tokens.
        count: how many known tokens are computed.
        samples: whether they are the last known ones, so that the step's logits give the next token.
        draft: guesses that are computed after them, each with logits of its own.
        scored: positions of the prompt's tokens whose log-probabilities are wanted. Then each token computed
            has logits, and those after the first are of the first of these positions, and so on.
    """

    sequence: Sequence
    count: int
    samples: bool
    draft: tuple[int, ...] = ()
    scored: range = range(0)

    @property
    def logit_rows(self) -> int:
        """How many rows of the step's logits are its own."""
        if self.scored:
            return self.count
        return 1 + len(self.draft) if self.samples else 0


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A plan for the executor, and what it means for the sequences."""

    plan: StepPlan
    entries: tuple[Entry, ...]


def prompt_chunk(remaining: int, budget: int) -> int:
    """How many of a prompt's `remaining` tokens to compute within `budget`.

    Never one, and never so many that one is left, since a chunk of one takes another kernel whose rounding
    differs: then it is one token less, or, where that leaves one too, one more than the budget. Only a prompt
    of a single token is computed as one.
    """
    if remaining <= budget or remaining <= 3:
        return remaining if budget >= min(2, remaining) else 0
    chunk = budget - 1 if remaining - budget == 1 else budget
    return chunk if chunk >= 2 else 0


class Scheduler:
    """The waiting queue, the running sequences of each lane, and the block pool they share."""

    def __init__(self, pool: BlockPool, options: EngineOptions, speculator: Speculator | None = None) -> None:
        self.pool = pool
        self.preemptions = 0
        self.recomputed_tokens = 0
        self._options = options
        self._speculator = speculator
        self._lanes = Lanes(options)
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Sequences without blocks, in the order in which they will be admitted."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that own blocks."""
        return tuple(self._running)

    @property
    def is_full(self) -> bool:
        """Whether one more sequence would have to wait for a slot."""
        return len(self._running) + len(self._waiting) >= self._options.max_sequences

    @property
    def queue_length(self) -> int:
        """Sequences that wait beyond those for whom there is a slot."""
        return max(0, len(self._waiting) - max(0, self._options.max_sequences - len(self._running)))

    @property
    def has_work(self) -> bool:
        """Whether any sequence is waiting or running."""
        return bool(self._waiting or self._running)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence by its rank; one that was preempted so gets its old place back."""
        if self._options.prefix_cache and not sequence.block_hashes:
            prompt = sequence.token_ids[: sequence.prompt_length]
            self._extend_hashes(sequence, prompt)
        bisect.insort(self._waiting, sequence, key=lambda s: s.rank)

    def remove(self, sequence: Sequence) -> None:
        """End a sequence: its blocks are free now, or as soon as the step that reads them is over."""
        sequence.finished = True
        if sequence in self._waiting:
            self._waiting.remove(sequence)
        elif not sequence.in_flight:
            self._leave(sequence)

    def admit(self) -> list[Sequence]:
        """Give blocks to waiting sequences, best rank first.

        A sequence whose prefix is being computed for another waits for that, and lets others pass. One that
        does not fit throws out sequences of lower priority, if that makes it fit, and else holds up the rest.
        """
        admitted: list[Sequence] = []
        waits = PrefixWaits(self._running if self._waiting else (), self.pool)
        for sequence in tuple(self._waiting):
            if self._waits_for_prefix(sequence, waits):
                continue
            preemptions = self.preemptions
            if not self._fits(sequence) and not self._make_room(sequence):
                break
            self._start(sequence)
            self._waiting.remove(sequence)
            admitted.append(sequence)
            if self.preemptions == preemptions:
                waits.add(sequence)
            else:
                waits = PrefixWaits(self._running, self.pool)
        return admitted

    def _waits_for_prefix(self, sequence: Sequence, waits: PrefixWaits) -> bool:
        if waits.goes_on(sequence):
            return True
        sequence.hits = sequence.block_hashes[: self._usable_hits(sequence)]
        return not sequence.needs_prompt_scores and waits.begins(sequence)

    def _missing(self, sequence: Sequence) -> int:
        """Blocks that must be free for it to start, beside the cached ones.

        One spare block for each running sequence is among them: who is admitted into the last block is
        preempted at once.
        """
        pool, hits = self.pool, sequence.hits
        own = pool.blocks_for(len(sequence.token_ids) + 1) - len(hits)
        return own + pool.idle_among(hits) + len(self._running)

    def _fits(self, sequence: Sequence) -> bool:
        has_slot = len(self._running) < self._options.max_sequences
        return has_slot and self._missing(sequence) <= self.pool.available

    def _make_room(self, sequence: Sequence) -> bool:
        """Preempt for a sequence of higher priority, lowest rank first, unless it would be in vain.

        A sequence that has been thrown out `max_preemptions` times is left in peace.
        """
        victims = sorted(
            (s for s in self._running if self._may_be_thrown_out_for(s, sequence)), key=lambda s: s.rank
        )
        chosen: list[Sequence] = []
        blocks = self.pool.available
        slots = self._options.max_sequences - len(self._running)
        while slots < 1 or blocks < self._missing(sequence) - len(chosen):
            if not victims:
                return False
            chosen.append(victims.pop())
            blocks += self.pool.count_unshared(chosen[-1].blocks)
            slots += 1
        for victim in chosen:
            self.preempt(victim)
        # Blocks that a victim shared with this sequence's own prefix were counted twice.
        return self._fits(sequence)

    def _may_be_thrown_out_for(self, victim: Sequence, sequence: Sequence) -> bool:
        return (
            not victim.in_flight
            and victim.request.priority > sequence.request.priority
            and victim.rank > sequence.rank
            and victim.preemptions < self._options.max_preemptions
        )

    def _start(self, sequence: Sequence) -> None:
        pool = self.pool
        own = pool.blocks_for(len(sequence.token_ids) + 1) - len(sequence.hits)
        sequence.blocks = pool.acquire(sequence.hits)
        sequence.blocks += pool.allocate(own)
        sequence.computed = len(sequence.hits) * self.pool.block_size
        sequence.published = len(sequence.hits)
        if sequence.preemptions == 0:
            sequence.cached_tokens = sequence.computed
        else:
            self.recomputed_tokens += max(0, sequence.lost_tokens - sequence.computed)
        self._running.append(sequence)

    def _usable_hits(self, sequence: Sequence) -> int:
        if sequence.needs_prompt_scores:
            return 0  # what is not computed has no logits
        hits = self.pool.match(sequence.block_hashes)
        rest = sequence.prompt_length - hits * self.pool.block_size
        needs_logits = sequence.generated == 0
        return hits - 1 if hits and (rest == 1 or (rest == 0 and needs_logits)) else hits

    def schedule(self) -> Iterator[ScheduledStep]:
        """Steps that can start now, each on a lane that is busy until `complete` or `abandon`.

        A step is planned when the one before it has been taken.
        """
        for slot in self._lanes.ready(self._running):
            step = self._plan(slot.lane, slot.prompt_tokens)
            if step is not None:
                self._lanes.busy.add(slot.lane)
                yield step

    def _plan(self, lane: Lane, budget: int) -> ScheduledStep | None:
        free = sorted((s for s in self._running if not s.in_flight), key=lambda s: s.rank)
        entries: list[Entry] = []
        if lane is not Lane.PROMPTS:
            for sequence in free:
                if sequence.decodes and self._reserve(sequence, sequence.computed + 1):
                    entries.append(self._take(sequence, 1))
            entries = self._with_drafts(entries, lane)
        scorable = MAX_SCORED_TOKENS
        for sequence in free:
            if budget < 1:
                break
            if sequence.in_flight or sequence.decodes or sequence not in self._running:
                continue
            count = self._chunk(sequence, min(budget, scorable) if sequence.needs_prompt_scores else budget)
            if count and self._reserve(sequence, sequence.computed + count):
                entries.append(self._take(sequence, count))
                budget -= count
                scorable -= count if entries[-1].scored else 0
        if not entries:
            return None
        rows = tuple(row for entry in entries for row in self._rows(entry))
        return ScheduledStep(StepPlan(lane, rows), tuple(entries))

    def _with_drafts(self, entries: list[Entry], lane: Lane) -> list[Entry]:
        """Add guesses to sequences that decode, as far as they are worth it and blocks are free."""
        if self._speculator is None or not entries:
            return entries
        drafts = self._speculator.draft(
            [
                Candidate(s.token_ids, s.drafts, s.max_length - len(s.token_ids) - 1, s.generated)
                for s in (entry.sequence for entry in entries)
            ],
            alone=lane is Lane.ALL,
        )
        drafted = []
        for entry, draft in zip(entries, drafts, strict=True):
            sequence = entry.sequence
            missing = self.pool.blocks_for(sequence.computed + 1 + len(draft)) - len(sequence.blocks)
            if draft and self.pool.can_allocate(missing):
                sequence.blocks += self.pool.allocate(max(0, missing))
                drafted.append(replace(entry, draft=tuple(draft)))
            else:
                drafted.append(entry)
        return drafted

    def _chunk(self, sequence: Sequence, budget: int) -> int:
        rest = sequence.prompt_length - sequence.computed
        if rest > 0:
            return prompt_chunk(rest, budget)
        return max(0, min(len(sequence.token_ids) - sequence.computed, budget))

    @staticmethod
    def _take(sequence: Sequence, count: int) -> Entry:
        sequence.in_flight = True
        start, end = sequence.computed, sequence.computed + count
        # Of a prompt that is computed again after a preemption, the beginning has its scores.
        scores = sequence.needs_prompt_scores and end > len(sequence.prompt_places)
        scored = range(start + 1, min(end + 1, sequence.prompt_length)) if scores else range(0)
        return Entry(sequence, count, end == len(sequence.token_ids), scored=scored)

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Own blocks for so many tokens, taking them from lower ranks when there are none left."""
        if sequence not in self._running:
            return False
        missing = self.pool.blocks_for(tokens) - len(sequence.blocks)
        while not self.pool.can_allocate(missing):
            victim = self._victim(sequence)
            if victim is None:
                return False
            self.preempt(victim)
        sequence.blocks += self.pool.allocate(missing)
        return True

    def _victim(self, sequence: Sequence) -> Sequence | None:
        """The worst-ranked other sequence that no step is using, if it ranks below this one.

        Who finds no victim waits for those in flight. When nobody is in flight the best-ranked sequence finds
        one, for all others rank below it, so somebody always advances.
        """
        others = [s for s in self._running if not s.in_flight and s.rank > sequence.rank]
        return max(others, key=lambda s: s.rank, default=None)

    def preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks away; it waits in its old place and is recomputed exactly."""
        self._running.remove(sequence)
        self._release(sequence)
        sequence.lost_tokens = sequence.computed
        sequence.computed = 0
        sequence.published = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self.add(sequence)

    def _rows(self, entry: Entry) -> list[Row]:
        sequence, start, count = entry.sequence, entry.sequence.computed, entry.count
        tokens = [*sequence.token_ids[start : start + count], *entry.draft]
        blocks = sequence.blocks[: self.pool.blocks_for(start + len(tokens))]
        if start < sequence.prompt_length:
            return [Row(tokens, start, blocks, entry.samples, bool(entry.scored))]
        last = count - 1
        return [
            Row([token], start + i, blocks, entry.samples and i >= last) for i, token in enumerate(tokens)
        ]

    def complete(self, step: ScheduledStep) -> None:
        """Book a step that has run: its tokens are computed, and full blocks of prompts findable."""
        self._lanes.busy.discard(step.plan.lane)
        for entry in step.entries:
            sequence = entry.sequence
            sequence.in_flight = False
            sequence.computed += entry.count
            sequence.steps += 1
            self._publish(sequence)
            if sequence.finished:
                self._leave(sequence)

    def _publish(self, sequence: Sequence) -> None:
        if not self._options.prefix_cache:
            return
        length = len(sequence.token_ids) if self._options.reuse_generated else sequence.prompt_length
        # More may be computed than is known: guesses that were right, after a token that ended the text.
        full_blocks = min(sequence.computed, length) // self.pool.block_size
        if full_blocks > len(sequence.block_hashes):
            self._extend_hashes(sequence, sequence.token_ids[: full_blocks * self.pool.block_size])
        for index in range(sequence.published, full_blocks):
            self.pool.publish(sequence.blocks[index], sequence.block_hashes[index])
            sequence.published = index + 1

    def _extend_hashes(self, sequence: Sequence, token_ids: list[int]) -> None:
        known, salt = sequence.block_hashes, sequence.request.cache_salt
        rest = token_ids[len(known) * self.pool.block_size :]
        known += chain_hashes(rest, self.pool.block_size, salt, known[-1] if known else None)

    def abandon(self, step: ScheduledStep) -> list[Sequence]:
        """End all sequences of a step that failed, and say which they are."""
        self._lanes.busy.discard(step.plan.lane)
        failed = []
        for entry in step.entries:
            entry.sequence.in_flight = False
            if not entry.sequence.finished:
                failed.append(entry.sequence)
            self.remove(entry.sequence)
        return failed

    def _leave(self, sequence: Sequence) -> None:
        self._publish(sequence)
        self._running.remove(sequence)
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        if self._speculator is not None:
            self._speculator.forget(sequence.drafts)

    def check_integrity(self) -> None:
        """Compare sequences and pool.

        Raises:
            RuntimeError: anything that must never be, named.
        """
        self.pool.check_integrity(s.blocks for s in self._running)
        if self._speculator is not None:
            self._speculator.check_integrity(s.drafts for s in self._running)
        for sequence in self._waiting:
            if sequence.blocks or sequence.in_flight or sequence.finished:
                raise RuntimeError(f"waiting sequence {sequence.ordinal} owns blocks, runs or is finished")
        for sequence in self._running:
            if sequence.finished and not sequence.in_flight:
                raise RuntimeError(f"finished sequence {sequence.ordinal} still runs")
            if sequence.computed > len(sequence.blocks) * self.pool.block_size:
                raise RuntimeError(f"sequence {sequence.ordinal} has computed more than its blocks hold")
        if sorted(self._waiting, key=lambda s: s.rank) != self._waiting:
            raise RuntimeError("the waiting queue is out of order")
