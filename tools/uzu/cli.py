"""The `uzu` command line."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any, cast

import click

from uzu import __version__
from uzu.checkpoint import WEIGHTS, convert_checkpoint
from uzu.console import Console, OutputClosedError
from uzu.doctor import examine
from uzu.environments import ENVIRONMENTS, set_up
from uzu.errors import ExitCode, UsageError, UzuError
from uzu.fetch import fetch
from uzu.plain_triton import PlainTritonOptions, run_triton
from uzu.resources import model_repository
from uzu.serve import BACKENDS, LOG_LEVELS, MOST_INSTANCES, LogLevel, ServeOptions, serve
from uzu.settings import Settings

DEFAULT_MODEL = "smollm2"
_PORT = click.IntRange(1, 65535)
_SIGNAL_BASE = 128


class _InterruptedError(BaseException):
    """A signal that asked to stop before serving began."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(__version__, prog_name="uzu")
def cli() -> None:
    """Serve language models through NVIDIA Triton with an OpenAI API."""


@cli.command("serve")
@click.option(
    "--model",
    default=DEFAULT_MODEL,
    show_default=True,
    help="A name in the model repository, an OpenVINO folder, a .gguf file, pypi:PACKAGE[==VERSION], or a "
    "hub id ORG/NAME[@REVISION] or ORG/NAME:FILE.gguf.",
)
@click.option("--served-name", help="What clients call the model; default: from --model.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the gateway.")
@click.option("--port", type=_PORT, default=8080, show_default=True, help="Port of the gateway.")
@click.option("--backend", type=click.Choice(BACKENDS), default="auto", show_default=True, help="Engine.")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Model repository for names; default: the one that comes with Uzu.",
)
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="Run directory; default: one under UZU_HOME."
)
@click.option("--keep", is_flag=True, help="Leave the run directory when serving ends.")
@click.option("--triton-http-port", type=_PORT, help="Default: a free one.")
@click.option("--triton-grpc-port", type=_PORT, help="Default: a free one.")
@click.option("--triton-metrics-port", type=_PORT, help="Default: a free one.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Engine option for 1/model.json; VALUE is JSON, or else text. May be repeated.",
)
@click.option(
    "--gateway-option",
    "gateway_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the gateway, such as admin_key_file=KEYFILE. May be repeated.",
)
@click.option(
    "--instances",
    type=click.IntRange(1, MOST_INSTANCES),
    help="Processes that serve the model and share out the CPUs; default: as the model's config.pbtxt says.",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS),
    default="info",
    show_default=True,
    help="How much Triton and the gateway say.",
)
@click.option(
    "--ready-timeout",
    type=click.FloatRange(min=1.0),
    default=300.0,
    show_default=True,
    help="Seconds until the model must be loaded.",
)
def _serve(
    model: str,
    served_name: str | None,
    host: str,
    port: int,
    backend: str,
    repository: Path | None,
    run_dir: Path | None,
    keep: bool,
    triton_http_port: int | None,
    triton_grpc_port: int | None,
    triton_metrics_port: int | None,
    options: tuple[str, ...],
    gateway_options: tuple[str, ...],
    instances: int | None,
    log_level: str,
    ready_timeout: float,
) -> ExitCode:
    """Serve a model until Ctrl-C."""
    settings = Settings.from_environment()
    return serve(
        ServeOptions(
            model=model,
            repository=repository or model_repository(),
            served_name=served_name,
            host=host,
            port=port,
            backend=backend,
            run_dir=run_dir,
            keep=keep,
            triton_ports=(triton_http_port, triton_grpc_port, triton_metrics_port),
            engine_options=dict(map(_parse_option, options)),
            gateway_options=dict(map(_parse_gateway_option, gateway_options)),
            instances=instances,
            log_level=cast(LogLevel, log_level),
            ready_timeout_s=ready_timeout,
        ),
        settings,
        Console(color=settings.color),
    )


@cli.command("triton")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    help="Model repository; default: the one that comes with Uzu.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- TRITON OPTIONS]")
def _triton(repository: Path | None, arguments: tuple[str, ...]) -> ExitCode:
    """Run a plain tritonserver with Uzu's backends until Ctrl-C.

    It serves a model repository exactly as it is, without a gateway. What follows -- goes to tritonserver.
    """
    settings = Settings.from_environment()
    return run_triton(
        PlainTritonOptions(repository=repository or model_repository(), arguments=arguments),
        settings,
        Console(color=settings.color),
    )


@cli.command("fetch")
@click.argument("model")
@click.option(
    "--repository",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Model repository for names; default: the one that comes with Uzu.",
)
def _fetch(model: str, repository: Path | None) -> ExitCode:
    """Download and prepare MODEL, and print where it lies.

    MODEL is what `uzu serve --model` takes. A name in the repository gets its 1/weights linked.
    """
    settings = Settings.from_environment()
    console = Console(color=settings.color)
    console.result(str(fetch(model, repository or model_repository(), settings, console)))
    return ExitCode.OK


@cli.command("convert")
@click.argument("checkpoint", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--weights", type=click.Choice(WEIGHTS), default="int4", show_default=True, help="Precision.")
@click.option(
    "--group-size",
    type=click.IntRange(8, 1024),
    default=64,
    show_default=True,
    help="int4 weights that share a scale.",
)
def _convert(checkpoint: Path, folder: Path, weights: str, group_size: int) -> ExitCode:
    """Make FOLDER, which the native engine loads, out of the Hugging Face CHECKPOINT.

    Needs an environment of its own: `uzu setup convert`.
    """
    settings = Settings.from_environment()
    console = Console(color=settings.color)
    made = convert_checkpoint(checkpoint, folder, weights, group_size, settings, console)
    console.result(str(made))
    return ExitCode.OK


@cli.command("setup")
@click.argument("name", type=click.Choice(sorted(ENVIRONMENTS)))
def _setup(name: str) -> ExitCode:
    """Make the Python environment NAME, and print its interpreter."""
    settings = Settings.from_environment()
    console = Console(color=settings.color)
    console.result(str(set_up(name, settings, console)))
    return ExitCode.OK


@cli.command("doctor")
def _doctor() -> ExitCode:
    """Say what this machine can run, and why not."""
    settings = Settings.from_environment()
    console = Console(color=settings.color)
    findings = examine(settings)
    for finding in findings:
        console.result(str(finding))
    if any(finding.fits is False for finding in findings):
        console.result("`uzu serve` cannot run here as it is.")
        return ExitCode.CANNOT_START
    console.result("`uzu serve` can run here.")
    return ExitCode.OK


def main() -> None:
    """Entry point: exits with an `ExitCode`, or 128 + a signal's number when stopped before serving."""
    signal.signal(signal.SIGTERM, _on_signal)
    signal.signal(signal.SIGINT, _on_signal)
    console = Console()
    try:
        code = cli.main(standalone_mode=False)
    except _InterruptedError as error:
        console.error(f"stopped by {signal.Signals(error.number).name} before anything was serving")
        code = _SIGNAL_BASE + error.number
    except click.ClickException as error:
        console.error(f"{error.format_message()} (see uzu --help)")
        code = ExitCode.CANNOT_START
    except OutputClosedError:
        code = ExitCode.OK
    except UzuError as error:
        console.error(str(error))
        code = error.exit_code
    sys.exit(int(code or 0))


def _on_signal(number: int, _: FrameType | None) -> None:
    raise _InterruptedError(number)


def _parse_gateway_option(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise UsageError(f"--gateway-option: {text!r} is not KEY=VALUE")
    return key.replace("-", "_"), value


def _parse_option(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise UsageError(f"--option: {text!r} is not KEY=VALUE")
    if key in ("model", "source"):
        raise UsageError("--option: 'model' and 'source' are not for this option; use --model")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value
