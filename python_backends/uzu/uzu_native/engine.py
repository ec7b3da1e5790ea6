"""The loop: takes requests, keeps the lanes busy, turns logits into tokens and tokens into output.

One thread owns all state. Everything else reaches it through a mailbox: `submit` and `cancel` from any
thread, and the executor's word that a lane is done. After a lane's step the next one is started first and
text is made afterwards, so detokenizing and sending overlap with the model's work.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep

import numpy as np
from numpy.typing import NDArray

from uzu_contract.errors import ErrorCode, RequestError, invalid
from uzu_contract.logprobs import PromptLogprobs
from uzu_contract.priority import PriorityClass
from uzu_contract.request import GenerateRequest
from uzu_native.bad_words import encode_words
from uzu_native.block_pool import BlockPool
from uzu_native.drawing import draw_step
from uzu_native.errors import EngineStoppedError
from uzu_native.executor import ExecutionError, Executor
from uzu_native.idle_sleep import WAKE_FAILED_MESSAGE, IdleSleep
from uzu_native.limits import longest_sequence
from uzu_native.metrics import EngineMetrics
from uzu_native.options import EngineOptions
from uzu_native.output import Ending, ending_of, write_output
from uzu_native.penalties import LogitAdjustment
from uzu_native.sampler import Guide
from uzu_native.scheduler import ScheduledStep, Scheduler
from uzu_native.scores import Scores
from uzu_native.sequence import Listener, Sequence, TextStream
from uzu_native.speculation import Speculator
from uzu_native.step import Lane


@dataclass(frozen=True, slots=True)
class _Submitted:
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class _Cancelled:
    ordinal: int


@dataclass(frozen=True, slots=True)
class _LaneDone:
    lane: Lane


@dataclass(frozen=True, slots=True)
class _Loaded:
    error: Exception | None


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Sampled = tuple[Sequence, list[int], list[Scores]]
"""Whose tokens, the tokens, and their log-probabilities where they are wanted."""

_Mail = _Submitted | _Cancelled | _LaneDone | _Loaded | _Stop


FAULT_MESSAGE = "the engine failed; see the server's log"
LONGEST_WAIT_S = 60.0
"""The loop looks around at least so often, and never hands the queue a time that it cannot hold."""


class Engine:
    """Continuous batching over an executor.

    Args:
        executor: runs the model.
        options: limits and sizes.
        end_token_ids: tokens that end a text.
        context_tokens: longest prompt plus output.
        make_text_stream: makes a request's text stream out of its stop strings.
        token_bytes: how a token is written, for log-probabilities.
        encode_word: a text's tokens and nothing before them, for `bad_words`.
        draw_seed: the seed of a request that names none.
        clock: seconds, monotonic.
        on_fault: told of faults that are the engine's own, not a request's.
        speculator: guesses tokens; None computes one token a step for each request.
    """

    def __init__(
        self,
        executor: Executor,
        options: EngineOptions,
        *,
        end_token_ids: frozenset[int],
        context_tokens: int,
        make_text_stream: Callable[[tuple[str, ...]], TextStream],
        token_bytes: Callable[[int], bytes],
        encode_word: Callable[[str], list[int]],
        draw_seed: Callable[[], int],
        clock: Callable[[], float] = monotonic,
        on_fault: Callable[[BaseException], None],
        speculator: Speculator | None = None,
    ) -> None:
        self.metrics = EngineMetrics(kv_blocks_total=executor.block_count)
        self.context_tokens = context_tokens
        self._executor = executor
        self._options = options
        self._end_token_ids = end_token_ids
        self._make_text_stream = make_text_stream
        self._token_bytes = token_bytes
        self._encode_word = encode_word
        self._draw_seed = draw_seed
        self._clock = clock
        self._on_fault = on_fault
        pool = BlockPool(executor.block_count, executor.block_size)
        self._speculator = speculator
        self._scheduler = Scheduler(pool, options, speculator)
        self._mailbox: queue.SimpleQueue[_Mail] = queue.SimpleQueue()
        self._sleep = IdleSleep(
            executor,
            options.sleep_after_s,
            clock,
            pool.forget,
            lambda error: self._mailbox.put(_Loaded(error)),
            None if speculator is None else speculator.draft_model,
        )
        self._live: dict[int, Sequence] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._in_flight: dict[Lane, tuple[ScheduledStep, float]] = {}
        self._ordinal = 0
        self._submit_lock = threading.Lock()
        self._stopping = False
        self._is_unchecked = False
        self._known_disorder = ""
        self._thread: threading.Thread | None = None

    # Called from any thread

    def submit(
        self,
        request: GenerateRequest,
        prompt_ids: list[int],
        listener: Listener,
        guide: Guide | None = None,
    ) -> int:
        """Queue a request; its output goes to the listener. Returns the ticket that `cancel` takes.

        Args:
            request: what the client asked for.
            prompt_ids: its prompt's tokens.
            listener: who gets the output.
            guide: keeps its tokens to what `structured_outputs` says; nobody else uses it from now on.

        Raises:
            RequestError: prompt, or prompt plus `max_tokens`, longer than the context or the KV pool; a bias
                for a token that the model does not have; a bad word without tokens.
            EngineStoppedError: after `stop`.
        """
        limit = min(self.context_tokens, self._executor.block_count * self._executor.block_size)
        max_length = longest_sequence(len(prompt_ids), request.sampling.max_tokens, limit)
        now = self._clock()
        sampling = request.sampling
        seed = self._draw_seed() if sampling.seed is None else sampling.seed
        if sampling.logit_bias and sampling.logit_bias[-1][0] >= self._executor.vocabulary_size:
            last = self._executor.vocabulary_size - 1
            message = f"names token {sampling.logit_bias[-1][0]}; the model's last token is {last}"
            raise invalid("logit_bias", message)
        bad_words = encode_words(sampling.bad_words, self._encode_word, self._executor.vocabulary_size)
        token_ids = list(prompt_ids)
        with self._submit_lock:
            if self._stopping:
                raise EngineStoppedError("the engine has been stopped")
            self._ordinal += 1
            sequence = Sequence(
                ordinal=self._ordinal,
                request=request,
                token_ids=token_ids,
                prompt_length=len(prompt_ids),
                max_length=max_length,
                seed=seed % 2**64,
                listener=listener,
                text_stream=self._make_text_stream(sampling.stop),
                arrival_s=now,
                rank=(now + request.priority * self._options.priority_step_ms / 1000, self._ordinal),
                deadline_s=None if request.deadline_ms is None else now + request.deadline_ms / 1000,
                adjustment=LogitAdjustment.of(sampling, token_ids, len(token_ids), bad_words),
                guide=guide,
            )
            self._mailbox.put(_Submitted(sequence))
        return sequence.ordinal

    def cancel(self, ticket: int) -> None:
        """End a request; its blocks are free within one step. Unknown and finished tickets are ignored."""
        self._mailbox.put(_Cancelled(ticket))

    def start(self) -> None:
        """Run the loop in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="uzu-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all requests with `SHUTTING_DOWN`, wait for the steps in flight and free the model."""
        with self._submit_lock:
            self._stopping = True
        self._mailbox.put(_Stop())
        if self._thread is not None:
            self._thread.join()
        else:
            self._run()
        self._executor.release()
        if self._speculator is not None and self._speculator.draft_model is not None:
            self._speculator.draft_model.release()

    def run_until_idle(self) -> None:
        """Work in the calling thread until nothing is left to do (for tests and benchmarks)."""
        while not self._mailbox.empty() or self._scheduler.has_work:
            if self._mailbox.empty() and not self._in_flight and not self._sleep.is_waking:
                raise RuntimeError("work is left, and nothing of it can be scheduled")
            self._turn()

    def check_integrity(self) -> None:
        """Check all books; only while the engine is idle or from its own thread.

        Raises:
            RuntimeError: see `Scheduler.check_integrity`; or a request is scheduled that nobody waits for, or
                the other way round.
        """
        scheduler = self._scheduler
        scheduler.check_integrity()
        scheduled = {s.ordinal for s in (*scheduler.waiting, *scheduler.running) if not s.finished}
        if scheduled != self._live.keys():
            raise RuntimeError(
                f"requests {sorted(scheduled ^ self._live.keys())[:10]}: scheduled or live only"
            )

    # The engine's thread

    def _run(self) -> None:
        faults = 0
        while not self._stopping or self._in_flight or self._sleep.is_waking or not self._mailbox.empty():
            try:
                self._turn()
                faults = 0
            except Exception as error:  # the loop must outlive any single fault
                faults += 1
                self._on_fault(error)
                self._fail_all(ErrorCode.ENGINE_FAILED, FAULT_MESSAGE)
                # A fault that comes back at once must not fill the log.
                sleep(min(1.0, 0.01 * 2**faults))

    def _turn(self) -> None:
        """Wait for news, act on all of it, and put idle lanes to work."""
        try:
            self._handle(self._mailbox.get(timeout=self._patience_s()))
            while True:
                self._handle(self._mailbox.get_nowait())
        except queue.Empty:
            pass
        self._expire()
        self._launch()
        if self._options.check_integrity:
            self._check_when_idle()

    def _check_when_idle(self) -> None:
        """Report disorder, each kind once, and serve on: whether to reload is for people to decide."""
        if self._live or self._in_flight or not self._is_unchecked:
            return
        self._is_unchecked = False
        try:
            self.check_integrity()
        except RuntimeError as error:
            if str(error) != self._known_disorder:
                self._known_disorder = str(error)
                self._on_fault(RuntimeError(f"the engine's books are wrong; reload the model: {error}"))

    def _handle(self, mail: _Mail) -> None:
        match mail:
            case _Submitted(sequence):
                self._accept(sequence)
            case _Cancelled(ordinal):
                if ordinal in self._live:
                    self._end(self._live[ordinal], "cancelled")
            case _LaneDone(lane):
                self._collect(lane)
            case _Loaded(error):
                self._sleep.loaded(error)
                if error is not None:
                    self._on_fault(error)
                    self._fail_all(ErrorCode.ENGINE_FAILED, WAKE_FAILED_MESSAGE)
            case _Stop():
                self._fail_all(ErrorCode.SHUTTING_DOWN, "the model is being unloaded")

    def _accept(self, sequence: Sequence) -> None:
        if self._stopping:
            self._refuse(sequence, ErrorCode.SHUTTING_DOWN, "the model is being unloaded")
        elif self._scheduler.is_full and self._scheduler.queue_length >= self._options.max_waiting:
            message = f"{self._scheduler.queue_length} requests are waiting already"
            self._refuse(sequence, ErrorCode.OVERLOADED, message)
        else:
            self._live[sequence.ordinal] = sequence
            self._is_unchecked = True
            self._scheduler.add(sequence)
            if sequence.deadline_s is not None:
                heapq.heappush(self._deadlines, (sequence.deadline_s, sequence.ordinal))
                self._forget_old_deadlines()

    def _forget_old_deadlines(self) -> None:
        """A deadline may be days away and its request long over, so most of them are kept for nobody."""
        if len(self._deadlines) > 2 * len(self._live) + 64:
            self._deadlines = [d for d in self._deadlines if d[1] in self._live]
            heapq.heapify(self._deadlines)

    def _launch(self) -> None:
        """Start every step that can start now."""
        if self._sleep.attend(busy=bool(self._live or self._in_flight)):
            self._launch_awake()
        self._observe()

    def _launch_awake(self) -> None:
        now = self._clock()
        for sequence in self._scheduler.admit():
            if sequence.admitted_s is None:
                sequence.admitted_s = now
                self.metrics.queue_seconds.observe(now - sequence.arrival_s)
                self.metrics.prompt_tokens += sequence.prompt_length
                self.metrics.cached_tokens += sequence.cached_tokens
        for step in self._scheduler.schedule():
            self._start(step)

    def _start(self, step: ScheduledStep) -> None:
        lane = step.plan.lane
        self._in_flight[lane] = (step, self._clock())
        try:
            self._executor.start(step.plan, self._lane_done)
        except Exception as error:  # the lane is not running: nobody would take the step back
            del self._in_flight[lane]
            self._abandon(step, error)

    def _abandon(self, step: ScheduledStep, error: BaseException) -> None:
        self._on_fault(error)
        for sequence in self._scheduler.abandon(step):
            self._refuse(sequence, ErrorCode.ENGINE_FAILED, FAULT_MESSAGE)

    def _lane_done(self, lane: Lane) -> None:
        self._mailbox.put(_LaneDone(lane))

    def _collect(self, lane: Lane) -> None:
        """Take a finished step: next tokens first, the lane's next step second, text last."""
        step, started_s = self._in_flight.pop(lane)
        self.metrics.step_seconds.observe(self._clock() - started_s)
        try:
            logits = self._executor.finish(lane)
        except ExecutionError as error:
            self._abandon(step, error)
            return
        self._scheduler.complete(step)
        sampled = self._sample(logits, step)
        endings = [self._append(sequence, tokens) for sequence, tokens, _ in sampled]
        self._launch()
        for sequence, _, _ in sampled:
            if sequence.guide is not None and not sequence.finished:
                sequence.guide.prepare()
        for (sequence, tokens, scores), appended in zip(sampled, endings, strict=True):
            # Starting the next step may have failed it.
            if sequence.ordinal in self._live:
                self._write(sequence, tokens, scores, appended)

    def _sample(self, logits: NDArray[np.float32], step: ScheduledStep) -> list[_Sampled]:
        sampled: list[_Sampled] = []
        for drawn in draw_step(logits, step, self._end_token_ids):
            sequence, tokens, guesses = drawn.entry.sequence, drawn.tokens, len(drawn.entry.draft)
            sequence.prompt_places += [scores.spelled(self._token_bytes) for scores in drawn.prompt_scores]
            if not drawn.entry.samples:
                continue
            if isinstance(tokens, RequestError):
                self._refuse(sequence, tokens.code, tokens.message, tokens.param)
                continue
            if isinstance(tokens, Exception):
                self._on_fault(tokens)
                self._refuse(sequence, ErrorCode.ENGINE_FAILED, FAULT_MESSAGE)
                continue
            if guesses:
                kind = sequence.drafts.record(guesses, len(tokens) - 1)
                self.metrics.drafted_tokens[kind] += guesses
                self.metrics.accepted_tokens[kind] += len(tokens) - 1
            if sequence.generated == 0 and sequence.request.prompt_logprob_count is not None:
                first = sequence.token_ids[0]
                places = tuple(sequence.prompt_places)
                sequence.unsent_prompt = PromptLogprobs(first, self._token_bytes(first), places)
            sampled.append((sequence, tokens, drawn.scores))
        return sampled

    def _append(self, sequence: Sequence, tokens: list[int]) -> Ending | None:
        """Add tokens up to one that is the last, and then end the sequence for the scheduler.

        The tokens but the newest were guessed right, so their keys and values are in place.
        """
        sequence.computed += len(tokens) - 1
        ending = None
        for count, token in enumerate(tokens, 1):
            sequence.token_ids.append(token)
            is_newest = count == len(tokens)
            completes = is_newest and sequence.guide is not None and sequence.guide.is_complete
            ending = ending_of(sequence, self._end_token_ids, completes)
            if ending is not None:
                del tokens[count:]
                self._scheduler.remove(sequence)
                break
        self._time(sequence, len(tokens))
        return ending

    def _time(self, sequence: Sequence, tokens: int) -> None:
        now = self._clock()
        if sequence.first_token_s is None:
            sequence.first_token_s = now
            self.metrics.time_to_first_token_seconds.observe(now - sequence.arrival_s)
        else:
            self.metrics.inter_token_seconds.observe((now - sequence.last_token_s) / tokens, tokens)
        sequence.last_token_s = now

    def _write(
        self, sequence: Sequence, tokens: list[int], scores: list[Scores], appended: Ending | None
    ) -> None:
        """Tell the listener of new tokens, up to one that completes a stop string."""
        last = len(tokens) - 1
        for index, token in enumerate(tokens):
            self.metrics.generated_tokens += 1
            logprobs = scores[index].spelled(self._token_bytes) if scores else None
            ending = write_output(sequence, token, appended if index == last else None, logprobs)
            if ending is not None:
                self._end(sequence, ending.reason)
                return

    def _end(self, sequence: Sequence, reason: str) -> None:
        """Forget a sequence; the scheduler frees its blocks now or when the step in flight is over."""
        del self._live[sequence.ordinal]
        self.metrics.requests_finished[reason] += 1
        if not sequence.finished:
            self._scheduler.remove(sequence)

    def _refuse(self, sequence: Sequence, code: ErrorCode, message: str, param: str | None = None) -> None:
        if self._live.pop(sequence.ordinal, None) is not None and not sequence.finished:
            self._scheduler.remove(sequence)
        self.metrics.requests_finished[code] += 1
        sequence.listener.on_error(RequestError(code, message, param))

    def _fail_all(self, code: ErrorCode, message: str) -> None:
        for sequence in tuple(self._live.values()):
            self._refuse(sequence, code, message)
        self._deadlines.clear()

    def _patience_s(self) -> float | None:
        patience_s = self._sleep.due_in_s
        if self._deadlines:
            until_s = max(0.0, self._deadlines[0][0] - self._clock())
            patience_s = until_s if patience_s is None else min(patience_s, until_s)
        return None if patience_s is None else min(LONGEST_WAIT_S, patience_s)

    def _expire(self) -> None:
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            _, ordinal = heapq.heappop(self._deadlines)
            if ordinal in self._live:
                message = "uzu_deadline_ms passed before the answer was complete"
                self._refuse(self._live[ordinal], ErrorCode.DEADLINE_EXCEEDED, message)

    def _observe(self) -> None:
        scheduler, metrics = self._scheduler, self.metrics
        metrics.asleep = int(not self._sleep.is_awake)
        metrics.requests_running = len(scheduler.running)
        classes = Counter(dict.fromkeys(map(str, PriorityClass), 0))
        for priority, count in Counter(s.request.priority for s in scheduler.waiting).items():
            classes[str(PriorityClass.of(priority))] += count
        metrics.requests_waiting = classes
        metrics.kv_blocks_used = scheduler.pool.used
        metrics.kv_blocks_cached = scheduler.pool.cached
        metrics.preemptions = scheduler.preemptions
        metrics.recomputed_tokens = scheduler.recomputed_tokens
        if self._speculator is not None:
            metrics.draft_failures = self._speculator.draft_failures
