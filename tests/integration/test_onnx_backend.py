"""The ONNX Runtime backend in a real tritonserver."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

BACKEND = 'backend: "onnxruntime"\n'
ENSEMBLE = """
platform: "ensemble"
input [
  { name: "x", data_type: TYPE_FP32, dims: [-1, 2, 2] },
  { name: "which", data_type: TYPE_BOOL, dims: [-1] }
]
output [{ name: "y", data_type: TYPE_FP32, dims: [-1, 4] }]
ensemble_scheduling { step [
  {
    model_name: "keep", model_version: -1
    input_map { key: "x" value: "x" } input_map { key: "which" value: "which" }
    output_map { key: "y" value: "kept" }
  },
  {
    model_name: "squares", model_version: -1
    input_map { key: "x" value: "kept" } output_map { key: "y" value: "y" }
  }
]}
"""
SLOW_QUEUE = "dynamic_batching { max_queue_delay_microseconds: 200000 }\n"


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def lay(repository: Path, name: str, config: str, nodes, inputs, outputs, constants=()):
    graph = helper.make_graph(list(nodes), name, list(inputs), list(outputs), list(constants))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    (repository / name / "1").mkdir(parents=True)
    onnx.save(model, repository / name / "1" / "model.onnx")
    (repository / name / "config.pbtxt").write_text(BACKEND + config)


def double(repository, name, config, kind=TensorProto.FLOAT, shape=("batch", 2)):
    node = helper.make_node("Add", ["x", "x"], ["y"])
    lay(repository, name, config, [node], [value("x", kind, shape)], [value("y", kind, shape)])


@pytest.fixture(scope="module")
def triton(start_triton, tmp_path_factory):
    repository = tmp_path_factory.mktemp("onnx") / "repository"
    double(repository, "double", "max_batch_size: 64\n" + SLOW_QUEUE)
    double(repository, "bare", "")
    double(repository, "half", "max_batch_size: 4\n", TensorProto.FLOAT16)
    double(repository, "fixed", "max_batch_size: 0\n", TensorProto.INT8, (3,))
    text = [value("x", TensorProto.STRING, ["batch", 1])], [value("y", TensorProto.STRING, ["batch", 1])]
    lay(repository, "text", "max_batch_size: 8\n", [helper.make_node("Identity", ["x"], ["y"])], *text)
    table = numpy_helper.from_array(np.arange(5, dtype=np.float32), "table")
    lay(
        repository,
        "gather",
        "max_batch_size: 64\n" + SLOW_QUEUE,
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        [value("i", TensorProto.INT64, ["batch", 1])],
        [value("y", TensorProto.FLOAT, ["batch", 1])],
        [table],
    )
    shape = numpy_helper.from_array(np.array([-1, 4], np.int64), "shape")
    lay(
        repository,
        "squares",
        # With its input named, max_batch_size stays 0: a batch cannot be empty, a first dimension can.
        'max_batch_size: 0\ninput [{ name: "x", data_type: TYPE_FP32, dims: [-1, 2, 2] }]\n',
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [value("x", TensorProto.FLOAT, ["n", 2, 2])],
        [value("y", TensorProto.FLOAT, ["n", 4])],
        [shape],
    )
    lay(
        repository,
        "keep",
        "max_batch_size: 0\n",
        [helper.make_node("Compress", ["x", "which"], ["y"], axis=0)],
        [value("x", TensorProto.FLOAT, ["n", 2, 2]), value("which", TensorProto.BOOL, ["m"])],
        [value("y", TensorProto.FLOAT, ["k", 2, 2])],
    )
    (repository / "kept_squares" / "1").mkdir(parents=True)
    (repository / "kept_squares" / "config.pbtxt").write_text(ENSEMBLE)
    double(repository, "two", "max_batch_size: 8\ninstance_group [{ count: 2, kind: KIND_CPU }]\n")
    double(repository, "unknown", 'parameters { key: "threads" value { string_value: "2" } }\n')
    double(
        repository, "narrow", 'max_batch_size: 2\ninput [{ name: "x", data_type: TYPE_FP32, dims: [3] }]\n'
    )
    return start_triton(repository=repository, model="double")


@pytest.fixture(scope="module")
def client(triton):
    with triton_grpc.InferenceServerClient(triton.grpc_address) as made:
        yield made


@pytest.fixture
def load(client):
    loaded = []

    def run(name):
        client.load_model(name)
        loaded.append(name)

    yield run
    for name in loaded:
        client.unload_model(name)


def infer(client, model, array, kind, name="x", **more):
    inputs = []
    for key, content, datatype in [(name, array, kind), *((k, v, "BOOL") for k, v in more.items())]:
        inputs.append(triton_grpc.InferInput(key, list(content.shape), datatype))
        inputs[-1].set_data_from_numpy(content)
    return client.infer(model, inputs).as_numpy("y")


def test_requests_that_come_together_are_one_run(client):
    arrays = [np.full((1 + i % 3, 2), i, np.float32) for i in range(16)]
    before = client.get_inference_statistics("double").model_stats[0]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda a: infer(client, "double", a, "FP32"), arrays))
    for array, result in zip(arrays, results, strict=True):
        assert (result == array * 2).all()
    after = client.get_inference_statistics("double").model_stats[0]
    assert after.inference_count - before.inference_count == sum(map(len, arrays))
    assert after.execution_count - before.execution_count <= 8


def test_a_model_without_a_configuration_is_completed(client, load):
    load("bare")
    config = client.get_model_config("bare").config
    assert config.max_batch_size == 4
    assert [(t.name, list(t.dims)) for t in (*config.input, *config.output)] == [("x", [2]), ("y", [2])]
    assert config.HasField("dynamic_batching")
    assert infer(client, "bare", np.ones((3, 2), np.float32), "FP32").tolist() == [[2, 2]] * 3


@pytest.mark.parametrize(
    ("model", "array", "kind"),
    [
        ("half", np.ones((2, 2), np.float16), "FP16"),
        ("fixed", np.array([1, 2, 3], np.int8), "INT8"),
        ("two", np.ones((5, 2), np.float32), "FP32"),
    ],
)
def test_other_types_shapes_and_instances(client, load, model, array, kind):
    load(model)
    result = infer(client, model, array, kind)
    assert result.dtype == array.dtype
    assert (result == array + array).all()


def test_text_and_bytes_that_are_none(client, load):
    load("text")
    words = np.array([["渦".encode()], [b""]], np.object_)
    assert infer(client, "text", words, "BYTES").tolist() == words.tolist()
    with pytest.raises(InferenceServerException, match="not UTF-8"):
        infer(client, "text", np.array([[b"\xff"]], np.object_), "BYTES")


def test_who_sends_what_the_model_cannot_take_fails_alone(client, load):
    load("gather")
    indices = [1, 2, 99, 3, 4, 0, -77, 1]

    def ask(index):
        try:
            return float(infer(client, "gather", np.array([[index]], np.int64), "INT64", "i")[0, 0])
        except InferenceServerException as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(ask, indices))
    wrong = [isinstance(r, InferenceServerException) for r in results]
    assert wrong == [index not in range(5) for index in indices]
    assert [r for r, w in zip(results, wrong, strict=True) if not w] == [1, 2, 3, 4, 0, 1]


def test_nothing_between_two_steps_is_nothing_at_the_end(client, load):
    for name in ("keep", "squares", "kept_squares"):
        load(name)
    boxes = np.ones((3, 2, 2), np.float32)
    some = infer(client, "kept_squares", boxes, "FP32", which=np.array([True, False, True]))
    none = infer(client, "kept_squares", boxes, "FP32", which=np.array([False, False, False]))
    assert (some.shape, none.shape) == ((2, 4), (0, 4))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("unknown", "parameters: unknown key 'threads'; known: .*intra_op_thread_count"),
        (
            "narrow",
            r"input 'x' has dims \[3\] with the batch before them, which do not fit the model's \[-1, 2\]",
        ),
    ],
)
def test_what_cannot_be_served_says_why(client, model, message):
    with pytest.raises(InferenceServerException, match=message):
        client.load_model(model)
