import json
import os
from pathlib import Path

import pytest
from filelock import FileLock
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from uzu.errors import UsageError
from uzu.resources import model_repository, python_backends
from uzu.rundir import RunDirectory, run_directory
from uzu.triton import TritonInstallation


def fake_triton(folder: Path) -> TritonInstallation:
    backend = folder / "backends" / "python"
    backend.mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        (backend / name).write_text(name)
    stub = folder / "stubs" / "triton_python_backend_stub"
    stub.parent.mkdir()
    stub.write_text("stub")
    return TritonInstallation(folder / "bin", backend, stub, None, (), "2.51.0")


def test_backends_are_laid_together(tmp_path: Path) -> None:
    with run_directory(tmp_path / "home") as run:
        run.lay_backends(fake_triton(tmp_path), python_backends())
        python = run.backends / "python"
        assert sorted(path.name for path in python.iterdir()) == [
            "libtriton_python.so",
            "triton_python_backend_stub",
            "triton_python_backend_utils.py",
        ]
        # Triton refuses a library that a link takes out of its backend's folder.
        assert not any(path.is_symlink() for path in python.iterdir())
        assert (run.backends / "uzu" / "model.py").is_file()
        assert (run.backends / "uzu_contract" / "tensors.py").is_file()


def test_a_model_of_the_repository_keeps_its_configuration(tmp_path: Path) -> None:
    template = model_repository() / "smollm2"
    with run_directory(tmp_path / "home") as run:
        folder = run.lay_native_model("smollm2", tmp_path, {"source": "pypi:x", "max_waiting": 3}, template)
        assert (folder / "config.pbtxt").read_text() == (template / "config.pbtxt").read_text()
        assert json.loads((folder / "1" / "model.json").read_text()) == {
            "source": "pypi:x",
            "max_waiting": 3,
            "model": "weights",
        }
        assert (folder / "1" / "weights").resolve() == tmp_path


def test_a_model_under_another_name_has_that_name(tmp_path: Path) -> None:
    template = tmp_path / "original"
    template.mkdir()
    (template / "config.pbtxt").write_text('name: "original"\nbackend: "uzu"\nmax_batch_size: 0\n')
    with run_directory(tmp_path / "home") as run:
        config = (run.lay_native_model("other", tmp_path, {}, template) / "config.pbtxt").read_text()
    assert 'name: "other"' in config
    assert 'backend: "uzu"' in config
    assert "original" not in config


def test_it_is_removed_at_the_end_and_weights_stay(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "openvino_model.bin").write_text("x")
    with run_directory(tmp_path / "home") as run:
        run.lay_native_model("m", weights, {})
        assert run.path == tmp_path / "home" / "run" / str(os.getpid())
    assert not run.path.exists()
    assert (weights / "openvino_model.bin").exists()


def test_it_stays_when_asked(tmp_path: Path) -> None:
    with run_directory(tmp_path / "home", keep=True) as first:
        first.lay_native_model("m", tmp_path, {})
    with run_directory(tmp_path / "home") as second:
        assert second.path != first.path
        assert (first.path / "model_repository" / "m").is_dir()


def test_what_a_killed_run_left_is_removed_but_not_what_is_in_use(tmp_path: Path) -> None:
    runs = tmp_path / "home" / "run"
    for name in ("1", "2"):
        (runs / name).mkdir(parents=True)
    with FileLock(runs / "2" / ".uzu-run.lock"), run_directory(tmp_path / "home") as run:
        assert sorted(path.name for path in runs.iterdir()) == sorted(["2", run.path.name])


def test_a_given_folder_is_used_again_but_never_taken_from_others(tmp_path: Path) -> None:
    given = tmp_path / "given"
    with run_directory(tmp_path / "home", given, keep=True) as run:
        run.lay_native_model("m", tmp_path, {})
        with pytest.raises(UsageError, match="another uzu is serving from"):
            run_directory(tmp_path / "home", given).__enter__()
    with run_directory(tmp_path / "home", given) as run:
        assert not run.model_repository.exists()
    given.mkdir()
    (given / "precious").touch()
    with pytest.raises(UsageError, match=r"--run-dir: .*given is not an empty folder"):
        run_directory(tmp_path / "home", given).__enter__()
    assert (given / "precious").exists()


def test_shared_memory_of_a_killed_triton_is_removed_with_its_run(tmp_path: Path) -> None:
    with run_directory(tmp_path / "home", tmp_path / "given") as run:
        region = Path("/dev/shm") / f"{run.shared_memory_prefix}region"
        region.write_bytes(b"left")
    assert not region.exists()
    stale = RunDirectory(tmp_path / "home" / "run" / "1")
    stale.path.mkdir(parents=True)
    region = Path("/dev/shm") / f"{stale.shared_memory_prefix}region"
    region.write_bytes(b"left")
    with run_directory(tmp_path / "home"):
        assert not region.exists()


@pytest.mark.parametrize("name", ["with space", "with'quote", "with$sign"])
def test_a_path_that_tritons_shell_cannot_take_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="UZU_HOME"), run_directory(tmp_path / name):
        pass
    with pytest.raises(UsageError, match="--run-dir"), run_directory(tmp_path, tmp_path / name / "run"):
        pass
    assert not (tmp_path / name / "run").exists() or not any((tmp_path / name / "run").iterdir())


@pytest.mark.parametrize("with_template", [False, True])
def test_a_model_gets_as_many_instances_as_asked_for(tmp_path: Path, with_template: bool) -> None:
    template = tmp_path / "m"
    template.mkdir()
    (template / "config.pbtxt").write_text(
        'backend: "uzu"\ninstance_group [ { count: 1, kind: KIND_CPU }, { count: 2, kind: KIND_CPU } ]\n'
    )
    with run_directory(tmp_path / "home") as run:
        folder = run.lay_native_model("m", tmp_path, {}, template if with_template else None, instances=3)
        config = text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())
    assert config.backend == "uzu"
    assert [group.count for group in config.instance_group] == [3]
