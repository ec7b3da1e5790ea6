"""Triton's side of the engine: requests in, responses out, metrics. The only module that knows Triton."""

from __future__ import annotations

import json
import locale
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import triton_python_backend_utils as pb_utils  # noqa: TID251

from uzu_contract.errors import ErrorCode, RequestError, unsupported
from uzu_contract.request import GenerateRequest, Operation, Prompt, TextPrompt, decode_request
from uzu_contract.response import GenerateChunk, encode_chunk
from uzu_contract.tensors import INPUTS, OUTPUTS
from uzu_native.delivery import Delivery, Responder
from uzu_native.errors import EngineStoppedError, ModelLoadError, OptionsError
from uzu_native.machine_share import MachineShare
from uzu_native.metrics_reporter import MakeSeries, MetricsReporter
from uzu_native.model_folder import ModelFolderError
from uzu_native.options import MOST_THREADS, load_options
from uzu_native.questions import answer_question


class TritonPythonModel:
    """One instance of a native model."""

    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Give the model the contract's inputs and outputs.

        Whether it is decoupled is left to config.pbtxt: streaming needs it, Triton's HTTP infer refuses it.
        """
        for spec in INPUTS:
            config.add_input(
                {
                    "name": spec.name,
                    "data_type": spec.config_datatype,
                    "dims": list(spec.dims),
                    "optional": True,
                }
            )
        for spec in OUTPUTS:
            config.add_output({"name": spec.name, "data_type": spec.config_datatype, "dims": list(spec.dims)})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model and start the engine. What it raises is what Triton shows as the load error."""
        try:
            self._load(args)
        except (OptionsError, ModelFolderError, ModelLoadError) as error:
            raise pb_utils.TritonModelException(str(error)) from None

    def _load(self, args: Mapping[str, str]) -> None:
        # The stub starts Python with the C locale; libraries that read text files expect UTF-8.
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
        config = json.loads(args["model_config"])
        self._decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled", False))
        version_folder = Path(args["model_repository"]) / args["model_version"]
        options = load_options(version_folder / "model.json")
        share = MachineShare.of_instance(config, args["model_instance_name"])
        cpus = share.keep_to_cpus(options.cpu_set)
        options = replace(options, threads=options.threads or min(MOST_THREADS, cpus))
        # This loads OpenVINO, which counts the CPUs then, and takes longer than all the rest.
        from uzu_native.assembly import load_model

        loaded = load_model(options, version_folder, args["model_name"], _log_fault, share.count)
        self._prompts = loaded.prompts
        self._engine = loaded.engine
        self._delivery = Delivery(self._engine.cancel, _log_fault)
        self._guides = loaded.guides
        self._intake = ThreadPoolExecutor(2, thread_name_prefix="uzu-intake")
        # A grammar may take long to compile, and only those who sent one wait for it.
        self._guided_intake = ThreadPoolExecutor(1, thread_name_prefix="uzu-guided-intake")
        labels = {"model": args["model_name"], "instance": args["model_instance_name"]}
        self._reporter = MetricsReporter(self._engine.metrics, labels, _make_family, _log_fault)
        self._engine.start()
        self._delivery.start()
        self._reporter.start()
        pb_utils.Logger.log_info(loaded.summary)

    def execute(self, requests: list[pb_utils.InferenceRequest]) -> None:
        """Hand requests over; their responses come when the engine has them."""
        for request in requests:
            # Triton owns the request only until this call returns, so its tensors are read here.
            port = _Port(request.get_response_sender(), self._decoupled)
            responder = self._delivery.open(port)
            try:
                tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
                parameters = json.loads(request.parameters() or "{}")
                outputs = request.requested_output_names()
                decoded = decode_request(tensors, parameters, outputs)
                if decoded.stream and not self._decoupled:
                    raise unsupported("stream", "needs `decoupled: true` in the model's config.pbtxt")
            except RequestError as error:
                responder.on_error(error)
            except Exception as error:  # anything that leaves execute() fails every request of the batch
                _log_fault(error)
                responder.on_error(RequestError(ErrorCode.ENGINE_FAILED, "the request could not be read"))
            else:
                port.outputs = decoded.outputs
                guided = decoded.sampling.structured_outputs is not None
                intake = self._guided_intake if guided else self._intake
                intake.submit(self._submit, decoded, responder, port)

    def _submit(self, request: GenerateRequest, responder: Responder, port: _Port) -> None:
        try:
            if request.operation is not Operation.GENERATE:
                responder.on_chunk(answer_question(request, self._prompts, self._engine.context_tokens))
                return
            self._prompts.check_size(request.prompt, self._engine.context_tokens)
            prompt_ids = self._prompts.encode(request.prompt)
            if request.echo_prompt:
                port.prefix = self._prompt_text(request.prompt, prompt_ids)
            guide = self._guides.compile(request.sampling)
            responder.ticket = self._engine.submit(request, prompt_ids, responder, guide)
        except RequestError as error:
            responder.on_error(error)
        except EngineStoppedError:
            message = "the model is being unloaded"
            responder.on_error(RequestError(ErrorCode.SHUTTING_DOWN, message))
        except Exception as error:  # nobody waits for this thread's result
            _log_fault(error)
            responder.on_error(RequestError(ErrorCode.ENGINE_FAILED, "the request could not be read"))

    def _prompt_text(self, prompt: Prompt, prompt_ids: list[int]) -> str:
        return prompt.text if isinstance(prompt, TextPrompt) else self._prompts.tokenizer.decode(prompt_ids)

    def finalize(self) -> None:
        """End what runs, send what is left, free the model."""
        self._intake.shutdown()
        self._guided_intake.shutdown()
        self._engine.stop()
        self._delivery.stop()
        self._reporter.stop()


class _Port:
    """A client behind Triton's response sender."""

    def __init__(self, sender: pb_utils.ResponseSender, decoupled: bool) -> None:
        self.outputs: frozenset[str] = frozenset()
        self.prefix = ""
        self._sender = sender
        self._decoupled = decoupled

    def send_chunk(self, chunk: GenerateChunk, final: bool) -> None:
        if self.prefix:
            chunk = replace(chunk, text=self.prefix + chunk.text)
            self.prefix = ""
        tensors = [pb_utils.Tensor(name, array) for name, array in encode_chunk(chunk, self.outputs).items()]
        self._send(pb_utils.InferenceResponse(tensors), final)

    def send_error(self, error: RequestError) -> None:
        code = getattr(pb_utils.TritonError, error.code.triton_status)
        self._send(pb_utils.InferenceResponse(error=pb_utils.TritonError(error.to_wire(), code)), True)

    def send_end(self) -> None:
        if self._decoupled:
            self._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            self.send_error(RequestError(ErrorCode.CANCELLED, "the client has gone"))

    def is_cancelled(self) -> bool:
        return self._sender.is_cancelled()

    def _send(self, response: pb_utils.InferenceResponse, final: bool) -> None:
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        self._sender.send(response, flags=flags)


def _make_family(name: str, description: str, kind: str) -> MakeSeries:
    kinds = {"counter": pb_utils.MetricFamily.COUNTER, "gauge": pb_utils.MetricFamily.GAUGE}
    family = pb_utils.MetricFamily(name=name, description=description, kind=kinds[kind])
    return lambda labels: family.Metric(labels=dict(labels))


def _log_fault(error: BaseException) -> None:
    pb_utils.Logger.log_error("".join(traceback.format_exception(error)))
