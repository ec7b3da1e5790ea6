import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tools" / "find_python.sh"


def find(*candidates: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *candidates],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **environment},
    )


def wrapper(tmp_path: Path, name: str, before: str) -> str:
    """A Python whose answers are changed by the statements `before`."""
    path = tmp_path / name
    path.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -c "{before}\n$1"\n')
    path.chmod(0o755)
    return str(path)


def test_the_first_that_fits_is_printed(tmp_path: Path) -> None:
    old = wrapper(tmp_path, "old", "import sys; sys.version_info = (3, 10, 4)")
    result = find("no-such-python", old, sys.executable)
    assert (result.returncode, result.stdout) == (0, f"{sys.executable}\n")
    assert result.stderr == ""


def test_each_misfit_is_named_with_what_to_install(tmp_path: Path) -> None:
    old = wrapper(tmp_path, "old", "import platform, sys; sys.version_info = (3, 13, 0)")
    static = wrapper(tmp_path, "static", "import ctypes\ndef f(*a): raise OSError('no')\nctypes.CDLL = f")
    bare = wrapper(tmp_path, "bare", "import sys; sys.modules['ensurepip'] = None")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'broken: command not found' >&2\nexit 127\n")
    broken.chmod(0o755)
    result = find(old, static, bare, str(broken), "no-such-python")
    assert (result.returncode, result.stdout) == (1, "")
    assert f"{old}: is CPython" in result.stderr
    assert "3.11 or 3.12 is needed" in result.stderr
    assert f"{static}: has no shared library libpython3." in result.stderr
    assert f"{bare}: has no module" in result.stderr
    assert f"{broken}: broken: command not found" in result.stderr
    assert "no-such-python: not found" in result.stderr
    assert "apt-get install python3.11 python3.11-venv libpython3.11" in result.stderr


def test_python_in_the_environment_is_the_only_candidate() -> None:
    assert find(PYTHON=sys.executable).stdout == f"{sys.executable}\n"
    result = find(PYTHON="/no/such/python")
    assert result.returncode == 1
    assert "/no/such/python: not found" in result.stderr
