"""The model's inputs and outputs: as ONNX Runtime tells them, and as Triton writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uzu_onnx.errors import ConfigError

DATATYPES = {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
"""Triton's name of each type of ONNX Runtime that crosses as a numpy array."""

DEFAULT_MAX_BATCH_SIZE = 4
"""Of a model that can batch and whose configuration does not say how much; as in the C++ backend."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or an output.

    Args:
        name: in the graph.
        datatype: as config.pbtxt writes it.
        dims: as the graph has them, the batch among them; -1 is a length that varies.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]

    @classmethod
    def of(cls, node: Any) -> TensorSpec:
        """From a `NodeArg` of ONNX Runtime.

        Raises:
            ConfigError: a type that cannot cross.
        """
        if node.type not in DATATYPES:
            known = ", ".join(DATATYPES)
            raise ConfigError(f"{node.name!r} is a {node.type}, which is not served; served are {known}")
        dims = tuple(d if isinstance(d, int) and d >= 0 else -1 for d in node.shape)
        return cls(node.name, DATATYPES[node.type], dims)


@dataclass(frozen=True, slots=True)
class Signature:
    """All inputs and outputs of a model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, session: Any) -> Signature:
        """From an `InferenceSession`.

        Raises:
            ConfigError: a type that cannot cross.
        """
        return cls(
            tuple(TensorSpec.of(node) for node in session.get_inputs()),
            tuple(TensorSpec.of(node) for node in session.get_outputs()),
        )

    @property
    def can_batch(self) -> bool:
        """Whether the first dimension of all inputs and outputs varies."""
        return all(spec.dims[:1] == (-1,) for spec in (*self.inputs, *self.outputs))

    def completed(self, config: Mapping[str, Any]) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
        """What an incomplete configuration lacks: its max_batch_size, more inputs, more outputs."""
        size = int(config.get("max_batch_size") or 0)
        given_any = bool(config.get("input") or config.get("output"))
        # A tensor of nothing but the batch needs a `reshape`, which a person has to write.
        is_plain = all(len(spec.dims) > 1 for spec in (*self.inputs, *self.outputs))
        if size == 0 and self.can_batch and is_plain and not given_any:
            size = DEFAULT_MAX_BATCH_SIZE
        return (
            size,
            _missing(self.inputs, config.get("input", []), size),
            _missing(self.outputs, config.get("output", []), size),
        )

    def check(self, config: Mapping[str, Any]) -> None:
        """Compare a complete configuration with the model.

        Raises:
            ConfigError: names, types or shapes that do not fit, or an input that is missing.
        """
        size = int(config.get("max_batch_size") or 0)
        if size and not self.can_batch:
            fixed = next(s for s in (*self.inputs, *self.outputs) if s.dims[:1] != (-1,))
            raise ConfigError(
                f"max_batch_size is {size}, and the first dimension of {fixed.name!r} does not vary "
                f"(its shape is {list(fixed.dims)}): set max_batch_size to 0"
            )
        _compare("input", self.inputs, config.get("input", []), size)
        _compare("output", self.outputs, config.get("output", []), size)
        given = {tensor["name"] for tensor in config.get("input", [])}
        for spec in self.inputs:
            if spec.name not in given:
                raise ConfigError(f"input {spec.name!r} of the model is missing in the configuration")
        for tensor in config.get("input", []):
            if tensor.get("allow_ragged_batch"):
                raise ConfigError(
                    f"input {tensor['name']!r}: allow_ragged_batch is not served; "
                    "pad requests to common lengths in the step before"
                )


def _missing(
    specs: Sequence[TensorSpec], given: Sequence[Mapping[str, Any]], size: int
) -> list[dict[str, Any]]:
    names = {tensor["name"] for tensor in given}
    return [
        {"name": spec.name, "data_type": spec.datatype, "dims": list(spec.dims[1:] if size else spec.dims)}
        for spec in specs
        if spec.name not in names
    ]


def _compare(role: str, specs: Sequence[TensorSpec], given: Sequence[Mapping[str, Any]], size: int) -> None:
    known = {spec.name: spec for spec in specs}
    for tensor in given:
        name = tensor["name"]
        spec = known.get(name)
        if spec is None:
            raise ConfigError(f"{role} {name!r} is not in the model, which has {', '.join(map(repr, known))}")
        if tensor["data_type"] != spec.datatype:
            raise ConfigError(f"{role} {name!r} is {spec.datatype} in the model, not {tensor['data_type']}")
        shape = tensor.get("reshape", {}).get("shape", tensor["dims"])
        dims = [*([-1] if size else []), *(int(d) for d in shape)]
        fits = len(dims) == len(spec.dims) and all(
            -1 in pair or pair[0] == pair[1] for pair in zip(dims, spec.dims, strict=True)
        )
        if not fits:
            beside = " with the batch before them" if size else ""
            raise ConfigError(
                f"{role} {name!r} has dims {list(map(int, shape))}{beside}, which do not fit the model's "
                f"{list(spec.dims)}"
            )
