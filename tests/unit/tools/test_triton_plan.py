import socketserver
import threading
from pathlib import Path

import pytest

from uzu.errors import UsageError
from uzu.interpreter import Interpreter
from uzu.triton import TritonInstallation, TritonPlan, answers, find_installed, from_wheel

PYTHON = Interpreter(
    Path("/venv/bin/python"), (3, 11), "1.26.4", "libpython3.11.so.1.0", Path("/py/lib"), True
)


def lay(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch(mode=0o755)


def installed(root: Path) -> Path:
    lay(root, "bin/tritonserver", "backends/python/libtriton_python.so")
    lay(root, "backends/python/triton_python_backend_stub", "caches/local/libtritoncache_local.so")
    return root / "bin"


def test_the_server_on_path_wins(tmp_path: Path) -> None:
    path = f"/nowhere:{installed(tmp_path)}"
    found = find_installed(path, {"TRITON_SERVER_VERSION": "2.60.0"})
    assert found is not None
    assert found.executable == tmp_path / "bin" / "tritonserver"
    assert found.python_backend == tmp_path / "backends" / "python"
    assert not found.numpy_below_2
    assert find_installed("/nowhere", {}) is None


def test_a_server_without_python_backend_is_refused(tmp_path: Path) -> None:
    lay(tmp_path, "bin/tritonserver")
    with pytest.raises(UsageError, match="has no Python backend"):
        find_installed(str(tmp_path / "bin"), {})
    lay(tmp_path, "backends/python/libtriton_python.so")
    with pytest.raises(UsageError, match="has no triton_python_backend_stub"):
        find_installed(str(tmp_path / "bin"), {})


def test_the_wheel_must_have_a_stub_for_this_python(tmp_path: Path) -> None:
    lay(tmp_path, "pytriton/tritonserver/python_backend_stubs/3.11/triton_python_backend_stub")
    assert from_wheel(tmp_path, PYTHON).numpy_below_2
    newer = Interpreter(Path("/p"), (3, 14), "1.26.4", "l", None, True)
    with pytest.raises(UsageError, match=r"no stub for Python 3\.14"):
        from_wheel(tmp_path, newer)


def plan(**changes: object) -> TritonPlan:
    installation = TritonInstallation(
        Path("/t/bin/tritonserver"), Path("/t/python"), None, Path("/t/caches"), (Path("/t/libs"),), "2.51.0"
    )
    settings: dict[str, object] = {
        "installation": installation,
        "interpreter": PYTHON,
        "model_repository": Path("/run/models"),
        "backends": Path("/run/backends"),
        "models": ["m"],
        "shared_memory_prefix": "uzu-1-",
        "http_port": 1,
        "grpc_port": 2,
        "metrics_port": 3,
    }
    return TritonPlan(**{**settings, **changes})  # type: ignore[arg-type]


def test_it_listens_on_this_machine_only() -> None:
    command = plan().command()
    for service, port in (("http", 1), ("grpc", 2), ("metrics", 3)):
        assert f"--{service}-address=127.0.0.1" in command
        assert f"--{service}-port={port}" in command
    assert "--load-model=m" in command
    assert "--backend-config=python,shm-region-prefix-name=uzu-1-" in command
    assert "--exit-on-error=true" in command


def test_the_log_level_is_passed_on() -> None:
    assert "--log-info=true" in plan().command()
    assert "--log-info=false" in plan(quiet=True).command()
    assert "--log-verbose=1" in plan(verbose=True).command()
    assert "--log-verbose=1" not in plan().command()


def test_our_python_and_its_libraries_come_first() -> None:
    environment = plan().environment({"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/mine", "HOME": "/h"})
    assert environment["PATH"] == "/venv/bin:/usr/bin"
    assert environment["LD_LIBRARY_PATH"] == "/t/libs:/py/lib:/mine"
    assert environment["HOME"] == "/h"
    assert plan().environment({})["LD_LIBRARY_PATH"] == "/t/libs:/py/lib"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": (3, 13)}, "needs Python 3.11 or 3.12"),
        ({"numpy": "2.1.0"}, "numpy is 2.1.0; Triton's Python stub needs one below 2"),
        ({"numpy": None}, "numpy is missing"),
        ({"library_found": False}, "libpython3.11.so.1.0 is missing"),
    ],
)
def test_a_python_that_does_not_fit_is_refused(changes: dict[str, object], says: str) -> None:
    fields = {name: getattr(PYTHON, name) for name in Interpreter.__dataclass_fields__}
    with pytest.raises(UsageError, match=says):
        Interpreter(**{**fields, **changes}).check(numpy_below_2=True)


def test_this_python_fits() -> None:
    Interpreter.current().check(numpy_below_2=True)


def test_what_is_no_http_is_no_answer() -> None:
    class Noise(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1024)
            self.request.sendall(b"\x00\x00\x18\x04\n")

    with socketserver.TCPServer(("127.0.0.1", 0), Noise) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert not answers(f"http://127.0.0.1:{server.server_address[1]}/v2/health/ready")
        finally:
            server.shutdown()
            thread.join()
