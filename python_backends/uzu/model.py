"""Triton's entry to the native backend; the contract package is taken from the folder beside this one."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from uzu_native.triton_adapter import TritonPythonModel

__all__ = ["TritonPythonModel"]
