"""A smaller model that writes on for sequences, greedily, to guess what the large one will say.

It has an executor and blocks of its own, and computes of each sequence what it has not seen when it is asked:
after a prompt, after guesses that were refused, after a preemption. Leviathan et al., "Fast Inference from
Transformers via Speculative Decoding" (arXiv:2211.17192), with a verification that keeps the tokens the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from uzu_native.block_pool import BlockPool
from uzu_native.executor import Executor
from uzu_native.step import Lane, Row, StepPlan
from uzu_native.step_costs import StepCosts

CATCH_UP_TOKENS = 256
"""Most tokens that are computed at one time beside those of a usual step: the target's step waits for it."""


@dataclass(slots=True, eq=False)
class DraftContext:
    """What the draft model keeps of one sequence.

    Args:
        blocks: its blocks, in the draft model's pool.
        computed: how many of the sequence's first tokens have keys and values there.
        guessed: guesses whose keys and values follow those tokens.
        failed: whether the model failed on it; it is not asked again.
    """

    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    guessed: list[int] = field(default_factory=list)
    failed: bool = False


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A sequence to write on for, by at most `count` tokens."""

    context: DraftContext
    token_ids: Sequence[int]
    count: int


class DraftModel:
    """Drafts for many sequences at a time, in the calling thread.

    Args:
        executor: runs the draft model.
        costs: of its steps.
        vocabulary_size: of the target; other tokens are never guessed.
        context_tokens: longest sequence that it can follow.
        on_fault: told of the first failure.
    """

    def __init__(
        self,
        executor: Executor,
        costs: StepCosts,
        vocabulary_size: int,
        context_tokens: int,
        on_fault: Callable[[BaseException], None],
    ) -> None:
        self.costs = costs
        self.failures = 0
        self._executor = executor
        self._pool = BlockPool(executor.block_count, executor.block_size)
        self._vocabulary_size = vocabulary_size
        self._context_tokens = context_tokens
        self._on_fault = on_fault

    def can_follow(self, context: DraftContext, token_ids: Sequence[int]) -> bool:
        """Whether it could draft a token for the sequence, now or after some catching up."""
        missing = self._pool.blocks_for(len(token_ids) + 1) - len(context.blocks)
        fits = len(token_ids) < self._context_tokens and self._pool.can_allocate(max(0, missing))
        return fits and not context.failed

    def unseen(self, context: DraftContext, token_ids: Sequence[int]) -> int:
        """How many of the tokens it would have to compute before it can draft."""
        return len(token_ids) - self._agreed(context, token_ids)

    def draft(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        """Guesses for each, none for those that are still catching up or that there are no blocks for.

        A failure ends drafting for the sequences that it hit, and nothing else.
        """
        drafts: list[list[int]] = [[] for _ in requests]
        waves = self._reserve(requests)
        if waves:
            try:
                self._run(requests, waves, drafts)
            except Exception as error:  # whatever it is, the target does not need the draft
                self._fail([requests[i].context for i in waves], error)
                return [[] for _ in requests]
        return drafts

    def forget(self, context: DraftContext) -> None:
        """Free a sequence's blocks; if it is asked for again, it is computed from the beginning."""
        self._pool.release(context.blocks)
        context.blocks = []
        context.computed = 0
        context.guessed = []

    def check_integrity(self, contexts: Iterable[DraftContext]) -> None:
        """Compare the block pool with those who own blocks.

        Raises:
            RuntimeError: see `BlockPool.check_integrity`.
        """
        self._pool.check_integrity(context.blocks for context in contexts)

    def release(self) -> None:
        """Free the model's memory. No sequence may be followed."""
        self._executor.release()

    def restore(self) -> None:
        """Undo `release`. If that fails, so do all drafts from now on, and nothing else."""
        try:
            self._executor.restore()
        except Exception as error:  # whatever it is, the target does not need the draft
            self._on_fault(error)

    def _agreed(self, context: DraftContext, token_ids: Sequence[int]) -> int:
        """How many of the tokens are computed. The last is left over, for its logits are wanted."""
        agreed = context.computed
        for guess in context.guessed:
            if agreed >= len(token_ids) or token_ids[agreed] != guess:
                break
            agreed += 1
        return min(agreed, len(token_ids) - 1)

    def _reserve(self, requests: Sequence[DraftRequest]) -> dict[int, int]:
        """Blocks and a share of the tokens that may be computed now, for as many as possible.

        Returns how many tokens to compute, by index of the request.
        """
        budget = CATCH_UP_TOKENS + len(requests)
        shares: dict[int, int] = {}
        unseen = [self.unseen(r.context, r.token_ids) for r in requests]
        for index in sorted(range(len(requests)), key=unseen.__getitem__):
            request = requests[index]
            length = min(len(request.token_ids) + request.count - 1, self._context_tokens)
            missing = max(0, self._pool.blocks_for(length) - len(request.context.blocks))
            share = min(unseen[index], budget)
            if share < 1 or not self._pool.can_allocate(missing):
                continue
            request.context.blocks += self._pool.allocate(missing)
            request.context.computed = len(request.token_ids) - unseen[index]
            request.context.guessed = []
            shares[index] = share
            budget -= share
        return shares

    def _run(self, requests: Sequence[DraftRequest], shares: dict[int, int], drafts: list[list[int]]) -> None:
        rows = []
        writing = []
        for index, share in shares.items():
            request, context = requests[index], requests[index].context
            end = context.computed + share
            catches_up = end == len(request.token_ids)
            tokens = list(request.token_ids[context.computed : end])
            rows.append(self._row(context, tokens, context.computed, catches_up))
            context.computed = end
            if catches_up:
                writing.append(index)
        while rows:
            best = self._step(rows)
            for index, token in zip(writing, best, strict=True):
                drafts[index].append(token)
            writing = [i for i in writing if self._goes_on(requests[i], drafts[i])]
            rows = []
            for index in writing:
                context, token = requests[index].context, drafts[index][-1]
                rows.append(self._row(context, [token], context.computed + len(context.guessed), True))
                context.guessed.append(token)

    def _goes_on(self, request: DraftRequest, draft: list[int]) -> bool:
        length = len(request.token_ids) + len(draft)
        return len(draft) < request.count and length < self._context_tokens

    def _row(self, context: DraftContext, tokens: list[int], start: int, wants_logits: bool) -> Row:
        blocks = context.blocks[: self._pool.blocks_for(start + len(tokens))]
        return Row(tokens, start, blocks, wants_logits)

    def _step(self, rows: list[Row]) -> list[int]:
        """The likeliest token after each row that wants one."""
        done = threading.Event()
        self._executor.start(StepPlan(Lane.ALL, tuple(rows)), lambda lane: done.set())  # noqa: ARG005
        done.wait()
        logits: NDArray[np.float32] = self._executor.finish(Lane.ALL)
        return [int(token) for token in logits[:, : self._vocabulary_size].argmax(axis=1)]

    def _fail(self, contexts: list[DraftContext], error: BaseException) -> None:
        if not self.failures:
            self._on_fault(error)
        self.failures += len(contexts)
        for context in contexts:
            self.forget(context)
            context.failed = True
