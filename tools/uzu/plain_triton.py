"""`uzu triton`: a plain tritonserver on a model repository as it is, with Uzu's backends within its reach."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uzu.console import Console
from uzu.errors import ExitCode, UsageError
from uzu.interpreter import Interpreter
from uzu.ports import check_port, reachable
from uzu.repository_model import native_models
from uzu.resources import model_repository, python_backends
from uzu.rundir import run_directory
from uzu.settings import Settings
from uzu.store import Store
from uzu.supervisor import Service, Supervisor
from uzu.triton import (
    EXIT_TIMEOUT_S,
    answers,
    find_installed,
    find_triton,
    stub_options,
    triton_environment,
)
from uzu.triton_log import explain_failure

_OURS = {
    "model-repository": "use --repository before --",
    "model-store": "use --repository before --",
    "backend-directory": "uzu lays it; put backends into a tritonserver of your own on PATH",
}
_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTritonOptions:
    """What a person can say; docs/configuration.md describes each.

    Args:
        repository: the model repository.
        arguments: options of tritonserver itself.
        ready_timeout_s: until every model is loaded.

    """

    repository: Path
    arguments: Sequence[str] = ()
    ready_timeout_s: float = 300.0


def run_triton(options: PlainTritonOptions, settings: Settings, console: Console) -> ExitCode:
    """Run tritonserver until asked to stop, or until it fails.

    Raises:
        UsageError: something does not fit; nothing was started.
        PreparationError: tritonserver could not be fetched; nothing was started.

    """
    given = _parsed(options.arguments)
    for name, instead in _OURS.items():
        if name in given:
            raise UsageError(f"--{name} is not for `uzu triton`: {instead}")
    _check_weights(options.repository, given)
    listening = {service: _address(given, service) for service in _PORTS if _is_allowed(given, service)}
    for service, (host, port) in listening.items():
        check_port(host, port, f"--{service}-port")
    interpreter = Interpreter.current()
    environment = settings.environment
    installed = find_installed(environment.get("PATH", ""), environment)
    interpreter.check(numpy_below_2=installed is None or installed.numpy_below_2)
    triton = find_triton(Store(settings.home, console), console, environment, interpreter)
    with run_directory(settings.home) as run:
        run.lay_backends(triton, python_backends())
        command = [
            str(triton.executable),
            f"--model-repository={options.repository}",
            f"--backend-directory={run.backends}",
            *stub_options(run.shared_memory_prefix),
            *(f"--{name}={value}" for name, value in _defaults().items() if name not in given),
            *options.arguments,
        ]
        if triton.caches is not None and "cache-directory" not in given:
            command.insert(1, f"--cache-directory={triton.caches}")
        urls = {name: f"{reachable(host)}:{port}" for name, (host, port) in listening.items()}
        triton_service = Service(
            name="triton",
            command=command,
            environment=triton_environment(triton, interpreter, environment),
            ready=lambda: "http" not in urls or answers(f"http://{urls['http']}/v2/health/ready"),
            ready_timeout_s=options.ready_timeout_s,
            grace_s=_exit_timeout_s(given) + 5.0,
            failure=ExitCode.TRITON_FAILED,
            explain=explain_failure,
        )

        def announce() -> None:
            where = ", ".join(f"{name} {url}" for name, url in urls.items()) or "nowhere"
            console.result(f"\nTriton serves {options.repository} at {where} (Ctrl-C stops it).\n")

        return asyncio.run(Supervisor([triton_service], console, announce).run())


def _defaults() -> dict[str, str]:
    """Triton's own ports, on this machine only: its interfaces ask nobody who they are."""
    defaults = {"exit-timeout-secs": str(EXIT_TIMEOUT_S)}
    for service, port in _PORTS.items():
        defaults |= {f"{service}-address": "127.0.0.1", f"{service}-port": str(port)}
    return defaults


def _parsed(arguments: Sequence[str]) -> dict[str, list[str]]:
    """Tritonserver's long options as given, in `--name=value` or `--name value`, without the dashes."""
    found: dict[str, list[str]] = {}
    for index, argument in enumerate(arguments):
        if argument.startswith("--"):
            name, separator, value = argument[2:].partition("=")
            if not separator:
                after = arguments[index + 1] if index + 1 < len(arguments) else ""
                value = "" if after.startswith("--") else after
            found.setdefault(name, []).append(value)
    return found


def _check_weights(repository: Path, given: dict[str, list[str]]) -> None:
    """Refuse a native model that cannot load, of those that will be loaded at the start."""
    explicit = given.get("model-control-mode", [""])[-1] == "explicit"
    named = given.get("load-model", [])
    for model in native_models(repository):
        if explicit and model.place.name not in named and "*" not in named:
            continue
        if not model.weights.exists():
            remedy = f"run uzu fetch {model.place.name}"
            if repository != model_repository():
                remedy += f" --repository {repository}"
            if model.source() is None:
                remedy = "put a prepared model folder there"
            raise UsageError(f"model {model.place.name!r} has no weights at {model.weights}; {remedy}")


def _is_allowed(given: dict[str, list[str]], service: str) -> bool:
    return given.get(f"allow-{service}", ["true"])[-1].lower() not in ("false", "0")


def _address(given: dict[str, list[str]], service: str) -> tuple[str, int]:
    host = given.get(f"{service}-address", ["127.0.0.1"])[-1]
    port = given.get(f"{service}-port", [str(_PORTS[service])])[-1]
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise UsageError(f"--{service}-port: {port!r} is not a port between 1 and 65535")
    return host, int(port)


def _exit_timeout_s(given: dict[str, list[str]]) -> float:
    value = given.get("exit-timeout-secs", [str(EXIT_TIMEOUT_S)])[-1]
    return float(value) if value.isdecimal() else float(EXIT_TIMEOUT_S)
