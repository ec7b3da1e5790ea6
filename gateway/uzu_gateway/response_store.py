"""Where responses are kept for those who go on from them: in this process, or in a shared Redis."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import redis.asyncio as redis
from redis.exceptions import RedisError

from uzu_gateway.errors import GatewayError

JsonObject = dict[str, Any]
_PREFIX = "uzu:response:"
_TIMEOUT_S = 2.0


class ResponseStore(Protocol):
    """Keeps JSON objects by name for a while. For one event loop.

    Raises, from every method: `GatewayError`, `store_unavailable`.
    """

    async def get(self, name: str) -> JsonObject | None:
        """What was put there, unless it has gone."""
        ...

    async def put(self, name: str, value: JsonObject, ttl_s: float | None = None) -> None:
        """Keep `value` for `ttl_s`, or for as long as the store keeps things."""
        ...

    async def delete(self, name: str) -> bool:
        """Forget it; false when there was nothing."""
        ...

    async def close(self) -> None:
        """Give connections back."""
        ...


class MemoryResponseStore:
    """Keeps what fits `max_bytes`; what was not used for longest goes first.

    Args:
        max_bytes: of all values together, as JSON.
        ttl_s: for how long.
        clock: monotonic seconds.

    """

    def __init__(self, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._bytes = 0

    @property
    def size_bytes(self) -> int:
        """What is kept, as JSON."""
        return self._bytes

    async def get(self, name: str) -> JsonObject | None:
        """See `ResponseStore.get`."""
        kept = self._kept.get(name)
        if kept is None:
            return None
        if kept[0] <= self._clock():
            self._drop(name)
            return None
        self._kept.move_to_end(name)
        value: JsonObject = json.loads(kept[1])
        return value

    async def put(self, name: str, value: JsonObject, ttl_s: float | None = None) -> None:
        """See `ResponseStore.put`."""
        encoded = _encode(value)
        if len(encoded) > self._max_bytes:
            raise _unavailable("it is larger than the whole store (--responses-store-bytes)")
        self._drop(name)
        self._kept[name] = (self._clock() + (ttl_s or self._ttl_s), encoded)
        self._bytes += len(encoded)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    async def delete(self, name: str) -> bool:
        """See `ResponseStore.delete`."""
        found = await self.get(name) is not None
        self._drop(name)
        return found

    async def close(self) -> None:
        """See `ResponseStore.close`."""
        self._kept.clear()
        self._bytes = 0

    def _drop(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._bytes -= len(kept[1])


class RedisResponseStore:
    """Keeps responses in Redis; how much there is room for is Redis's own `maxmemory`.

    Args:
        url: `redis://`, `rediss://` or `unix://`.
        ttl_s: for how long.

    """

    def __init__(self, url: str, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._client = redis.Redis.from_url(
            url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, decode_responses=False
        )

    async def get(self, name: str) -> JsonObject | None:
        """See `ResponseStore.get`."""
        try:
            kept = await self._client.get(_PREFIX + name)
        except (RedisError, OSError) as error:
            raise _unavailable("Redis does not answer") from error
        return None if kept is None else json.loads(kept)

    async def put(self, name: str, value: JsonObject, ttl_s: float | None = None) -> None:
        """See `ResponseStore.put`."""
        try:
            await self._client.set(_PREFIX + name, _encode(value), px=int(1000 * (ttl_s or self._ttl_s)))
        except (RedisError, OSError) as error:
            raise _unavailable("Redis does not take it") from error

    async def delete(self, name: str) -> bool:
        """See `ResponseStore.delete`."""
        try:
            return bool(await self._client.delete(_PREFIX + name))
        except (RedisError, OSError) as error:
            raise _unavailable("Redis does not answer") from error

    async def close(self) -> None:
        """See `ResponseStore.close`."""
        await self._client.aclose()


def _encode(value: JsonObject) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _unavailable(why: str) -> GatewayError:
    return GatewayError("store_unavailable", f"The response cannot be kept or found: {why}.")
