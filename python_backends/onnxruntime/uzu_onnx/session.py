"""Opens a model in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime as ort
from uzu_onnx.errors import ConfigError
from uzu_onnx.settings import SessionSettings

_WARNINGS = 2
"""ONNX Runtime's severity from which it writes to the log."""


def model_path(version_folder: Path, file: str) -> Path:
    """The model's file; a folder of that name holds one of the same name, beside its external data.

    Raises:
        ConfigError: there is none.
    """
    path = version_folder / file
    if path.is_dir():
        path /= file
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; `uzu fetch` gets the weights of models that name a source")
    return path


def open_session(path: Path, settings: SessionSettings) -> Any:
    """An `InferenceSession` as the settings say, with the CPU as the last provider.

    Raises:
        ConfigError: a provider that this onnxruntime does not have or cannot start, or a file that is no
            model.
    """
    available = ort.get_available_providers()
    for provider in settings.providers:
        if provider.name not in available:
            raise ConfigError(
                f"the configuration asks for {provider.name}, and onnxruntime {ort.__version__} here has "
                f"only {', '.join(available)}: install the package that has it, or ask for KIND_CPU"
            )
    options = ort.SessionOptions()
    options.log_severity_level = _WARNINGS
    options.intra_op_num_threads = settings.intra_op_threads
    options.inter_op_num_threads = settings.inter_op_threads
    mode = ort.ExecutionMode
    options.execution_mode = mode.ORT_PARALLEL if settings.parallel else mode.ORT_SEQUENTIAL
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, settings.graph_level)
    options.enable_cpu_mem_arena = settings.memory_arena
    options.enable_mem_pattern = settings.memory_pattern
    for key, value in settings.session_entries.items():
        options.add_session_config_entry(key, value)
    providers: list[Any] = [(p.name, dict(p.options)) for p in settings.providers]
    try:
        session = ort.InferenceSession(str(path), options, [*providers, "CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base
        raise ConfigError(f"{path}: {error}") from None
    active = session.get_providers()
    for provider in settings.providers:
        if provider.name not in active:
            raise ConfigError(
                f"{provider.name} could not be started (onnxruntime went on with {', '.join(active)}); "
                "its drivers or libraries are missing"
            )
    return session


def run_options(settings: SessionSettings) -> Any:
    """`RunOptions` of each run."""
    options = ort.RunOptions()
    for key, value in settings.run_entries.items():
        options.add_run_config_entry(key, value)
    return options
