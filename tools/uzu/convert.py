"""Prepares a GGUF file: OpenVINO weights, and the tokenizer and configuration files beside them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from uzu.console import Console
from uzu.errors import PreparationError
from uzu.gguf import read_header
from uzu.gguf_files import write_model_files
from uzu.processes import run_lines
from uzu.supervisor import last_line

_WEIGHTS = ("openvino_model.xml", "openvino_model.bin")


def conversion_bytes(gguf: Path) -> int:
    """Disk space that the conversion of `gguf` takes, roughly."""
    return int(gguf.stat().st_size * 1.3) + 2**25


def convert_gguf(gguf: Path, folder: Path, console: Console, environment: Mapping[str, str]) -> None:
    """Fill `folder`, which is empty, with what the engine loads.

    Raises:
        UsageError: the file is damaged, or of a kind that Uzu does not know.
        PreparationError: the conversion failed.

    """
    header = read_header(gguf)
    write_model_files(header, folder)
    link = folder / "model.gguf"
    link.symlink_to(gguf.resolve())
    with console.progress(f"converting {gguf.name} for OpenVINO"):
        command = [sys.executable, "-m", "uzu.convert_gguf", str(link)]
        try:
            for _ in run_lines(command, environment=environment):
                pass
        except subprocess.CalledProcessError as error:
            raise PreparationError(
                f"{gguf}: OpenVINO cannot convert it (architecture "
                f"{header.keys.get('general.architecture')!r}): {last_line(error.output.splitlines())}"
            ) from error
    for made in folder.glob("openvino_*tokenizer.*"):
        made.unlink()
    link.unlink()
    missing = [name for name in _WEIGHTS if not (folder / name).is_file()]
    if missing:
        raise PreparationError(f"{gguf}: OpenVINO converted it but wrote no {' and no '.join(missing)}")
