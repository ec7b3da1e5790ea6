"""Owner of the KV blocks: who uses which, and which hold a known prefix.

A full block that later prompts may use is published under a hash that chains its tokens to all that precede
them (as in vLLM's automatic prefix caching). A published block that nobody uses stays findable until its
memory is needed; the least recently used goes first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence

import numpy as np


def chain_hashes(
    token_ids: Sequence[int], block_size: int, salt: str, previous: bytes | None = None
) -> list[bytes]:
    """Hashes of all full blocks of `token_ids`.

    A block's hash covers the salt, every token before it and its own, so equal hashes mean equal prefixes.
    `previous` is the hash of the block before the first, None at the beginning of a sequence.
    """
    hashes = []
    if previous is None:
        previous = hashlib.blake2b(salt.encode(), digest_size=16).digest()
    for begin in range(0, len(token_ids) - block_size + 1, block_size):
        tokens = np.asarray(token_ids[begin : begin + block_size], np.int64).tobytes()
        previous = hashlib.blake2b(previous + tokens, digest_size=16).digest()
        hashes.append(previous)
    return hashes


class BlockPool:
    """Reference counts, free list and prefix index of `block_count` blocks of `block_size` tokens."""

    def __init__(self, block_count: int, block_size: int) -> None:
        self.block_count = block_count
        self.block_size = block_size
        self._references = [0] * block_count
        self._free: deque[int] = deque(range(block_count))
        self._idle_cached: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Blocks that can be allocated now, among them cached ones that nobody uses."""
        return len(self._free) + len(self._idle_cached)

    @property
    def used(self) -> int:
        """Blocks that some sequence owns."""
        return self.block_count - self.available

    @property
    def cached(self) -> int:
        """Blocks that are findable by their prefix."""
        return len(self._hash_of)

    def count_unshared(self, blocks: Iterable[int]) -> int:
        """How many of these blocks would become available if their owner gave them back."""
        return sum(self._references[block] == 1 for block in blocks)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold so many tokens."""
        return -(-tokens // self.block_size)

    def can_allocate(self, count: int) -> bool:
        """Whether `allocate(count)` would succeed."""
        return count <= self.available

    def allocate(self, count: int) -> list[int]:
        """Take blocks, forgetting the least recently used cached prefixes when no other is free.

        Raises:
            ValueError: fewer than `count` are available (ask `can_allocate` first).
        """
        if not self.can_allocate(count):
            raise ValueError(f"{count} blocks asked for, {self.available} available")
        return [self._take() for _ in range(count)]

    def _take(self) -> int:
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._idle_cached.popitem(last=False)
            del self._block_of[self._hash_of.pop(block)]
        self._references[block] = 1
        return block

    def release(self, blocks: Iterable[int]) -> None:
        """Give back one reference to each block.

        Raises:
            ValueError: a block that nobody owns.
        """
        # The end of a prefix goes first: without it, the beginning is still of use.
        for block in reversed(list(blocks)):
            if self._references[block] < 1:
                raise ValueError(f"block {block} is not owned")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._hash_of:
                    self._idle_cached[block] = None
                else:
                    self._free.append(block)

    def publish(self, block: int, prefix_hash: bytes) -> None:
        """Make an owned, full block findable. The first block with a hash keeps it."""
        if self._references[block] < 1:
            raise ValueError(f"block {block} is not owned")
        if prefix_hash not in self._block_of and block not in self._hash_of:
            self._block_of[prefix_hash] = block
            self._hash_of[block] = prefix_hash

    def match(self, hashes: Sequence[bytes]) -> int:
        """How many of the leading hashes are cached."""
        count = 0
        while count < len(hashes) and hashes[count] in self._block_of:
            count += 1
        return count

    def idle_among(self, hashes: Sequence[bytes]) -> int:
        """How many of these cached hashes' blocks are idle, and so counted in `available`."""
        return sum(self._block_of[h] in self._idle_cached for h in hashes)

    def acquire(self, hashes: Sequence[bytes]) -> list[int]:
        """Take a reference to each of these cached blocks.

        Raises:
            KeyError: a hash that is not cached (ask `match` first).
        """
        blocks = [self._block_of[h] for h in hashes]
        for block in blocks:
            self._idle_cached.pop(block, None)
            self._references[block] += 1
        return blocks

    def forget(self) -> None:
        """Forget every prefix, since the memory's content is lost.

        Raises:
            ValueError: somebody owns a block.
        """
        if self.used:
            raise ValueError(f"{self.used} blocks are owned")
        self._free.extend(self._idle_cached)
        for books in (self._idle_cached, self._hash_of, self._block_of):
            books.clear()

    def check_integrity(self, owners: Iterable[Iterable[int]]) -> None:
        """Compare the books with what sequences say they own.

        Raises:
            RuntimeError: a block that is leaked, owned twice or in two lists.
        """
        counted = [0] * self.block_count
        for blocks in owners:
            for block in blocks:
                counted[block] += 1
        if counted != self._references:
            wrong = [b for b in range(self.block_count) if counted[b] != self._references[b]]
            raise RuntimeError(f"blocks {wrong[:10]}: owners and reference counts disagree")
        idle = sorted([*self._free, *self._idle_cached])
        if idle != [b for b in range(self.block_count) if not counted[b]]:
            raise RuntimeError("the free lists are not the blocks without an owner")
        if {b: h for h, b in self._block_of.items()} != self._hash_of:
            raise RuntimeError("the prefix index does not match the blocks' hashes")
        if any(b not in self._hash_of for b in self._idle_cached):
            raise RuntimeError("an idle cached block has no hash")
