import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from uzu.console import Console
from uzu.errors import PreparationError, UsageError
from uzu.store import RECORD, Store, entry_key, sha256_of

BUILDER = """
import sys, time
from pathlib import Path
from uzu.console import Console
from uzu.store import Store
home, pause, counter = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
def build(folder):
    with counter.open("a") as file:
        file.write("built\\n")
    (folder / "half").write_text("x")
    print("building", flush=True)
    time.sleep(pause)
    (folder / "rest").write_text("y")
    return {"by": "child"}
entry = Store(home, Console()).entry("models", "m", build, needs_bytes=1)
print(sorted(path.name for path in entry.path.iterdir()), entry.built, flush=True)
"""


def store_at(home: Path, free: int = 2**40) -> Store:
    return Store(home, Console(color=False), free_bytes=lambda path: free)


def write_one(folder: Path) -> Mapping[str, str]:
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("content")
    return {"source": "test"}


def never(folder: Path) -> Mapping[str, str]:
    raise AssertionError("it was built again")


def leftovers(home: Path) -> list[Path]:
    return list((home / "tmp").iterdir())


def test_an_entry_is_built_once_and_found_again(tmp_path: Path) -> None:
    first = store_at(tmp_path).entry("models", "m", write_one, needs_bytes=1)
    again = store_at(tmp_path).entry("models", "m", never, needs_bytes=1, verify=True)
    assert (first.built, again.built) == (True, False)
    assert again.details == {"source": "test"}
    record = json.loads((again.path / RECORD).read_text())
    assert record["files"] == {"sub/file": {"size": 7, "sha256": sha256_of(again.path / "sub" / "file")}}


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> Mapping[str, str]:
        (folder / "half").write_text("x")
        raise PreparationError("no network")

    with pytest.raises(PreparationError, match="no network"):
        store_at(tmp_path).entry("models", "m", fail, needs_bytes=1)
    assert not (tmp_path / "models" / "m").exists()
    assert leftovers(tmp_path) == []
    assert store_at(tmp_path).entry("models", "m", write_one, needs_bytes=1).built


@pytest.mark.parametrize("damage", ["other size", "missing file", "broken record"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    path = store_at(tmp_path).entry("models", "m", write_one, needs_bytes=1).path
    match damage:
        case "other size":
            (path / "sub" / "file").write_text("longer content")
        case "missing file":
            (path / "sub" / "file").unlink()
        case "broken record":
            (path / RECORD).write_text('{"format": 1, "files": [')
    assert store_at(tmp_path).entry("models", "m", write_one, needs_bytes=1).built
    assert (path / "sub" / "file").read_text() == "content"
    assert leftovers(tmp_path) == []


def test_a_changed_byte_is_found_by_verifying(tmp_path: Path) -> None:
    path = store_at(tmp_path).entry("models", "m", write_one, needs_bytes=1).path
    (path / "sub" / "file").write_text("c0ntent")
    assert not store_at(tmp_path).entry("models", "m", write_one, needs_bytes=1).built
    assert store_at(tmp_path).entry("models", "m", write_one, needs_bytes=1, verify=True).built
    assert (path / "sub" / "file").read_text() == "content"


def test_too_little_disk_is_said_before_building(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"too little disk space for models/m: .* set UZU_HOME"):
        store_at(tmp_path, free=10**6).entry("models", "m", never, needs_bytes=10**9)


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot make .*file/home/tmp"):
        store_at(tmp_path / "file" / "home").entry("models", "m", never, needs_bytes=1)


def test_a_build_that_was_killed_is_done_again(
    tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    counter = tmp_path / "counter"
    home = tmp_path / "home"
    command = [sys.executable, "-c", BUILDER, str(home)]
    first = spawn([*command, "60", str(counter)], stdout=subprocess.PIPE)
    assert first.stdout is not None
    assert first.stdout.readline() == "building\n"
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert len(leftovers(home)) == 1
    assert not (home / "models" / "m").exists()
    second = spawn([*command, "0", str(counter)], stdout=subprocess.PIPE)
    assert second.communicate(timeout=20)[0] == f"building\n['{RECORD}', 'half', 'rest'] True\n"
    assert leftovers(home) == []


def test_two_starts_at_once_build_once(tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    counter = tmp_path / "counter"
    command = [sys.executable, "-c", BUILDER, str(tmp_path / "home"), "1.0", str(counter)]
    processes = [spawn(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    outputs = [process.communicate(timeout=30) for process in processes]
    assert counter.read_text() == "built\n"
    assert sorted(out.splitlines()[-1].rpartition(" ")[2] for out, _ in outputs) == ["False", "False", "True"]
    assert sum("waiting for it" in err for _, err in outputs) == 2


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"one")
    store = store_at(tmp_path / "home")
    assert store.file_digest(file) == sha256_of(file)
    memory = next((tmp_path / "home" / "digests").iterdir())
    remembered = json.loads(memory.read_text())
    memory.write_text(json.dumps({**remembered, "sha256": "remembered"}))
    assert store.file_digest(file) == "remembered"
    file.write_bytes(b"other")
    assert store.file_digest(file) == sha256_of(file)


def test_names_cannot_leave_the_store(tmp_path: Path) -> None:
    assert entry_key("hub", "org/name", "../../x") == "hub-org-name-..-..-x"
    for key in ("..", "a/b", "", ".hidden"):
        with pytest.raises(ValueError, match="no name"):
            store_at(tmp_path).entry("models", key, never, needs_bytes=1)
