"""Files and batches of one gateway: opened with it, or later, when the folder can be had."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from starlette.types import ASGIApp

from uzu_contract.errors import ErrorCode
from uzu_gateway.batches.files import FileStore
from uzu_gateway.batches.folder import DataFolder
from uzu_gateway.batches.runner import BatchRunner
from uzu_gateway.errors import GatewayError
from uzu_gateway.settings import Settings

_SWEEP_S = 600.0
_log = logging.getLogger("uzu_gateway.batches")


@dataclass(frozen=True, slots=True)
class _Opened:
    folder: DataFolder
    files: FileStore
    runner: BatchRunner
    sweeper: asyncio.Task[None]


class BatchService:
    """Owns the data folder of a gateway. For one event loop.

    Args:
        settings: where the folder is, and the limits.
        app: answers the requests of batches.

    """

    def __init__(self, settings: Settings, app: ASGIApp) -> None:
        self._settings = settings
        self._app = app
        self._opened: _Opened | None = None

    def start(self) -> None:
        """Go on with what another process left; when the folder cannot be had, say so in the log."""
        if self._settings.data_dir is not None:
            try:
                self._open()
            except GatewayError as error:
                _log.warning("%s", error.message)

    @property
    def files(self) -> FileStore:
        """The files.

        Raises:
            GatewayError: there is no folder for them, or another process has it.

        """
        return self._open().files

    @property
    def runner(self) -> BatchRunner:
        """The batches.

        Raises:
            GatewayError: there is no folder for them, or another process has it.

        """
        return self._open().runner

    async def close(self) -> None:
        """Stop; what has not ended goes on at the next start."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await opened.sweeper
            await opened.runner.close()
            opened.folder.close()

    def _open(self) -> _Opened:
        if self._opened is not None:
            return self._opened
        settings = self._settings
        if settings.data_dir is None:
            raise GatewayError(
                ErrorCode.UNSUPPORTED_OPERATION,
                "This gateway keeps no files: it was started without --data-dir.",
            )
        folder = DataFolder(settings.data_dir)
        folder.open()
        files = FileStore(folder, settings.data_ttl_s, settings.max_files_bytes)
        runner = BatchRunner(
            folder,
            files,
            self._app,
            concurrency=settings.batch_concurrency,
            max_line_bytes=settings.max_body_bytes,
            ttl_s=settings.data_ttl_s,
        )
        files.load()
        runner.load()
        sweeper = asyncio.create_task(self._sweep(files, runner))
        self._opened = _Opened(folder, files, runner, sweeper)
        return self._opened

    async def _sweep(self, files: FileStore, runner: BatchRunner) -> None:
        while True:
            try:
                files.sweep()
                runner.sweep()
            except OSError:
                _log.exception("what has expired cannot be removed")
            await asyncio.sleep(_SWEEP_S)
