"""Turns a decoder's IR into one with a paged KV cache, and compiles it for reproducible numbers.

The only module that touches OpenVINO's private transformation API; a release that moves it fails here, by
name. What the settings are for is told in docs/backends/native.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# openvino imports its telemetry package when there is one; a server must not open connections of its own.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

import openvino as ov  # noqa: E402
from openvino import opset13  # noqa: E402

from uzu_native.errors import ModelLoadError  # noqa: E402

__all__ = ["LOGITS_INDICES", "PagedModel", "Precision", "ov"]

LOGITS_INDICES = "logits_indices"


@dataclass(frozen=True, slots=True)
class Precision:
    """How numbers are kept and computed; the names are those of the engine's options.

    Args:
        exact: whether a row's numbers must not depend on how its past was computed.
        kv_cache: of keys and values.
        inference: of the arithmetic; "auto" leaves it to OpenVINO.
    """

    exact: bool = True
    kv_cache: str = "u8"
    inference: str = "auto"


class PagedModel:
    """An IR as a model over paged keys and values.

    Its inputs are packed: `input_ids` and `position_ids` [tokens], `past_lens` [rows], `subsequence_begins`
    [rows + 1], `block_indices`, `block_indices_begins` [rows + 1], `max_context_len` [], `logits_indices`
    [wanted], and a key and a value cache for each layer. Its output is `logits` [wanted, vocabulary].

    Raises:
        ModelLoadError: the file is no decoder IR, or this OpenVINO lacks the transformation.
    """

    def __init__(self, ir_path: Path) -> None:
        try:
            from openvino._offline_transformations import paged_attention_transformation
        except ImportError:
            raise ModelLoadError(
                f"openvino {ov.__version__} has no paged_attention_transformation; install openvino 2026.4"
            ) from None
        self._path = ir_path
        self._core = ov.Core()
        try:
            self._model = self._core.read_model(str(ir_path))
            paged_attention_transformation(self._model, False, False, False)
            _gather_before_head(self._model)
        except RuntimeError as error:
            raise ModelLoadError(f"{ir_path}: not a decoder that can be paged: {error}") from error

    def compile(self, streams: int, threads: int, precision: Precision) -> Any:
        """Compile for so many streams of so many threads each.

        Keys are quantized by token when numbers must not depend on how they came: by channel, which is
        OpenVINO's choice, a block is quantized anew as it fills.

        A stream's attention goes to one thread for each row and head, whatever the number of rows, if only a
        step has a prompt's chunk or as many rows as threads; with fewer rows it would split a context among
        the threads, and the order of the sum would depend on the batch.

        Raises:
            ModelLoadError: this OpenVINO cannot compile it.
        """
        settings: dict[str, Any] = {
            "NUM_STREAMS": streams,
            "INFERENCE_NUM_THREADS": streams * threads,
            "KV_CACHE_PRECISION": precision.kv_cache,
            # Every process would choose the same CPUs, and models side by side leave the others idle.
            "ENABLE_CPU_PINNING": False,
        }
        if precision.exact:
            settings["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
        if precision.inference != "auto":
            settings["INFERENCE_PRECISION_HINT"] = precision.inference
        try:
            return self._core.compile_model(self._model, "CPU", settings)
        except RuntimeError as error:
            raise ModelLoadError(f"{self._path}: not a decoder that can be paged: {error}") from error


def _gather_before_head(model: Any) -> None:
    """Select hidden states by `logits_indices` before the LM head, which is most of a prefill's work."""
    node = model.outputs[0].get_node().input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        if not node.inputs():
            raise ModelLoadError("the graph has no LM head before its first output")
        node = node.input_value(0).get_node()
    indices = opset13.parameter([-1], ov.Type.i32, name=LOGITS_INDICES)
    indices.output(0).set_names({LOGITS_INDICES})
    gathered = opset13.gather(node.input_value(0), indices, opset13.constant(np.int64(0)))
    node.input(0).replace_source_output(gathered.output(0))
    model.add_parameters([indices])
    model.validate_nodes_and_infer_types()
