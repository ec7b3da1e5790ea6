"""Faults of the set-up, as opposed to `uzu_contract.errors.RequestError`, a fault of one request."""

from __future__ import annotations


class OptionsError(ValueError):
    """An engine option that is unknown, has a wrong type or is out of range; the text names all three."""


class ModelLoadError(RuntimeError):
    """The IR cannot be run by this engine; the text says why and what to do."""


class EngineStoppedError(RuntimeError):
    """A request was submitted to an engine that has been stopped."""
