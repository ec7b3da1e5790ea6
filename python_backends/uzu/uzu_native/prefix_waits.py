"""Lets a sequence wait while another computes the blocks that both begin with."""

from __future__ import annotations

from collections.abc import Iterable

from uzu_native.block_pool import BlockPool
from uzu_native.sequence import Sequence


class PrefixWaits:
    """The blocks of prompts that running sequences are about to compute, for one round of admission.

    Thousands may wait for the same prefix, in every round until it is computed. So what a sequence waits for
    is found once, down to the last block, and then looked up.
    """

    def __init__(self, running: Iterable[Sequence], pool: BlockPool) -> None:
        self._pool = pool
        self._priority_of: dict[bytes, int] = {}
        for sequence in sorted(running, key=lambda s: s.request.priority, reverse=True):
            coming = sequence.block_hashes[sequence.published :]
            self._priority_of.update(dict.fromkeys(coming, sequence.request.priority))

    def add(self, sequence: Sequence) -> None:
        """Another one runs."""
        priority = sequence.request.priority
        for block_hash in sequence.block_hashes[sequence.published :]:
            self._priority_of[block_hash] = min(priority, self._priority_of.get(block_hash, priority))

    def goes_on(self, sequence: Sequence) -> bool:
        """Whether what it waited for before is still being computed."""
        return sequence.awaits is not None and self._is_coming(sequence.awaits, sequence)

    def begins(self, sequence: Sequence) -> bool:
        """Whether it waits, since one of no lower priority is computing the block after its hits."""
        sequence.awaits = None
        for block_hash in sequence.block_hashes[len(sequence.hits) :]:
            if not self._is_coming(block_hash, sequence):
                break
            sequence.awaits = block_hash
        return sequence.awaits is not None

    def _is_coming(self, block_hash: bytes, sequence: Sequence) -> bool:
        priority = self._priority_of.get(block_hash)
        if priority is None or priority > sequence.request.priority:
            return False
        return not self._pool.match((block_hash,))
