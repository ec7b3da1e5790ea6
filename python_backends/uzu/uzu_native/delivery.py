"""Carries output from the engine to the clients, and the clients' departure to the engine.

Sending blocks until the server has taken a response, so it has a thread of its own. What the engine produces
meanwhile is joined: a client, or a server, that falls behind gets fewer and longer responses.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from uzu_contract.errors import ErrorCode, RequestError
from uzu_contract.response import GenerateChunk


class ResponsePort(Protocol):
    """One client's end. Its methods are never called at the same time, and none after a final response.

    Both matter: Triton 2.51 frees what `is_cancelled` looks at as soon as a final response is sent, and the
    whole server crashes when the two meet.
    """

    def send_chunk(self, chunk: GenerateChunk, final: bool) -> None:
        """Send output."""

    def send_error(self, error: RequestError) -> None:
        """Send the reason why there is no more output, as the final response."""

    def send_end(self) -> None:
        """Close without a response: nobody reads it."""

    def is_cancelled(self) -> bool:
        """Whether the client has gone."""


def join_chunks(chunks: Sequence[GenerateChunk]) -> GenerateChunk:
    """One chunk that says what these consecutive chunks of one choice say."""
    last = chunks[-1]
    if len(chunks) == 1:
        return last
    return replace(
        last,
        text="".join(chunk.text for chunk in chunks),
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=(
            None
            if last.logprobs is None
            else tuple(place for chunk in chunks for place in chunk.logprobs or ())
        ),
        prompt_logprobs=chunks[0].prompt_logprobs,
    )


class Responder:
    """One request's listener: collects output until the sending thread takes it."""

    def __init__(self, port: ResponsePort, wake: Callable[[Responder], None]) -> None:
        self.ticket: int | None = None
        self._port = port
        self._wake = wake
        self._lock = threading.Lock()
        self._port_lock = threading.Lock()
        self._chunks: list[GenerateChunk] = []
        self._error: RequestError | None = None
        self._gone = False
        self._closed = False
        self._queued = False

    @property
    def closed(self) -> bool:
        """Whether the final response has been sent."""
        return self._closed

    def on_chunk(self, chunk: GenerateChunk) -> None:
        """Take output from the engine."""
        with self._lock:
            self._chunks.append(chunk)
        self._signal()

    def on_error(self, error: RequestError) -> None:
        """Take the end without output."""
        with self._lock:
            self._error = error
        self._signal()

    def poll_client(self) -> bool:
        """Ask whether the client has gone; True the first time that it has. Not asked while being sent to."""
        if not self._port_lock.acquire(blocking=False):
            return False
        try:
            if self._closed or self._gone or not self._port.is_cancelled():
                return False
        finally:
            self._port_lock.release()
        with self._lock:
            self._gone = True
        self._signal()
        return True

    def _signal(self) -> None:
        with self._lock:
            if self._queued or self._closed:
                return
            self._queued = True
        self._wake(self)

    def deliver(self) -> None:
        """Send what has been collected. For the sending thread."""
        with self._port_lock:
            self._deliver()

    def _deliver(self) -> None:
        with self._lock:
            self._queued = False
            if self._closed:
                return
            chunks, self._chunks = self._chunks, []
            final = bool(chunks) and chunks[-1].finish_reason is not None
            self._closed = final or self._error is not None or self._gone
        if final or (chunks and not self._closed):
            self._send_chunk(join_chunks(chunks), final)
        elif self._error is not None:
            self._port.send_error(self._error)
        elif self._gone:
            self._port.send_end()

    def _send_chunk(self, chunk: GenerateChunk, final: bool) -> None:
        try:
            self._port.send_chunk(chunk, final)
        except Exception:
            # Whoever waits for the end must get one, or waits for ever.
            self._closed = True
            self._port.send_error(RequestError(ErrorCode.ENGINE_FAILED, "the answer could not be sent"))
            raise


class Delivery:
    """The sending thread and the watch over clients that leave.

    Args:
        cancel: told the ticket of a request whose client has gone.
        on_fault: told of sends that failed.
        poll_interval_s: how often each client is asked for; each question is a round trip to the server.
    """

    def __init__(
        self,
        cancel: Callable[[int], None],
        on_fault: Callable[[BaseException], None],
        poll_interval_s: float = 0.05,
    ) -> None:
        self._cancel = cancel
        self._on_fault = on_fault
        self._poll_interval_s = poll_interval_s
        self._ready: queue.SimpleQueue[Responder | None] = queue.SimpleQueue()
        self._open: set[Responder] = set()
        self._open_lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, name="uzu-sender", daemon=True),
            threading.Thread(target=self._watch, name="uzu-watch", daemon=True),
        ]

    def start(self) -> None:
        """Start both threads."""
        for thread in self._threads:
            thread.start()

    def open(self, port: ResponsePort) -> Responder:
        """A responder for a new request. Set its `ticket` once the engine has given one."""
        responder = Responder(port, self._ready.put)
        with self._open_lock:
            self._open.add(responder)
        return responder

    def stop(self) -> None:
        """Send what is left and end both threads."""
        self._stop.set()
        self._ready.put(None)
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        while (responder := self._ready.get()) is not None:
            try:
                responder.deliver()
            except Exception as error:  # one client's broken pipe is not another's
                self._on_fault(error)
            if responder.closed:
                with self._open_lock:
                    self._open.discard(responder)

    def _watch(self) -> None:
        while not self._stop.wait(self._poll_interval_s):
            with self._open_lock:
                responders = tuple(self._open)
            for responder in responders:
                try:
                    if responder.ticket is not None and responder.poll_client():
                        self._cancel(responder.ticket)
                except Exception as error:  # the watch goes on for the others
                    self._on_fault(error)
