"""Classes of priority: the few names under which priorities are counted and limited."""

from __future__ import annotations

from enum import StrEnum

DEFAULT_PRIORITY = 10
"""Of a request that names none. Lower is sooner."""


class PriorityClass(StrEnum):
    """A band of priorities."""

    INTERACTIVE = "interactive"
    DEFAULT = "default"
    BATCH = "batch"

    @classmethod
    def of(cls, priority: int) -> PriorityClass:
        """The class of a priority: sooner than the default, the default, or later."""
        if priority == DEFAULT_PRIORITY:
            return cls.DEFAULT
        return cls.INTERACTIVE if priority < DEFAULT_PRIORITY else cls.BATCH
