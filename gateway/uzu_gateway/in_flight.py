"""The requests that have begun and not ended, which a stopping server waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Gauge


class RequestsInFlight:
    """Counts requests.

    Args:
        gauge: follows the count.

    """

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count a request while the block runs."""
        self._count += 1
        self._gauge.set(self._count)
        self._none.clear()
        try:
            yield
        finally:
            self._count -= 1
            self._gauge.set(self._count)
            if self._count == 0:
                self._none.set()

    async def wait_until_none(self, timeout_s: float) -> bool:
        """Wait until no request is in flight; false when that takes longer than `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._none.wait()
        except TimeoutError:
            return False
        return True
