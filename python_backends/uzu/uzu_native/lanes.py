"""Which lane a sequence runs in.

Sequences are spread evenly, with one exception: while some decode, a long prompt gets a lane to itself, and
the sequences that decode move to the others. They share a step with more neighbours there, which costs
little; beside the prompt they would wait for each of its chunks.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from uzu_native.sequence import Sequence


class Lanes:
    """Placement over `count` lanes.

    Args:
        count: how many there are.
        long_prompt_tokens: from so many prompt tokens left to compute, a sequence counts as long.
    """

    def __init__(self, count: int, long_prompt_tokens: int) -> None:
        self.count = count
        self._long_prompt_tokens = long_prompt_tokens

    def is_long(self, sequence: Sequence) -> bool:
        """Whether it has a long prompt to compute."""
        return sequence.prompt_length - sequence.computed >= self._long_prompt_tokens

    def choose(self, sequence: Sequence, running: Items[Sequence]) -> int:
        """A lane for a sequence that is about to run."""
        loads = self._loads(running)
        long = {s.lane for s in running if self.is_long(s)}
        free = [lane for lane in range(self.count) if lane not in long]
        if not self.is_long(sequence):
            return min(free or range(self.count), key=lambda lane: loads[lane])
        lanes = list(range(self.count))
        if len(free) == 1 and any(s.decodes for s in running):
            # The last lane without a long prompt is left to those that decode.
            lanes.remove(free[0])
        longs = [sum(s.lane == lane and self.is_long(s) for s in running) for lane in range(self.count)]
        return min(lanes or free, key=lambda lane: (longs[lane], loads[lane]))

    def share_out(self, lane: int, running: Items[Sequence]) -> None:
        """Hand sequences of an idle lane to others: all that decode if it has a long prompt."""
        long = {s.lane for s in running if self.is_long(s)}
        free = [other for other in range(self.count) if other not in long]
        movable = [s for s in running if s.lane == lane and not s.in_flight]
        if lane in long:
            surplus = [s for s in movable if s.decodes] if free else []
        else:
            loads = self._loads(running)
            surplus = movable[len(movable) - (loads[lane] - min(loads[other] for other in free)) // 2 :]
        for sequence in surplus:
            loads = self._loads(running)
            sequence.lane = min(free, key=lambda other: loads[other])

    def _loads(self, running: Items[Sequence]) -> list[int]:
        loads = [0] * self.count
        for sequence in running:
            loads[sequence.lane] += 1
        return loads
