"""Gives the model's memory back while nobody asks for anything, and loads it again for who does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from uzu_native.executor import Executor

WAKE_FAILED_MESSAGE = "the model could not be loaded again; see the server's log"


class _State(Enum):
    AWAKE = auto()
    ASLEEP = auto()
    WAKING = auto()


class Loadable(Protocol):
    """What can give its memory back and take it again."""

    def release(self) -> None:
        """Give the memory back."""

    def restore(self) -> None:
        """Undo `release`."""


class IdleSleep:
    """Whether the model is in memory. For the engine's thread, except where said.

    Loading takes seconds, in which requests may come, be cancelled and pass their deadlines, so a thread of
    its own does it.

    Args:
        executor: whose memory it is.
        after_s: how long nobody must have asked for anything; None keeps the model for ever.
        clock: seconds, monotonic.
        on_asleep: told when the KV memory is lost.
        on_loaded: told by the loading thread that it is done, or why it failed; must pass that to `loaded`.
        companion: what sleeps and wakes with the model; its `restore` does not raise.
    """

    def __init__(
        self,
        executor: Executor,
        after_s: float | None,
        clock: Callable[[], float],
        on_asleep: Callable[[], None],
        on_loaded: Callable[[Exception | None], None],
        companion: Loadable | None = None,
    ) -> None:
        self._executor = executor
        self._after_s = after_s
        self._clock = clock
        self._on_asleep = on_asleep
        self._on_loaded = on_loaded
        self._companion = companion
        self._state = _State.AWAKE
        self._idle_since_s: float | None = clock()

    @property
    def is_awake(self) -> bool:
        """Whether the model can run."""
        return self._state is _State.AWAKE

    @property
    def is_waking(self) -> bool:
        """Whether it is being loaded."""
        return self._state is _State.WAKING

    @property
    def due_in_s(self) -> float | None:
        """How long until it falls asleep if nobody comes; None when it will not."""
        if self._after_s is None or self._idle_since_s is None or not self.is_awake:
            return None
        return max(0.0, self._idle_since_s + self._after_s - self._clock())

    def attend(self, busy: bool) -> bool:
        """Fall asleep when it is time, or begin to wake when there is work. Whether the model can run now.

        Args:
            busy: whether any request is there or any step is running.
        """
        if busy:
            self._idle_since_s = None
            if self._state is _State.ASLEEP:
                threading.Thread(target=self._load, name="uzu-wake", daemon=True).start()
                self._state = _State.WAKING
        elif self._idle_since_s is None:
            self._idle_since_s = self._clock()
        elif self.due_in_s == 0:
            self._state = _State.ASLEEP
            self._on_asleep()
            self._executor.release()
            if self._companion is not None:
                self._companion.release()
        return self.is_awake

    def _load(self) -> None:
        try:
            self._executor.restore()
            if self._companion is not None:
                self._companion.restore()
        except Exception as error:  # whatever it is, somebody waits for the end
            self._on_loaded(error)
        else:
            self._on_loaded(None)

    def loaded(self, error: Exception | None) -> None:
        """The loading thread is done; after an error the next `attend` that is busy tries again."""
        self._state = _State.AWAKE if error is None else _State.ASLEEP
