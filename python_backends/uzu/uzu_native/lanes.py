"""Which lanes may start a step: all threads for one step, or half of them for decoding and half for prompts.

One step that everybody shares reads the weights once and uses every thread. But a prompt in it holds up all
that decode. So while some decode and prompts are more than fits beside them, decoding and prompts have
a lane each, which take steps on their own.

Unless the prompts are short and many: computing them together with all threads then saves those who wait for
a first token more time than it costs those who decode.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from uzu_native.options import EngineOptions
from uzu_native.sequence import Sequence
from uzu_native.step import Lane

CROWD = 0.5
"""Waiting prompts for each sequence that decodes, from which the prompts go first.

All threads compute a prompt in about half the time that half of them take. Decoding loses about a third of
its speed for all of that time, or nearly all of its speed for half of it: who decodes loses little more by
the second, and who waits saves half.
"""


@dataclass(frozen=True, slots=True)
class Slot:
    """A lane that may start a step.

    Args:
        lane: which.
        prompt_tokens: how many tokens of prompts may be in the step.
    """

    lane: Lane
    prompt_tokens: int


class Lanes:
    """Keeps the lanes that are busy and says which others may start."""

    def __init__(self, options: EngineOptions) -> None:
        self.busy: set[Lane] = set()
        self._split = options.lanes_are_split
        self._beside = options.prefill_tokens_beside_decode
        self._most = options.max_step_tokens

    def ready(self, running: Iterable[Sequence]) -> tuple[Slot, ...]:
        """Lanes that may start a step now."""
        if Lane.ALL in self.busy:
            return ()
        decoding = 0
        prompts: list[int] = []
        for sequence in running:
            if sequence.decodes:
                decoding += 1
            else:
                prompts.append(len(sequence.token_ids) - sequence.computed)
        if not decoding or self._is_crowd(decoding, prompts):
            slots = (Slot(Lane.ALL, self._most),)
        elif self._split and sum(prompts) > (0 if self.busy else self._beside):
            # Once apart, they stay apart until the prompts are done: going back means to wait for a lane.
            halves = (Slot(Lane.DECODES, 0), Slot(Lane.PROMPTS, self._most // 2))
            return tuple(slot for slot in halves if slot.lane not in self.busy)
        else:
            slots = (Slot(Lane.ALL, self._beside),)
        return () if self.busy else slots

    def _is_crowd(self, decoding: int, prompts: list[int]) -> bool:
        return len(prompts) >= CROWD * decoding and max(prompts) <= self._most
