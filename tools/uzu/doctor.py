"""`uzu doctor`: what this machine can run, and why not."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from uzu.errors import UsageError
from uzu.interpreter import Interpreter
from uzu.pypi import TRITON_WHEEL, TRITON_WHEEL_VERSION
from uzu.settings import Settings
from uzu.store import entry_key
from uzu.triton import find_installed

_CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
_WANTED_DISK_BYTES = 10**9
_WANTED_MEMORY_BYTES = 2 * 10**9
_WANTED_SHARED_BYTES = 64 * 2**20
_WHEEL_GLIBC = (2, 35)
_FASTER_BACKENDS = {"vllm": "vllm", "tensorrtllm": "tensorrt_llm"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Args:
        subject: what was looked at.
        text: what was found and, if that is bad, how to mend it.
        fits: whether it is fine; None when it is only information.

    """

    subject: str
    text: str
    fits: bool | None

    def __str__(self) -> str:
        mark = {True: "ok", False: "NO", None: "--"}[self.fits]
        return f"{mark}  {self.subject:<13} {self.text}"


def examine(settings: Settings) -> list[Finding]:
    """Look at everything that `uzu serve` depends on, and start nothing."""
    return [
        *_python(settings),
        _triton(settings),
        _openvino(),
        *_machine(settings),
        *_backends(),
    ]


def _python(settings: Settings) -> Iterator[Finding]:
    interpreter = Interpreter.current()
    try:
        interpreter.check(numpy_below_2=_installed_needs_numpy_1(settings))
    except UsageError as error:
        yield Finding("python", str(error), False)
    else:
        where = interpreter.library_folder or "the system's folders"
        yield Finding(
            "python",
            f"{platform.python_version()}, numpy {interpreter.numpy}, {interpreter.library} in {where}",
            True,
        )


def _installed_needs_numpy_1(settings: Settings) -> bool:
    try:
        installed = find_installed(settings.environment.get("PATH", ""), settings.environment)
    except UsageError:
        return True
    return installed is None or installed.numpy_below_2


def _triton(settings: Settings) -> Finding:
    try:
        installed = find_installed(settings.environment.get("PATH", ""), settings.environment)
    except UsageError as error:
        return Finding("tritonserver", str(error), False)
    if installed is not None:
        return Finding(
            "tritonserver", f"{installed.version or 'of unknown version'}, {installed.executable}", True
        )
    name = f"{TRITON_WHEEL_VERSION} of PyPI's {TRITON_WHEEL.requirement}"
    entry = settings.home / "packages" / entry_key("pypi", TRITON_WHEEL.name, TRITON_WHEEL.version or "")
    if entry.is_dir():
        return Finding("tritonserver", f"{name}, {entry}", True)
    reason = _wheel_misfit()
    if reason is not None:
        return Finding("tritonserver", f"none on PATH, and {name} does not run here: {reason}", False)
    return Finding("tritonserver", f"none on PATH; {name} will be downloaded (55 MB)", True)


def _wheel_misfit() -> str | None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return f"it is for Linux on x86_64, this is {platform.system()} on {platform.machine()}"
    library, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if library != "glibc" or numbers < _WHEEL_GLIBC:
        return f"it needs glibc 2.35 or newer, this is {library or 'another C library'} {version}"
    return None


def _openvino() -> Finding:
    versions = {name: _version(name) for name in ("openvino", "openvino-genai")}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        return Finding(
            "openvino", f"{' and '.join(missing)} missing; run pip install uzu-serving again", False
        )
    return Finding("openvino", ", ".join(f"{name} {version}" for name, version in versions.items()), True)


def _machine(settings: Settings) -> Iterator[Finding]:
    flags = _cpu_flags()
    present = [flag for flag in _CPU_FLAGS if flag in flags]
    yield Finding(
        "processor",
        f"{platform.machine()}, {' '.join(present) or 'none of the usual vector extensions'}"
        + ("" if "avx2" in flags else "; without avx2 the native engine will be slow"),
        None if "avx2" not in flags else True,
    )
    memory = _available_memory()
    if memory is not None:
        yield _amount("memory", memory, _WANTED_MEMORY_BYTES, "available; smollm2 needs about 2 GB")
    home = settings.home
    existing = next(folder for folder in (home, *home.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    yield _amount("disk", free, _WANTED_DISK_BYTES, f"free at {home} (UZU_HOME); smollm2 needs about 1 GB")
    shared = Path("/dev/shm")
    if shared.is_dir():
        text = "free in /dev/shm, through which Triton talks to the engine"
        yield _amount("shared memory", shutil.disk_usage(shared).free, _WANTED_SHARED_BYTES, text)


def _amount(subject: str, have: int, wanted: int, text: str) -> Finding:
    return Finding(subject, f"{have / 1e9:.1f} GB {text}", have >= wanted)


def _backends() -> Iterator[Finding]:
    gpu = shutil.which("nvidia-smi") is not None or Path("/dev/nvidia0").exists()
    yield Finding(
        "gpu", "NVIDIA GPU found" if gpu else "no NVIDIA GPU found; the native engine needs none", None
    )
    for backend, module in _FASTER_BACKENDS.items():
        found = util.find_spec(module) is not None
        text = f"package {module} is {'installed' if found else 'not installed'}"
        yield Finding(backend, f"{text}; this version of Uzu serves with the native engine only", None)


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
