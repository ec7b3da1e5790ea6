"""`uzu serve`: checks everything, prepares the model, then runs tritonserver and the gateway."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from uzu.console import Console
from uzu.engine_options import check_engine_options
from uzu.errors import ExitCode, UsageError
from uzu.gateway_options import gateway_arguments
from uzu.gguf import read_header
from uzu.interpreter import Interpreter
from uzu.model_folder import check_model_folder
from uzu.ports import check_port, free_ports, reachable
from uzu.repository_model import NativeModel
from uzu.resources import python_backends
from uzu.rundir import RunDirectory, run_directory
from uzu.settings import Settings
from uzu.sources.prepare import Preparer
from uzu.sources.specifier import (
    GgufFile,
    HubModel,
    LocalFolder,
    PypiPackage,
    RepositoryModel,
    Specifier,
    parse_specifier,
)
from uzu.store import Store
from uzu.stub_watch import StubWatch
from uzu.supervisor import Repair, Service, Supervisor, hides_nothing
from uzu.triton import TritonPlan, answers, find_installed, find_triton
from uzu.triton_log import explain_failure, is_noise, is_table

BACKENDS = ("auto", "native", "vllm", "tensorrtllm")
LOG_LEVELS = ("debug", "info", "warning", "error")
MOST_INSTANCES = 64
LogLevel = Literal["debug", "info", "warning", "error"]
_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_JSON = "-H 'Content-Type: application/json'"
_GATEWAY_READY_TIMEOUT_S = 60.0
_GATEWAY_GRACE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What a person can say about serving; docs/configuration.md describes each.

    Args:
        model: a source, or a name in `repository`.
        repository: the model repository that names are looked up in.
        served_name: what clients call the model.
        host: address of the gateway.
        port: of the gateway.
        backend: one of `BACKENDS`.
        run_dir: instead of one under `UZU_HOME`.
        keep: leave the run directory when it ends.
        triton_ports: HTTP, gRPC and metrics; None means any free one.
        engine_options: go into 1/model.json.
        gateway_options: of the gateway, by name, as text.
        instances: processes that serve the model; None leaves it to the model's configuration, or is one.
        log_level: how much Triton and the gateway say.
        ready_timeout_s: until the model is loaded.

    """

    model: str
    repository: Path
    served_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8080
    backend: str = "auto"
    run_dir: Path | None = None
    keep: bool = False
    triton_ports: tuple[int | None, int | None, int | None] = (None, None, None)
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    gateway_options: Mapping[str, str] = field(default_factory=dict)
    instances: int | None = None
    log_level: LogLevel = "info"
    ready_timeout_s: float = 300.0


def serve(options: ServeOptions, settings: Settings, console: Console) -> ExitCode:
    """Serve until asked to stop, or until a service fails.

    Raises:
        UsageError: something does not fit; nothing was started.
        PreparationError: the model or tritonserver could not be fetched; nothing was started.

    """
    if options.backend not in ("auto", "native"):
        raise UsageError(f"--backend: {options.backend} is not in this version of Uzu; native is (or auto)")
    specifier = parse_specifier(options.model, options.repository)
    native = _check_source(specifier)
    if native is not None:
        check_engine_options(native.options, str(native.options_path))
    check_engine_options({"model": "weights", **options.engine_options}, "--option")
    gateway = gateway_arguments(options.gateway_options, settings.home / "gateway")
    name = _served_name(options.served_name, specifier)
    _check_ports(options)
    interpreter = Interpreter.current()
    environment = settings.environment
    installed = find_installed(environment.get("PATH", ""), environment)
    interpreter.check(numpy_below_2=installed is None or installed.numpy_below_2)
    store = Store(settings.home, console)
    preparer = Preparer(store, console, environment)
    weights = _prepare(specifier, native, preparer)
    triton = find_triton(store, console, environment, interpreter)
    with run_directory(settings.home, options.run_dir, keep=options.keep) as run:
        run.lay_backends(triton, python_backends())
        own = {} if native is None else native.options
        template = None if native is None else native.place.path
        run.lay_native_model(name, weights, {**own, **options.engine_options}, template, options.instances)
        ports = free_ports(3)
        http, grpc, metrics = (given or free for given, free in zip(options.triton_ports, ports, strict=True))
        plan = TritonPlan(
            installation=triton,
            interpreter=interpreter,
            model_repository=run.model_repository,
            backends=run.backends,
            models=[name],
            shared_memory_prefix=run.shared_memory_prefix,
            http_port=http,
            grpc_port=grpc,
            metrics_port=metrics,
            verbose=options.log_level == "debug",
            quiet=options.log_level in ("warning", "error"),
        )
        return _run(plan, name, options, gateway, environment, run, console)


def _run(
    plan: TritonPlan,
    name: str,
    options: ServeOptions,
    gateway: Sequence[str],
    environment: Mapping[str, str],
    run: RunDirectory,
    console: Console,
) -> ExitCode:
    url = f"http://{reachable(options.host)}:{options.port}"
    services = [
        Service(
            name="triton",
            command=plan.command(),
            environment=plan.environment(environment),
            ready=plan.is_ready,
            ready_timeout_s=options.ready_timeout_s,
            grace_s=plan.exit_timeout_s,
            failure=ExitCode.TRITON_FAILED,
            explain=explain_failure,
            hides=hides_nothing if plan.verbose else lambda line: is_noise(line) or is_table(line),
            repair=Repair(
                whole=StubWatch(plan.is_ready), clean=run.remove_shared_memory, loss="lost its Python stub"
            ),
        ),
        Service(
            name="gateway",
            command=[
                *(sys.executable, "-m", "uzu_gateway"),
                *("--host", options.host, "--port", str(options.port)),
                *("--triton-url", plan.grpc_address, "--default-model", name),
                *("--log-level", options.log_level),
                *gateway,
            ],
            environment=environment,
            ready=lambda: answers(f"{url}/health/ready"),
            ready_timeout_s=_GATEWAY_READY_TIMEOUT_S,
            grace_s=_GATEWAY_GRACE_S,
            failure=ExitCode.GATEWAY_FAILED,
        ),
    ]

    def announce() -> None:
        console.result(
            f"\nUzu serves {name} at {url}/v1 (Ctrl-C stops it). Triton: {plan.http_url}, gRPC "
            f"{plan.grpc_address}, {plan.metrics_url}\nTry it:\n"
            f"  curl {url}/v1/completions {_JSON} "
            """-d '{"prompt": "Once upon a time", "max_tokens": 100}'\n"""
            f"  curl {url}/v1/chat/completions {_JSON} "
            """-d '{"messages": [{"role": "user", "content": "What is the capital of France?"}], """
            """"temperature": 0}'\n"""
        )

    if options.keep:
        console.note(f"run directory: {run.path}")
    return asyncio.run(Supervisor(services, console, announce).run())


def _check_source(specifier: Specifier) -> NativeModel | None:
    """Look at what is on this disk already; the model when it is one of a repository."""
    match specifier:
        case LocalFolder(path):
            check_model_folder(path)
        case GgufFile(path):
            read_header(path)
        case RepositoryModel():
            model = NativeModel.load(specifier)
            model.source()
            return model
    return None


def _prepare(specifier: Specifier, native: NativeModel | None, preparer: Preparer) -> Path:
    if native is not None:
        folder = native.prepare(preparer)
        check_model_folder(folder)
        return folder
    if isinstance(specifier, RepositoryModel):
        raise TypeError("a model of a repository is prepared by NativeModel")
    return preparer.prepare(specifier)


def _served_name(given: str | None, specifier: Specifier) -> str:
    if given is not None:
        if not _MODEL_NAME.fullmatch(given):
            raise UsageError(
                f"--served-name: {given!r:.80} must be up to 128 letters, digits, '_', '-' and '.'"
            )
        return given
    match specifier:
        case LocalFolder(path):
            name = path.name
        case GgufFile(path):
            name = path.stem
        case PypiPackage(name=name):
            pass
        case HubModel(repository=repository):
            name = repository.rpartition("/")[2]
        case RepositoryModel(name=name):
            pass
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip("-.") or "model"


def _check_ports(options: ServeOptions) -> None:
    check_port(options.host, options.port, "--port")
    given = dict(zip(("http", "grpc", "metrics"), options.triton_ports, strict=True))
    named = {"--port": options.port} | {f"--triton-{k}-port": v for k, v in given.items() if v is not None}
    seen: dict[int, str] = {}
    for option, port in named.items():
        if port in seen:
            raise UsageError(f"{option}: {port} is the same as {seen[port]}; choose another port")
        seen[port] = option
        if option != "--port":
            check_port("127.0.0.1", port, option)
