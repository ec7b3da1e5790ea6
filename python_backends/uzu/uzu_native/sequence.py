"""One request's state inside the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from uzu_contract.errors import RequestError
from uzu_contract.logprobs import PromptLogprobs, TokenLogprobs
from uzu_contract.request import GenerateRequest
from uzu_contract.response import GenerateChunk
from uzu_native.penalties import LogitAdjustment
from uzu_native.sampler import Guide
from uzu_native.speculation import DraftHistory


class Listener(Protocol):
    """Who gets a request's output. Called on the engine's thread: hand over, do not work."""

    def on_chunk(self, chunk: GenerateChunk) -> None:
        """Take new output; the chunk with a finish reason is the last call."""

    def on_error(self, error: RequestError) -> None:
        """Take the reason why there will be no more output; the last call."""


class TextStream(Protocol):
    """Makes text of one request's tokens; `uzu_native.detokenizer.Detokenizer` is the real one."""

    @property
    def stop_reason(self) -> str | None:
        """The stop string that was met; no text comes after it."""

    def push(self, token_id: int) -> str:
        """Text that is certain now that this token is known."""

    def finish(self) -> str:
        """The text that was still held back."""


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one request, and how far the model has computed them.

    `token_ids` are the *known* tokens: the prompt, then what was generated. The first `computed` of them have
    keys and values in `blocks`. A sequence decodes when only its last known token is not computed.

    Args:
        ordinal: arrival order.
        request: what the client asked for.
        token_ids: known tokens.
        prompt_length: how many of them are the prompt.
        max_length: length at which generation ends.
        seed: what its choices by chance are keyed by.
        listener: who gets the output.
        text_stream: turns its tokens into text and finds stop strings.
        arrival_s: on the engine's clock, in seconds.
        rank: lower goes first. Its first part is the arrival plus a delay for each step of priority, in
            seconds, so a low priority is overtaken by those who come soon after, not by all who ever come.
        deadline_s: on the engine's clock; None for no deadline.
    """

    ordinal: int
    request: GenerateRequest
    token_ids: list[int]
    prompt_length: int
    max_length: int
    seed: int
    listener: Listener
    text_stream: TextStream
    arrival_s: float
    rank: tuple[float, int]
    deadline_s: float | None = None

    blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    hits: list[bytes] = field(default_factory=list)
    awaits: bytes | None = None
    computed: int = 0
    published: int = 0
    in_flight: bool = False
    finished: bool = False

    adjustment: LogitAdjustment | None = None
    guide: Guide | None = None
    drafts: DraftHistory = field(default_factory=DraftHistory)
    prompt_places: list[TokenLogprobs] = field(default_factory=list)
    steps: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    lost_tokens: int = 0
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    unsent_tokens: list[int] = field(default_factory=list)
    unsent_logprobs: list[TokenLogprobs] = field(default_factory=list)
    unsent_prompt: PromptLogprobs | None = None
    unsent_text: list[str] = field(default_factory=list)

    @property
    def generated(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.prompt_length

    @property
    def needs_prompt_scores(self) -> bool:
        """Whether it wants log-probabilities of its prompt, and some are missing."""
        wanted = self.request.prompt_logprob_count is not None
        return wanted and len(self.prompt_places) < self.prompt_length - 1

    @property
    def decodes(self) -> bool:
        """Whether its next step is the computation of its last known, generated token."""
        return self.generated > 0 and self.computed == len(self.token_ids) - 1
