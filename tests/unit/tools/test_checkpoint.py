import json
import sys

import pytest

from uzu import checkpoint, environments
from uzu.checkpoint import convert_checkpoint
from uzu.console import Console
from uzu.environments import environment_python, set_up
from uzu.errors import PreparationError, UsageError
from uzu.settings import Settings

CONSOLE = Console(color=False)


@pytest.fixture
def settings(tmp_path):
    return Settings.from_environment({"UZU_HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"})


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "is not a Hugging Face checkpoint: it has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "is not JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "names no model_type"),
        (lambda f: (f / "model.safetensors").unlink(), r"has no \*.safetensors$"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "pytorch_model.bin may run code when loaded and is not read",
        ),
        (lambda f: None, "the environment for converting .* is not there; make it with: uzu setup convert"),
    ],
)
def test_what_cannot_be_converted_is_said_and_nothing_is_written(source, settings, tmp_path, change, message):
    change(source)
    with pytest.raises(UsageError, match=message):
        convert_checkpoint(source, tmp_path / "out", "int4", 64, settings, CONSOLE)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_there_is_left_alone(source, settings, tmp_path):
    with pytest.raises(UsageError, match="exists already"):
        convert_checkpoint(source, tmp_path, "int4", 64, settings, CONSOLE)


@pytest.fixture
def own_python(monkeypatch):
    """The interpreter of the tests stands in for the environment's."""
    from pathlib import Path

    monkeypatch.setattr(checkpoint, "environment_python", lambda name, settings: Path(sys.executable))


def program(tmp_path, text):
    path = tmp_path / "program.py"
    path.write_text("import pathlib, sys\n" + text)
    return path


def test_a_conversion_appears_whole_with_the_tokenizer(source, settings, tmp_path, own_python, monkeypatch):
    text = "folder = pathlib.Path(sys.argv[2])\nassert sys.argv[3:] == ['int8', '32']\n"
    for name in ("openvino_model.xml", "openvino_model.bin", "config.json"):
        text += f"(folder / '{name}').write_text('x')\n"
    monkeypatch.setattr(checkpoint, "_EXPORT", program(tmp_path, text))
    (source / "chat_template.jinja").write_text("{{ messages }}")
    out = tmp_path / "deep" / "out"
    assert convert_checkpoint(source, out, "int8", 32, settings, CONSOLE) == out
    assert {p.name for p in out.iterdir()} == {
        *("openvino_model.xml", "openvino_model.bin", "config.json"),
        *("tokenizer.json", "chat_template.jinja"),
    }
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.exit('ValueError: mamba is not supported')", "cannot be converted: .*mamba is not supported"),
        ("pass", "is not a model that the native engine loads: it has no openvino_model.xml"),
    ],
)
def test_a_conversion_that_fails_leaves_nothing(
    source, settings, tmp_path, own_python, monkeypatch, text, message
):
    monkeypatch.setattr(checkpoint, "_EXPORT", program(tmp_path, text))
    out = tmp_path / "deep" / "out"
    with pytest.raises((PreparationError, UsageError), match=message):
        convert_checkpoint(source, out, "int4", 64, settings, CONSOLE)
    assert list(out.parent.iterdir()) == []


def test_an_environment_is_made_once_and_a_failed_one_leaves_nothing(settings, monkeypatch):
    spec = environments.EnvironmentSpec("nothing", (), needs_bytes=1)
    monkeypatch.setattr(environments, "ENVIRONMENTS", {"nothing": spec})
    with pytest.raises(UsageError, match="uzu setup nothing"):
        environment_python("nothing", settings)
    made: list[object] = []

    def make(spec, folder, settings, console):
        folder.mkdir()
        made.append(folder)
        if len(made) == 1:
            raise PreparationError("no network")

    monkeypatch.setattr(environments, "_make", make)
    with pytest.raises(PreparationError, match="no network"):
        set_up("nothing", settings, CONSOLE)
    assert not any(p.is_dir() for p in (settings.home / "environments").iterdir())
    python = set_up("nothing", settings, CONSOLE)
    assert set_up("nothing", settings, CONSOLE) == environment_python("nothing", settings) == python
    assert len(made) == 2
