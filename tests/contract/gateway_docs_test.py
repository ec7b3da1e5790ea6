"""The pages about the gateway agree with its code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from uzu_contract.errors import ErrorCode
from uzu_gateway.docs import TABLES, main, outdated
from uzu_gateway.errors import ERRORS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCES = ROOT / "gateway" / "uzu_gateway"


def test_the_tables_are_those_of_the_code() -> None:
    assert outdated(DOCS) == []


def test_an_outdated_table_is_noticed_and_made_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in TABLES:
        shutil.copy(DOCS / name, tmp_path)
    page = tmp_path / "errors.md"
    page.write_text(page.read_text("utf-8").replace("`model_not_found` | 404", "`model_not_found` | 400"))
    assert main(["--check", "--folder", str(tmp_path)]) == 1
    assert "errors.md is outdated" in capsys.readouterr().err
    assert main(["--write", "--folder", str(tmp_path)]) == 0
    assert main(["--check", "--folder", str(tmp_path)]) == 0
    assert page.read_text("utf-8") == (DOCS / "errors.md").read_text("utf-8")


def test_every_code_that_the_sources_use_is_in_the_table() -> None:
    text = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    used = set(re.findall(r'GatewayError\(\s*"([a-z_]+)"', text))
    assert len(used) >= 8
    assert used <= set(ERRORS)
    assert set(ErrorCode) <= set(ERRORS)


def test_every_code_of_the_table_is_used() -> None:
    text = "".join(path.read_text("utf-8") for path in SOURCES.rglob("*.py"))
    used = set(re.findall(r'GatewayError\(\s*"([a-z_]+)"', text)) | {code.value for code in ErrorCode}
    assert used == {str(code) for code in ERRORS}
