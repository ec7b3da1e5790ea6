"""Facts about the Python that runs us, since Triton's stub runs the same one."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from uzu.errors import UsageError

SUPPORTED = ((3, 11), (3, 12))


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python for the stubs of Triton's Python backend.

    Args:
        executable: in an environment, that of the environment.
        version: major and minor.
        numpy: numpy's version, None when it is not installed.
        library: the name of the shared library that the stub loads.
        library_folder: where it lies; None when the system finds it by itself.
        library_found: whether it can be loaded.

    """

    executable: Path
    version: tuple[int, int]
    numpy: str | None
    library: str
    library_folder: Path | None
    library_found: bool

    @classmethod
    def current(cls) -> Interpreter:
        """The one that runs this code."""
        version = sys.version_info[:2]
        library = f"libpython{version[0]}.{version[1]}.so.1.0"
        folders = [sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"]
        folder = next((Path(f) for f in folders if f and (Path(f) / library).is_file()), None)
        try:
            numpy = metadata.version("numpy")
        except metadata.PackageNotFoundError:
            numpy = None
        return cls(
            executable=Path(sys.executable),
            version=version,
            numpy=numpy,
            library=library,
            library_folder=folder,
            library_found=folder is not None or _loads(library),
        )

    def check(self, *, numpy_below_2: bool) -> None:
        """Make sure that Triton's stub can run it.

        Args:
            numpy_below_2: whether the stub cannot work with numpy 2.

        Raises:
            UsageError: it cannot.

        """
        name = f"Python {self.version[0]}.{self.version[1]} ({self.executable})"
        if self.version not in SUPPORTED:
            raise UsageError(f"{name}: Uzu needs Python 3.11 or 3.12; install it into an environment of one")
        if self.numpy is None:
            raise UsageError(f"{name}: numpy is missing; run pip install 'numpy==1.26.4'")
        if numpy_below_2 and int(self.numpy.split(".")[0]) >= 2:
            raise UsageError(
                f"{name}: numpy is {self.numpy}; Triton's Python stub needs one below 2, and returns empty "
                "arrays with a newer one; run pip install 'numpy==1.26.4'"
            )
        if not self.library_found:
            raise UsageError(
                f"{name}: its shared library {self.library} is missing; on Debian install "
                f"libpython{self.version[0]}.{self.version[1]}, with pyenv build it with --enable-shared"
            )


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
