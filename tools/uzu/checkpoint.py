"""`uzu convert`: makes a folder that the native engine loads out of a Hugging Face checkpoint."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from uzu.console import Console
from uzu.environments import environment_python
from uzu.errors import PreparationError, UsageError
from uzu.model_folder import OPTIONAL, check_model_folder
from uzu.processes import run_lines
from uzu.settings import Settings
from uzu.supervisor import last_line

WEIGHTS = ("int4", "int8", "bf16", "f32")
_EXPORT = Path(__file__).with_name("export_checkpoint.py")
_TOKENIZER_FILES = ("tokenizer.json", *OPTIONAL)


def convert_checkpoint(
    checkpoint: Path, folder: Path, weights: str, group_size: int, settings: Settings, console: Console
) -> Path:
    """Fill `folder`, which must not exist; it appears whole or not at all.

    Args:
        checkpoint: config.json, tokenizer.json and *.safetensors.
        folder: what to make.
        weights: one of `WEIGHTS`.
        group_size: int4 weights that share a scale.
        settings: where the environment is.
        console: for progress.

    Returns:
        The folder.

    Raises:
        UsageError: no such checkpoint, a folder that is there already, or the environment is not set up.
        PreparationError: the checkpoint cannot be converted.

    """
    _check(checkpoint)
    if folder.exists():
        raise UsageError(f"{folder} exists already; name a folder that does not")
    python = environment_python("convert", settings)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    try:
        with console.progress(f"converting {checkpoint.name} to {weights}"):
            command = [str(python), "-I", str(_EXPORT), str(checkpoint), str(work)]
            environment = {**settings.environment, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
            try:
                for _ in run_lines([*command, weights, str(group_size)], environment=environment):
                    pass
            except subprocess.CalledProcessError as error:
                raise PreparationError(
                    f"{checkpoint} cannot be converted: {last_line(error.output.splitlines())}"
                ) from error
        for name in _TOKENIZER_FILES:
            if (checkpoint / name).is_file() and not (work / name).exists():
                shutil.copy2(checkpoint / name, work)
        check_model_folder(work)
        work.chmod(0o755)
        work.rename(folder)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return folder


def _check(checkpoint: Path) -> None:
    missing = [name for name in ("config.json", "tokenizer.json") if not (checkpoint / name).is_file()]
    if missing:
        raise UsageError(
            f"{checkpoint} is not a Hugging Face checkpoint: it has no {' and no '.join(missing)}"
        )
    try:
        config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    except ValueError as error:
        raise UsageError(f"{checkpoint / 'config.json'} is not JSON: {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise UsageError(f"{checkpoint / 'config.json'} names no model_type")
    if not any(checkpoint.glob("*.safetensors")):
        pickles = sorted(path.name for path in checkpoint.glob("*.bin"))
        hint = f"; {', '.join(pickles)} may run code when loaded and is not read" if pickles else ""
        raise UsageError(f"{checkpoint} has no *.safetensors{hint}")
