"""Which lanes may start a step: all threads for one step, or half of them for decoding and half for prompts.

One step that everybody shares reads the weights once and uses every thread. But a prompt in it holds up all
that decode. So while some decode and prompts are more than fits beside them, decoding and prompts have
a lane each, which take steps on their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from uzu_native.sequence import Sequence
from uzu_native.step import Lane


class Lanes:
    """Keeps the lanes that are busy and says which others may start.

    Args:
        split: whether there are halves; else there is only `Lane.ALL`.
        prompt_tokens_beside: so many prompt tokens are left to a step that also decodes.
    """

    def __init__(self, split: bool, prompt_tokens_beside: int) -> None:
        self.busy: set[Lane] = set()
        self._split = split
        self._prompt_tokens_beside = prompt_tokens_beside

    def ready(self, running: Iterable[Sequence]) -> tuple[Lane, ...]:
        """Lanes that may start a step now."""
        if Lane.ALL in self.busy:
            return ()
        if self._split:
            decode, prompt_tokens = False, 0
            for sequence in running:
                if sequence.decodes:
                    decode = True
                else:
                    prompt_tokens += len(sequence.token_ids) - sequence.computed
            # Once apart, they stay apart until the prompts are done: going back means to wait for a lane.
            if decode and prompt_tokens > (0 if self.busy else self._prompt_tokens_beside):
                return tuple(lane for lane in (Lane.DECODES, Lane.PROMPTS) if lane not in self.busy)
        return () if self.busy else (Lane.ALL,)
