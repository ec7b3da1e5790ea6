"""The parts of the ONNX Runtime backend that need no server."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from uzu_onnx.batch import run_batch, to_bytes, to_text
from uzu_onnx.errors import ConfigError
from uzu_onnx.session import model_path, open_session
from uzu_onnx.settings import Provider, SessionSettings, read_settings
from uzu_onnx.signature import Signature, TensorSpec

ADD = Signature(
    (TensorSpec("x", "TYPE_FP32", (-1, 2)), TensorSpec("y", "TYPE_FP32", (-1, 2))),
    (TensorSpec("sum", "TYPE_FP32", (-1, 2)),),
)


def parameters(**values):
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


def accelerators(kind, *entries):
    return {"optimization": {"execution_accelerators": {f"{kind}_execution_accelerator": list(entries)}}}


def test_documented_parameters_are_read():
    config = parameters(
        intra_op_thread_count="2",
        inter_op_thread_count="3",
        execution_mode="1",
        enable_mem_arena="0",
        enable_mem_pattern="0",
    )
    config["parameters"]["memory.enable_memory_arena_shrinkage"] = {"string_value": "cpu:0"}
    config["optimization"] = {"graph": {"level": "1"}}
    settings = read_settings(config | {"default_model_filename": "net.onnx"}, "CPU", 0)
    assert settings == SessionSettings(
        file="net.onnx",
        intra_op_threads=2,
        inter_op_threads=3,
        parallel=True,
        graph_level="ORT_ENABLE_EXTENDED",
        memory_arena=False,
        memory_pattern=False,
        run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"},
    )
    assert read_settings({}, "CPU", 0) == SessionSettings()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (parameters(intra_op_threads="2"), "unknown key 'intra_op_threads'; known: arena_extend_strategy, "),
        (parameters(intra_op_thread_count="two"), "intra_op_thread_count must be a whole number, not 'two'"),
        (parameters(intra_op_thread_count="-1"), "intra_op_thread_count must be 0 or more, not -1"),
        (parameters(execution_mode="2"), "execution_mode must be 0 or 1, not '2'"),
        (parameters(gpu_mem_limit="1"), "gpu_mem_limit is for an instance on a GPU"),
        ({"optimization": {"graph": {"level": 3}}}, "level must be -1, 0, 1 or 2, not 3"),
        (accelerators("cpu", {"name": "tensorrt"}), "unknown accelerator 'tensorrt'; known: openvino"),
        ({"optimization": {"execution_accelerators": {"tpu": []}}}, "unknown key 'tpu'"),
    ],
)
def test_what_cannot_be_honoured_is_an_error(config, message):
    with pytest.raises(ConfigError, match=message):
        read_settings(config, "CPU", 0)


def test_a_gpu_instance_gets_its_device_and_its_accelerators():
    config = accelerators(
        "gpu",
        {"name": "tensorrt", "parameters": {"precision_mode": "FP16", "max_workspace_size_bytes": "1024"}},
        {"name": "cuda", "parameters": {"use_ep_level_unified_stream": "1"}},
    ) | parameters(gpu_mem_limit="4096")
    settings = read_settings(config, "GPU", 3)
    assert settings.device == 3
    tensorrt = {"device_id": "3", "trt_fp16_enable": "1", "trt_max_workspace_size": "1024"}
    cuda = {"device_id": "3", "gpu_mem_limit": "4096", "use_ep_level_unified_stream": "1"}
    assert settings.providers == (
        Provider("TensorrtExecutionProvider", tensorrt),
        Provider("CUDAExecutionProvider", cuda),
    )
    wrong = accelerators("gpu", {"name": "tensorrt", "parameters": {"precision_mode": "INT4"}})
    with pytest.raises(ConfigError, match="precision_mode must be FP32, FP16 or INT8, not 'INT4'"):
        read_settings(wrong, "GPU", 0)


def test_an_empty_configuration_is_completed_for_batches():
    size, inputs, outputs = ADD.completed({})
    assert size == 4
    assert [tensor["name"] for tensor in inputs] == ["x", "y"]
    assert outputs == [{"name": "sum", "data_type": "TYPE_FP32", "dims": [2]}]
    size, inputs, outputs = ADD.completed({"max_batch_size": 8, "input": [{"name": "x"}]})
    assert (size, [tensor["name"] for tensor in inputs]) == (8, ["y"])
    fixed = Signature((TensorSpec("x", "TYPE_FP32", (1, 2)),), ADD.outputs)
    assert fixed.completed({})[0] == 0
    assert fixed.completed({})[1][0]["dims"] == [1, 2]


def tensor(name, dims, data_type="TYPE_FP32", **more):
    return {"name": name, "data_type": data_type, "dims": dims, **more}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input": [tensor("x", ["2"])]}, "input 'y' of the model is missing"),
        ({"input": [tensor("z", ["2"])]}, "input 'z' is not in the model, which has 'x', 'y'"),
        (
            {"output": [tensor("sum", ["3"])]},
            r"'sum' has dims \[3\] with the batch before them, which do not",
        ),
        ({"output": [tensor("sum", ["2"], "TYPE_FP16")]}, "'sum' is TYPE_FP32 in the model, not TYPE_FP16"),
        ({"input": [tensor("x", ["2"], allow_ragged_batch=True), tensor("y", ["2"])]}, "allow_ragged_batch"),
    ],
)
def test_a_configuration_that_does_not_fit_the_model_is_an_error(changes, message):
    config = {
        "max_batch_size": 8,
        "input": [tensor("x", ["2"]), tensor("y", ["-1"])],
        "output": [tensor("sum", ["1", "2"], reshape={"shape": ["2"]})],
    }
    ADD.check(config)
    with pytest.raises(ConfigError, match=message):
        ADD.check(config | changes)


def test_a_model_of_a_fixed_batch_cannot_be_batched():
    fixed = Signature((TensorSpec("x", "TYPE_FP32", (1, 2)),), ())
    with pytest.raises(ConfigError, match="set max_batch_size to 0"):
        fixed.check({"max_batch_size": 2, "input": [tensor("x", ["2"])], "output": []})


def test_a_batch_is_one_run_and_each_gets_its_own_rows():
    runs = []

    def run(outputs, inputs):
        runs.append(len(inputs["x"]))
        return [inputs["x"] * 2 for _ in outputs]

    requests = [{"x": np.full((n, 2), n)} for n in (1, 3, 2)]
    results = run_batch(run, requests, ["y"], batched=True)
    assert runs == [6]
    assert [r["y"].tolist() for r in results] == [[[2, 2]], [[6, 6]] * 3, [[4, 4]] * 2]
    run_batch(run, requests, ["y"], batched=False)
    assert runs == [6, 1, 3, 2]


def test_who_breaks_a_batch_fails_alone():
    def run(outputs, inputs):
        if (inputs["x"] == 7).any():
            raise RuntimeError("seven")
        return [inputs["x"]]

    good, bad, other = run_batch(run, [{"x": np.array([v])} for v in (1, 7, 2)], ["y"], batched=True)
    assert (good["y"], other["y"]) == (1, 2)
    assert str(bad) == "seven"


def test_outputs_without_the_batch_are_computed_one_by_one():
    results = run_batch(
        lambda outputs, inputs: [inputs["x"].sum(keepdims=True)],
        [{"x": np.array([1, 2])}, {"x": np.array([5])}],
        ["total"],
        batched=True,
    )
    assert [int(r["total"][0]) for r in results] == [3, 5]


def test_text_crosses_both_ways():
    words = np.array([["渦".encode(), b"uzu"]], np.object_)
    assert to_text("word", words).tolist() == [["渦", "uzu"]]
    assert (to_bytes(to_text("word", words)) == words).all()
    with pytest.raises(ValueError, match=r"input 'word' holds bytes that are not UTF-8 \(at byte 1\)"):
        to_text("word", np.array([b"a\xff"], np.object_))


def test_a_model_that_is_not_there_or_not_one_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.onnx does not exist; `uzu fetch`"):
        model_path(tmp_path, "model.onnx")
    (tmp_path / "model.onnx").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=r"model\.onnx: "):
        open_session(model_path(tmp_path, "model.onnx"), SessionSettings())


def test_a_provider_that_is_not_here_is_an_error_that_says_what_is(tmp_path):
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [result])
    folder = tmp_path / "model.onnx"
    folder.mkdir()
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8),
        folder / "model.onnx",
    )
    path = model_path(tmp_path, "model.onnx")
    assert Signature.of(open_session(path, SessionSettings())).can_batch
    with pytest.raises(ConfigError, match=r"asks for Never.*has only .*CPUExecutionProvider"):
        open_session(path, SessionSettings(providers=(Provider("NeverExecutionProvider"),)))
