"""Triton's side of the ONNX Runtime backend."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils  # noqa: TID251
from numpy.typing import NDArray

from uzu_onnx.batch import Arrays, is_empty, run_batch, to_bytes, to_text
from uzu_onnx.errors import ConfigError
from uzu_onnx.session import model_path, open_session, run_options
from uzu_onnx.settings import DEFAULT_FILE, GRAPH_LEVELS, SessionSettings, read_settings
from uzu_onnx.signature import Signature


class TritonPythonModel:
    """One instance of an ONNX model."""

    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Complete inputs, outputs and max_batch_size from the model's file."""
        given = config.as_dict()
        try:
            file = given.get("default_model_filename") or DEFAULT_FILE
            path = model_path(Path(pb_utils.get_model_dir()), file)
            signature = Signature.of(open_session(path, SessionSettings(graph_level=GRAPH_LEVELS[2])))
            size, inputs, outputs = signature.completed(given)
        except ConfigError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        config.set_max_batch_size(size)
        for tensor in inputs:
            config.add_input(tensor)
        for tensor in outputs:
            config.add_output(tensor)
        if size > 1 and not ({"dynamic_batching", "sequence_batching", "ensemble_scheduling"} & set(given)):
            config.set_dynamic_batching()
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the model. What it raises is what Triton shows as the load error."""
        config = json.loads(args["model_config"])
        version_folder = Path(args["model_repository"]) / args["model_version"]
        try:
            device = int(args["model_instance_device_id"] or 0)
            settings = read_settings(config, args["model_instance_kind"], device)
            self._session = open_session(model_path(version_folder, settings.file), settings)
            self._signature = Signature.of(self._session)
            self._signature.check(config)
        except ConfigError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        self._run_options = run_options(settings)
        self._batched = int(config.get("max_batch_size") or 0) > 0
        self._dims = {t["name"]: [max(0, int(d)) for d in t["dims"]] for t in config["output"]}
        self._text_inputs = {s.name for s in self._signature.inputs if s.datatype == "TYPE_STRING"}
        self._dtypes = {t["name"]: pb_utils.triton_string_to_numpy(t["data_type"]) for t in config["output"]}

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> list[pb_utils.InferenceResponse]:
        """One run for all requests; each has its own response."""
        results: list[dict[str, NDArray[Any]] | Exception | None] = []
        inputs: list[Arrays] = []
        for request in requests:
            try:
                inputs.append(self._arrays(request))
                results.append(None)
            except ValueError as error:
                results.append(error)
        wanted = [request.requested_output_names() for request in requests]
        names = sorted({name for some in wanted for name in some})
        answers = iter(run_batch(self._run, inputs, names, self._batched))
        results = [next(answers) if result is None else result for result in results]
        return [self._response(r, some) for r, some in zip(results, wanted, strict=True) if r is not None]

    def _arrays(self, request: pb_utils.InferenceRequest) -> Arrays:
        arrays = {}
        for tensor in request.inputs():
            name, array = tensor.name(), tensor.as_numpy()
            arrays[name] = to_text(name, array) if name in self._text_inputs else array
        return arrays

    def _run(self, outputs: Sequence[str], inputs: Arrays) -> Sequence[NDArray[Any]]:
        try:
            arrays: list[NDArray[Any]] = self._session.run(list(outputs), dict(inputs), self._run_options)
        except Exception:
            # Many operators cannot take nothing; nothing in, nothing out.
            if not is_empty(inputs):
                raise
            size = [len(next(iter(inputs.values())))] if self._batched else []
            arrays = [self._nothing(name, size) for name in outputs]
        return arrays

    def _nothing(self, output: str, size: list[int]) -> NDArray[Any]:
        dtype = self._dtypes[output]
        return np.full([*size, *self._dims[output]], "" if dtype == np.object_ else 0, dtype)

    def _response(
        self, result: dict[str, NDArray[Any]] | Exception, wanted: Sequence[str]
    ) -> pb_utils.InferenceResponse:
        if isinstance(result, Exception):
            # What a model cannot compute is nearly always what it was given.
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(str(result), pb_utils.TritonError.INVALID_ARG)
            )
        tensors = [
            pb_utils.Tensor(
                name, to_bytes(result[name]) if self._dtypes[name] == np.object_ else result[name]
            )
            for name in wanted
        ]
        return pb_utils.InferenceResponse(tensors)

    def finalize(self) -> None:
        """Free the model."""
        del self._session
