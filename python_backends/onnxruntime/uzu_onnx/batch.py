"""One run of the model for many requests: their inputs laid together, the outputs dealt out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[Sequence[str], Arrays], Sequence[NDArray[Any]]]
"""Runs the model: names of outputs, inputs, and back come the outputs in that order."""


def run_batch(
    run: Run, requests: Sequence[Arrays], outputs: Sequence[str], batched: bool
) -> list[dict[str, NDArray[Any]] | Exception]:
    """The outputs of each request, or what went wrong with it.

    A batch that fails is run again one request at a time, so that who sent what the model cannot take fails
    alone.

    Args:
        run: the model.
        requests: inputs of each request; with `batched` their first dimensions may differ, the others not.
        outputs: names of the outputs wanted.
        batched: whether the first dimension of each tensor is the batch.
    """
    if not batched or len(requests) < 2:
        return [_run_one(run, inputs, outputs) for inputs in requests]
    together = {name: np.concatenate([inputs[name] for inputs in requests]) for name in requests[0]}
    try:
        arrays = run(outputs, together)
    except Exception:
        return [_run_one(run, inputs, outputs) for inputs in requests]
    sizes = [len(next(iter(inputs.values()))) for inputs in requests]
    if any(len(array) != sum(sizes) for array in arrays):
        return [_run_one(run, inputs, outputs) for inputs in requests]
    ends = np.cumsum(sizes)
    return [
        {name: array[end - size : end] for name, array in zip(outputs, arrays, strict=True)}
        for size, end in zip(sizes, ends, strict=True)
    ]


def _run_one(run: Run, inputs: Arrays, outputs: Sequence[str]) -> dict[str, NDArray[Any]] | Exception:
    try:
        return dict(zip(outputs, run(outputs, inputs), strict=True))
    except Exception as error:
        return error


def is_empty(inputs: Arrays) -> bool:
    """Whether there is nothing to compute: some dimension is 0."""
    return any(array.size == 0 for array in inputs.values())


def to_text(name: str, array: NDArray[Any]) -> NDArray[np.object_]:
    """Triton's bytes as the text that ONNX Runtime takes.

    Raises:
        ValueError: bytes that are not UTF-8.
    """
    try:
        decoded = [value.decode("utf-8") for value in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise ValueError(f"input {name!r} holds bytes that are not UTF-8 (at byte {error.start})") from None
    return np.array(decoded, np.object_).reshape(array.shape)


def to_bytes(array: NDArray[Any]) -> NDArray[np.object_]:
    """ONNX Runtime's text as the bytes that Triton takes."""
    return np.array([str(value).encode() for value in array.reshape(-1)], np.object_).reshape(array.shape)
