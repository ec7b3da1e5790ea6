"""A real tritonserver with a real model."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from uzu.console import Console
from uzu.interpreter import Interpreter
from uzu.ports import free_ports
from uzu.processes import guarded
from uzu.repository_model import NativeModel
from uzu.resources import model_repository, python_backends
from uzu.rundir import RunDirectory, run_directory
from uzu.settings import Settings
from uzu.sources.specifier import RepositoryModel
from uzu.store import Store
from uzu.triton import TritonInstallation, TritonPlan, find_triton

START_TIMEOUT_S = 120.0
MODEL = "smollm2"


@dataclass(frozen=True)
class RunningTriton:
    """A tritonserver that serves `models`.

    Args:
        plan: ports and folders.
        process: its guardian; SIGTERM ends it in order.
        log_path: what it says.

    """

    plan: TritonPlan
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def http_url(self) -> str:
        return self.plan.http_url

    @property
    def http_address(self) -> str:
        """HOST:PORT, as Triton's HTTP client wants it."""
        return self.plan.http_url.removeprefix("http://")

    @property
    def grpc_address(self) -> str:
        return self.plan.grpc_address

    @property
    def metrics_url(self) -> str:
        return self.plan.metrics_url

    @property
    def model(self) -> str:
        return self.plan.models[0]

    @property
    def log(self) -> str:
        return self.log_path.read_text("utf-8", "replace")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.plan.is_ready():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.2)

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=self.plan.exit_timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=10)


TritonFactory = Callable[..., RunningTriton]


@pytest.fixture(scope="session")
def triton_installation(settings: Settings, store: Store) -> TritonInstallation:
    """The tritonserver that `uzu serve` would use; downloaded on first use."""
    return find_triton(store, Console(color=False), settings.environment, Interpreter.current())


@pytest.fixture(scope="session")
def start_triton(
    triton_installation: TritonInstallation,
    settings: Settings,
    prepared_smollm2: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonFactory]:
    """Start a tritonserver with our backends: `start_triton(repository=…)` on a repository as it is, or
    `start_triton(options={…})` on smollm2 with other engine options, under further names with `also` and with
    `instances` of each. It is ended after the session."""
    running: list[RunningTriton] = []
    with contextlib.ExitStack() as stack:

        def start(
            *,
            repository: Path | None = None,
            model: str = MODEL,
            options: Mapping[str, Any] | None = None,
            also: Sequence[str] = (),
            instances: int | None = None,
        ) -> RunningTriton:
            folder = tmp_path_factory.mktemp("triton")
            run: RunDirectory = stack.enter_context(run_directory(settings.home, folder / "run"))
            run.lay_backends(triton_installation, python_backends())
            if repository is None:
                place = RepositoryModel(model_repository(), model)
                own = NativeModel.load(place).options
                content = {**own, **(options or {})}
                for name in (model, *also):
                    run.lay_native_model(name, prepared_smollm2, content, place.path, instances)
            http, grpc, metrics = free_ports(3)
            plan = TritonPlan(
                installation=triton_installation,
                interpreter=Interpreter.current(),
                model_repository=repository or run.model_repository,
                backends=run.backends,
                models=[model, *also],
                shared_memory_prefix=run.shared_memory_prefix,
                http_port=http,
                grpc_port=grpc,
                metrics_port=metrics,
            )
            log = folder / "triton.log"
            with log.open("wb") as file:
                process = subprocess.Popen(
                    guarded(plan.command(), plan.exit_timeout_s),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    env=plan.environment(settings.environment),
                    start_new_session=True,
                )
            running.append(RunningTriton(plan, process, log))
            running[-1].wait_ready()
            return running[-1]

        try:
            yield start
        finally:
            for server in reversed(running):
                server.close()


@pytest.fixture(scope="session")
def triton(start_triton: TritonFactory) -> RunningTriton:
    """One tritonserver with smollm2, as `uzu serve` lays it out, for every test that leaves it running."""
    return start_triton()
