"""Triton's entry to the ONNX Runtime backend in Python."""

from uzu_onnx.triton_adapter import TritonPythonModel

__all__ = ["TritonPythonModel"]
