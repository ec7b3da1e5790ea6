"""Runs batches: from their input to their output, through restarts, within a bounded number of requests."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from starlette.types import ASGIApp

from uzu_contract.request import MAX_PRIORITY
from uzu_gateway.batches.files import FileStore, new_file_id
from uzu_gateway.batches.folder import DataFolder, unavailable
from uzu_gateway.batches.journal import Journal
from uzu_gateway.batches.lines import Line, check_lines, read_lines
from uzu_gateway.batches.local_call import LocalAnswer, call
from uzu_gateway.batches.state import BatchState
from uzu_gateway.errors import GatewayError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
_ID = re.compile(r"batch_[0-9a-f]{32}")
_MAX_RUNNING = 1000
_MAX_PAUSE_S = 30.0
_ATTEMPTS = 3
"""At a request that fails otherwise than because the backend is away or full, which is waited for."""
_WAITED_FOR = (429, 503)
_log = logging.getLogger("uzu_gateway.batches")


class _Journals:
    """Both journals of a batch."""

    def __init__(self, home: Path) -> None:
        self.output = Journal(home / "output.jsonl")
        self.errors = Journal(home / "error.jsonl")

    @property
    def counts(self) -> tuple[int, int]:
        """How many requests were answered with 200, and how many otherwise."""
        return len(self.output.custom_ids), len(self.errors.custom_ids)

    def close(self) -> None:
        """Put everything on the disk and end."""
        self.output.close()
        self.errors.close()


class BatchRunner:
    """Owns the batches of a data folder. For one event loop.

    Args:
        folder: has been opened.
        files: inputs and outputs.
        app: answers the requests.
        concurrency: most requests at once, over all batches.
        max_line_bytes: longest request.
        ttl_s: how long a batch that has ended is remembered.
        clock: Unix time.

    """

    def __init__(
        self,
        folder: DataFolder,
        files: FileStore,
        app: ASGIApp,
        *,
        concurrency: int,
        max_line_bytes: int,
        ttl_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._files = files
        self._app = app
        self._slots = asyncio.Semaphore(concurrency)
        self._max_line_bytes = max_line_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._batches: dict[str, BatchState] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelling: dict[str, asyncio.Event] = {}

    def load(self) -> None:
        """Read what is there, and go on with what has not ended."""
        for path in self._folder.batches.glob("*/batch.json"):
            try:
                state = BatchState.model_validate_json(path.read_bytes())
            except (OSError, ValidationError):
                _log.warning(
                    "a batch cannot be read and is left alone", extra={"fields": {"path": str(path)}}
                )
                continue
            self._batches[state.id] = state
        for state in self.list():
            if state.is_running:
                self._start(state)

    def sweep(self) -> None:
        """Forget batches that ended long ago; go on with those that could not."""
        for state in self.list():
            if state.is_running and state.id not in self._tasks:
                self._start(state)
            if not state.is_running and state.created_at + self._ttl_s <= self._clock():
                del self._batches[state.id]
                shutil.rmtree(self._home(state), ignore_errors=True)

    async def close(self) -> None:
        """Stop; what has not ended goes on at the next start."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def create(
        self,
        *,
        input_file_id: str,
        endpoint: str,
        completion_window: str,
        window_s: int,
        metadata: dict[str, str],
        output_expires_after_s: int | None,
    ) -> BatchState:
        """Begin a batch.

        Raises:
            GatewayError: there is no such file, too many batches run, or the folder cannot be written to.

        """
        source = self._files.path(input_file_id)
        if len(self._tasks) >= _MAX_RUNNING:
            raise GatewayError("overloaded", f"{_MAX_RUNNING} batches run already.")
        now = int(self._clock())
        state = BatchState(
            id=f"batch_{uuid.uuid4().hex}",
            endpoint=endpoint,
            input_file_id=input_file_id,
            completion_window=completion_window,
            created_at=now,
            expires_at=now + window_s,
            metadata=metadata,
            output_file_id=new_file_id(),
            error_file_id=new_file_id(),
            output_expires_after_s=output_expires_after_s,
        )
        try:
            self._home(state).mkdir()
            # The input may be deleted while the batch runs.
            os.link(source, self._input(state))
        except OSError as error:
            raise unavailable("the gateway's --data-dir cannot be written to") from error
        self._save(state)
        self._batches[state.id] = state
        self._start(state)
        return state

    def get(self, batch_id: str) -> BatchState:
        """A batch.

        Raises:
            GatewayError: `not_found`.

        """
        state = self._batches.get(batch_id) if _ID.fullmatch(batch_id) else None
        if state is None:
            raise GatewayError("not_found", f"There is no batch {batch_id!r:.80}.")
        return state

    def list(self) -> list[BatchState]:
        """All batches, the oldest first."""
        return sorted(self._batches.values(), key=lambda state: (state.created_at, state.id))

    def cancel(self, batch_id: str) -> BatchState:
        """Stop a batch; what has been answered is in its output.

        Raises:
            GatewayError: `not_found`, or `invalid_request` when it has ended.

        """
        state = self.get(batch_id)
        if not state.is_running:
            raise GatewayError("invalid_request", f"This batch is {state.status}; it cannot be cancelled.")
        if state.status in ("validating", "in_progress"):
            state.enter("cancelling", self._clock())
            state.ended = "cancelled"
            self._save(state)
            self._cancelling[state.id].set()
        return state

    def _start(self, state: BatchState) -> None:
        self._cancelling[state.id] = asyncio.Event()
        task = asyncio.create_task(self._run(state))
        self._tasks[state.id] = task
        task.add_done_callback(lambda _: self._forget(state.id))

    def _forget(self, batch_id: str) -> None:
        self._tasks.pop(batch_id, None)
        self._cancelling.pop(batch_id, None)

    async def _run(self, state: BatchState) -> None:
        try:
            if state.status == "validating":
                await self._validate(state)
            if state.status in ("in_progress", "cancelling"):
                await self._work(state)
            if state.is_running:
                self._finalize(state)
        except Exception:  # nobody waits for this task
            # What is on the disk is right as far as it goes: `sweep` and the next start go on from there.
            _log.exception("a batch cannot go on", extra={"fields": {"batch": state.id}})

    async def _validate(self, state: BatchState) -> None:
        total, errors = await asyncio.to_thread(
            check_lines, self._input(state), state.endpoint, self._max_line_bytes
        )
        if state.status != "validating":
            return
        if errors:
            state.errors = errors
            state.enter("failed", self._clock())
        else:
            state.total = total
            state.enter("in_progress", self._clock())
        self._save(state)

    async def _work(self, state: BatchState) -> None:
        """Answer what is not answered, until that is done, the batch expires, or it is cancelled."""
        journals = await asyncio.to_thread(_Journals, self._home(state))
        try:
            state.completed, state.failed = journals.counts
            if state.status == "in_progress":
                await self._answer_in_time(state, journals)
            state.completed, state.failed = journals.counts
            state.has_output, state.has_errors = map(bool, journals.counts)
        finally:
            journals.close()

    async def _answer_in_time(self, state: BatchState, journals: _Journals) -> None:
        answering = asyncio.create_task(self._answer_all(state, journals))
        stopping = asyncio.create_task(self._cancelling[state.id].wait())
        try:
            left_s = max(0.0, state.expires_at - self._clock())
            await asyncio.wait({answering, stopping}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_done = answering.done()
            for task in (answering, stopping):
                task.cancel()
            await asyncio.gather(answering, stopping, return_exceptions=True)
        if is_done:
            # What went wrong while answering is not to be taken for the end.
            answering.result()
        elif state.status == "in_progress":
            state.ended = "expired"
            why = {"code": "batch_expired", "message": "The batch expired before this request was answered."}
            for line in await asyncio.to_thread(lambda: list(self._unanswered(state, journals))):
                journals.errors.add(_line(line, None, why))

    def _unanswered(self, state: BatchState, journals: _Journals) -> Iterator[Line]:
        done = journals.output.custom_ids | journals.errors.custom_ids
        return (line for line in read_lines(self._input(state)) if line.custom_id not in done)

    async def _answer_all(self, state: BatchState, journals: _Journals) -> None:
        async def one(line: Line) -> None:
            answer = await self._answer(state, line)
            journal = journals.output if answer.status == 200 else journals.errors
            journal.add(_line(line, _shown(answer), None))
            state.completed, state.failed = journals.counts

        async with asyncio.TaskGroup() as group:
            for line in self._unanswered(state, journals):
                await self._slots.acquire()
                # A task that is cancelled before it begins runs no `finally` of its own.
                group.create_task(one(line)).add_done_callback(lambda _: self._slots.release())

    async def _answer(self, state: BatchState, line: Line) -> LocalAnswer:
        """Send a request, again while its failure may pass."""
        if state.endpoint != "/v1/embeddings" and (line.body.get("stream") or line.body.get("background")):
            field = "stream" if line.body.get("stream") else "background"
            refusal = GatewayError("unsupported_parameter", f"{field}: is not supported in a batch", field)
            response = refusal.response()
            return LocalAnswer(response.status_code, response.headers, bytes(response.body))
        attempt = 0
        while True:
            attempt += 1
            request_id = f"{state.id}/{line.number}"
            answer = await call(self._app, state.endpoint, line.encoded(), request_id, MAX_PRIORITY)
            may_pass = answer.headers.get("x-should-retry") == "true"
            if not may_pass or (answer.status not in _WAITED_FOR and attempt >= _ATTEMPTS):
                return answer
            asked = answer.headers.get("retry-after", "")
            least_s = float(asked) if asked.isdigit() else 0.0
            await asyncio.sleep(min(_MAX_PAUSE_S, max(least_s, 0.1 * 2 ** min(attempt, 10))))

    def _finalize(self, state: BatchState) -> None:
        """Make files of what was written. Killed at any place, it is done again from its beginning."""
        home = self._home(state)
        if state.status != "finalizing":
            if state.ended == "completed":
                state.enter("finalizing", self._clock())
            else:
                state.status = "finalizing"
            self._save(state)
        for wanted, file_id, name in (
            (state.has_output, state.output_file_id, "output"),
            (state.has_errors, state.error_file_id, "error"),
        ):
            if wanted:
                shown = f"{state.id}_{name}.jsonl"
                kept_s = state.output_expires_after_s
                self._files.adopt(file_id, home / f"{name}.jsonl", shown, "batch_output", kept_s)
        state.enter(state.ended, self._clock())
        self._save(state)
        for name in ("input", "output", "error"):
            (home / f"{name}.jsonl").unlink(missing_ok=True)

    def _save(self, state: BatchState) -> None:
        self._folder.write(self._home(state) / "batch.json", state.model_dump_json().encode())

    def _home(self, state: BatchState) -> Path:
        return self._folder.batches / state.id

    def _input(self, state: BatchState) -> Path:
        return self._home(state) / "input.jsonl"


def _shown(answer: LocalAnswer) -> dict[str, Any]:
    try:
        body = json.loads(answer.body)
    except ValueError:
        body = None
    return {"status_code": answer.status, "request_id": answer.headers.get("x-request-id", ""), "body": body}


def _line(line: Line, response: dict[str, Any] | None, error: dict[str, str] | None) -> dict[str, Any]:
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
