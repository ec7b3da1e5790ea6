"""Finds a tritonserver, and says how to start it."""

from __future__ import annotations

import http.client
import shutil
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from uzu.console import Console
from uzu.errors import UsageError
from uzu.interpreter import Interpreter
from uzu.pypi import TRITON_WHEEL, TRITON_WHEEL_VERSION, fetch_package
from uzu.store import Store

STUB = "triton_python_backend_stub"
_STUB_TIMEOUT_S = 120
EXIT_TIMEOUT_S = 25
_PROBE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class TritonInstallation:
    """A tritonserver with its Python backend.

    Args:
        executable: the server.
        python_backend: the folder of the Python backend.
        stub: the stub for our Python, when it lies elsewhere than in that folder.
        caches: folder of response caches, if any.
        libraries: folders that it needs on the library path.
        version: Triton's, when known.

    """

    executable: Path
    python_backend: Path
    stub: Path | None
    caches: Path | None
    libraries: tuple[Path, ...]
    version: str | None

    @property
    def numpy_below_2(self) -> bool:
        """Whether its stub cannot work with numpy 2 (true up to Triton 2.51)."""
        if self.version is None:
            return True
        major, minor = self.version.split(".")[:2]
        return (int(major), int(minor)) <= (2, 51)


def find_installed(search_path: str, environment: Mapping[str, str]) -> TritonInstallation | None:
    """The tritonserver on `search_path`, as in NVIDIA's images.

    Raises:
        UsageError: there is one, without a Python backend beside it.

    """
    found = shutil.which("tritonserver", path=search_path)
    if found is None:
        return None
    executable = Path(found).resolve()
    root = executable.parent.parent
    python_backend = root / "backends" / "python"
    if not (python_backend / "libtriton_python.so").is_file():
        raise UsageError(f"{executable} has no Python backend ({python_backend}); install it, or leave PATH")
    if not (python_backend / STUB).is_file():
        raise UsageError(f"{python_backend} has no {STUB}; install Triton's Python backend again")
    caches = root / "caches"
    return TritonInstallation(
        executable=executable,
        python_backend=python_backend,
        stub=None,
        caches=caches if caches.is_dir() else None,
        libraries=(root / "lib",) if (root / "lib").is_dir() else (),
        version=environment.get("TRITON_SERVER_VERSION"),
    )


def from_wheel(folder: Path, interpreter: Interpreter) -> TritonInstallation:
    """The tritonserver in an unpacked nvidia-pytriton wheel.

    Raises:
        UsageError: it has no stub for this Python.

    """
    root = folder / "pytriton" / "tritonserver"
    version = f"{interpreter.version[0]}.{interpreter.version[1]}"
    stub = root / "python_backend_stubs" / version / STUB
    if not stub.is_file():
        raise UsageError(f"{TRITON_WHEEL.requirement} has no stub for Python {version}; use 3.11 or 3.12")
    return TritonInstallation(
        executable=root / "bin" / "tritonserver",
        python_backend=root / "backends" / "python",
        stub=stub,
        caches=root / "caches",
        libraries=(folder / "nvidia_pytriton.libs",),
        version=TRITON_WHEEL_VERSION,
    )


def find_triton(
    store: Store, console: Console, environment: Mapping[str, str], interpreter: Interpreter
) -> TritonInstallation:
    """The one on PATH, else the one from PyPI, which is downloaded when the store has none.

    Raises:
        UsageError: the one that was found does not fit this machine.
        PreparationError: it cannot be downloaded.

    """
    installed = find_installed(environment.get("PATH", ""), environment)
    if installed is not None:
        return installed
    return from_wheel(fetch_package(store, TRITON_WHEEL, console, environment).path, interpreter)


def stub_options(shared_memory_prefix: str) -> list[str]:
    """Tritonserver's options for the stubs of its Python backend."""
    return [
        f"--backend-config=python,stub-timeout-seconds={_STUB_TIMEOUT_S}",
        f"--backend-config=python,shm-region-prefix-name={shared_memory_prefix}",
    ]


def triton_environment(
    installation: TritonInstallation, interpreter: Interpreter, inherited: Mapping[str, str]
) -> dict[str, str]:
    """`inherited` with our Python first on PATH, and the libraries that server and stubs load."""
    libraries = [*map(str, installation.libraries)]
    if interpreter.library_folder is not None:
        libraries.append(str(interpreter.library_folder))
    libraries += [inherited[name] for name in ("LD_LIBRARY_PATH",) if inherited.get(name)]
    path = [str(interpreter.executable.parent), inherited.get("PATH", "")]
    return {**inherited, "LD_LIBRARY_PATH": ":".join(libraries), "PATH": ":".join(filter(None, path))}


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPlan:
    """One run of tritonserver on 127.0.0.1.

    Args:
        installation: which one.
        interpreter: the Python of its stubs.
        model_repository: folder of model folders.
        backends: folder of backend folders.
        models: the models to load.
        shared_memory_prefix: how the names of its shared memory regions begin.
        http_port: of its HTTP interface.
        grpc_port: of its gRPC interface.
        metrics_port: of its Prometheus metrics.
        verbose: log every request.
        quiet: log warnings and errors only.

    """

    installation: TritonInstallation
    interpreter: Interpreter
    model_repository: Path
    backends: Path
    models: Sequence[str]
    shared_memory_prefix: str
    http_port: int
    grpc_port: int
    metrics_port: int
    verbose: bool = False
    quiet: bool = False

    def command(self) -> list[str]:
        """Program and arguments."""
        command = [
            str(self.installation.executable),
            f"--model-repository={self.model_repository}",
            f"--backend-directory={self.backends}",
            "--model-control-mode=explicit",
            *(f"--load-model={model}" for model in self.models),
            "--exit-on-error=true",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
            *stub_options(self.shared_memory_prefix),
            *("--http-address=127.0.0.1", f"--http-port={self.http_port}"),
            *("--grpc-address=127.0.0.1", f"--grpc-port={self.grpc_port}"),
            *("--metrics-address=127.0.0.1", f"--metrics-port={self.metrics_port}"),
            # What serves here uses no GPU; to ask for one is to be told at every start that there is none.
            *("--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"),
            f"--log-info={'false' if self.quiet else 'true'}",
        ]
        if self.installation.caches is not None:
            command.append(f"--cache-directory={self.installation.caches}")
        if self.verbose:
            command.append("--log-verbose=1")
        return command

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """See `triton_environment`."""
        return triton_environment(self.installation, self.interpreter, inherited)

    @property
    def http_url(self) -> str:
        """Base of its HTTP interface."""
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def grpc_address(self) -> str:
        """HOST:PORT of its gRPC interface."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """Where Prometheus reads."""
        return f"http://127.0.0.1:{self.metrics_port}/metrics"

    @property
    def exit_timeout_s(self) -> float:
        """How long it takes at most to stop by itself."""
        return EXIT_TIMEOUT_S + 5.0

    def is_ready(self) -> bool:
        """Whether every model can be asked."""
        urls = [f"{self.http_url}/v2/models/{model}/ready" for model in self.models]
        return all(answers(url) for url in (f"{self.http_url}/v2/health/ready", *urls))


def answers(url: str) -> bool:
    """Whether a GET of `url`, past any proxy, gives 200 within three seconds."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_PROBE_TIMEOUT_S) as response:
            return int(response.status) == 200
    except (OSError, http.client.HTTPException, ValueError):
        return False
