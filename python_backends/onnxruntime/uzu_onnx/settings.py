"""What config.pbtxt says about running the model, decoded strictly.

The keys, and what they mean, are those of Triton's C++ backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from uzu_onnx.errors import ConfigError

DEFAULT_FILE = "model.onnx"
IGNORED_PARAMETERS = ("FORCE_CPU_ONLY_INPUT_TENSORS", "EXECUTION_ENV_PATH")
"""Of Triton's Python backend, which runs this one; not ours to read."""

GRAPH_LEVELS = {-1: "ORT_ENABLE_BASIC", 0: "ORT_ENABLE_ALL", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}

_TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "FP32": {},
    "FP16": {"trt_fp16_enable": "1"},
    "INT8": {"trt_int8_enable": "1"},
}
_CUDA_PARAMETERS = (
    "arena_extend_strategy",
    "cudnn_conv_algo_search",
    "do_copy_in_default_stream",
    "gpu_mem_limit",
)


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider of ONNX Runtime, with its options."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """How a model is run.

    Args:
        file: name of the model in its version folder.
        providers: accelerators to be asked first, in order, for an instance on `device`.
        device: GPU to run on; None for the CPU.
        intra_op_threads: threads within an operator; 0 is ONNX Runtime's choice, all cores.
        inter_op_threads: threads across operators, with `parallel`; 0 is ONNX Runtime's choice.
        parallel: whether operators that do not depend on each other run at the same time.
        graph_level: name of a `GraphOptimizationLevel`.
        memory_arena: keep freed memory for the next run.
        memory_pattern: plan memory by the shapes of the first run.
        session_entries: more settings of the session, as ONNX Runtime names them.
        run_entries: settings of each run, likewise.
    """

    file: str = DEFAULT_FILE
    providers: tuple[Provider, ...] = ()
    device: int | None = None
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    parallel: bool = False
    graph_level: str = GRAPH_LEVELS[0]
    memory_arena: bool = True
    memory_pattern: bool = True
    session_entries: Mapping[str, str] = field(default_factory=dict)
    run_entries: Mapping[str, str] = field(default_factory=dict)


def read_settings(config: Mapping[str, Any], kind: str, device: int) -> SessionSettings:
    """Decode a model's configuration for one instance.

    Args:
        config: config.pbtxt as the JSON that Triton hands over.
        kind: the instance's, "CPU" or "GPU".
        device: the instance's GPU.

    Raises:
        ConfigError: an unknown key, or a value that is not one of those allowed.
    """
    optimization = config.get("optimization", {})
    level = _integer("optimization.graph.level", optimization.get("graph", {}).get("level", 0))
    if level not in GRAPH_LEVELS:
        raise ConfigError(f"optimization.graph.level must be -1, 0, 1 or 2, not {level}")
    values: dict[str, Any] = {}
    cuda: dict[str, str] = {}
    session: dict[str, str] = {}
    run: dict[str, str] = {}
    for key, holder in config.get("parameters", {}).items():
        value = str(holder.get("string_value", ""))
        if key in _PARAMETERS:
            name, read = _PARAMETERS[key]
            values[name] = read(f"parameters.{key}", value)
        elif key in _CUDA_PARAMETERS:
            cuda[key] = value
        elif key == "session.use_device_allocator_for_initializers":
            session[key] = "1" if _boolean(f"parameters.{key}", value) else "0"
        elif key == "memory.enable_memory_arena_shrinkage":
            run[key] = value
        elif key not in IGNORED_PARAMETERS:
            known = (*_PARAMETERS, *_CUDA_PARAMETERS, "session.use_device_allocator_for_initializers")
            known = (*known, "memory.enable_memory_arena_shrinkage")
            raise ConfigError(f"parameters: unknown key {key!r}; known: {', '.join(sorted(known))}")
    on_gpu = kind == "GPU"
    if cuda and not on_gpu:
        raise ConfigError(f"parameters.{min(cuda)} is for an instance on a GPU (KIND_GPU)")
    return SessionSettings(
        file=config.get("default_model_filename") or DEFAULT_FILE,
        providers=_providers(optimization.get("execution_accelerators", {}), on_gpu, device, cuda),
        device=device if on_gpu else None,
        graph_level=GRAPH_LEVELS[level],
        session_entries=session,
        run_entries=run,
        **values,
    )


def _providers(
    accelerators: Mapping[str, Any], on_gpu: bool, device: int, cuda: Mapping[str, str]
) -> tuple[Provider, ...]:
    for key in accelerators:
        if key not in ("cpu_execution_accelerator", "gpu_execution_accelerator"):
            raise ConfigError(f"optimization.execution_accelerators: unknown key {key!r}")
    kind = "gpu_execution_accelerator" if on_gpu else "cpu_execution_accelerator"
    path = f"optimization.execution_accelerators.{kind}"
    providers = []
    cuda_options = dict(cuda)
    for accelerator in accelerators.get(kind, []):
        name = accelerator.get("name", "")
        options = {key: str(value) for key, value in accelerator.get("parameters", {}).items()}
        if on_gpu and name == "tensorrt":
            options = {"device_id": str(device), **_tensorrt_options(f"{path}.tensorrt", options)}
            providers.append(Provider("TensorrtExecutionProvider", options))
        elif on_gpu and name == "cuda":
            cuda_options |= options
        elif not on_gpu and name == "openvino":
            providers.append(Provider("OpenVINOExecutionProvider", options))
        else:
            known = "tensorrt, cuda" if on_gpu else "openvino"
            raise ConfigError(f"{path}: unknown accelerator {name!r}; known: {known}")
    if on_gpu:
        providers.append(Provider("CUDAExecutionProvider", {"device_id": str(device), **cuda_options}))
    return tuple(providers)


def _tensorrt_options(path: str, given: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for key, value in given.items():
        if key == "precision_mode":
            if value not in _TENSORRT_PRECISIONS:
                raise ConfigError(f"{path}.precision_mode must be FP32, FP16 or INT8, not {value!r}")
            options |= _TENSORRT_PRECISIONS[value]
        elif key in _TENSORRT_RENAMED:
            options[_TENSORRT_RENAMED[key]] = value
        elif key.startswith("trt_"):
            options[key] = value
        else:
            known = ", ".join(("precision_mode", *_TENSORRT_RENAMED, "trt_…"))
            raise ConfigError(f"{path}: unknown parameter {key!r}; known: {known}")
    return options


def _integer(path: str, value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ConfigError(f"{path} must be a whole number, not {value!r}") from None


def _thread_count(path: str, value: str) -> int:
    count = _integer(path, value)
    if count < 0:
        raise ConfigError(f"{path} must be 0 or more, not {count}")
    return count


def _boolean(path: str, value: str) -> bool:
    if value not in ("0", "1"):
        raise ConfigError(f"{path} must be 0 or 1, not {value!r}")
    return value == "1"


_PARAMETERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "intra_op_thread_count": ("intra_op_threads", _thread_count),
    "inter_op_thread_count": ("inter_op_threads", _thread_count),
    "execution_mode": ("parallel", _boolean),
    "enable_mem_arena": ("memory_arena", _boolean),
    "enable_mem_pattern": ("memory_pattern", _boolean),
}
