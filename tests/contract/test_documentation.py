"""Facts that documents repeat are the facts in the code."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from uzu_contract.metrics import METRICS, PERF_METRICS
from uzu_contract.sampling import SAMPLING_FIELDS
from uzu_contract.tensors import INPUTS, OUTPUTS, PARAMETERS, RETURN_FLAGS
from uzu_native.options import EngineOptions

ROOT = Path(__file__).resolve().parent.parent.parent
GENERATED_INPUTS = set(RETURN_FLAGS)


def document(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def shown(value: object) -> str:
    if value is MISSING:
        return "required"
    return {None: "", True: "true", False: "false"}.get(value, str(value))  # type: ignore[call-overload]


OPTION_ROWS = [
    f"| `{f.name}` | {shown(f.default)} | {f.metadata['description']} |" for f in fields(EngineOptions)
]
METRIC_ROWS = [f"| `{m.name}` | {m.kind} | {m.description} |" for m in METRICS]
PERF_METRIC_ROWS = [f"| `{key}` | {unit} | {meaning} |" for key, (unit, meaning) in PERF_METRICS.items()]
TENSOR_ROWS = [
    f"| `{t.name}` | {t.datatype} {list(t.dims)} | {t.description} |"
    for t in (*INPUTS, *OUTPUTS)
    if t.name not in GENERATED_INPUTS
]
PARAMETER_ROWS = [f"| `{p.name}` | {p.type} | {p.description} |" for p in PARAMETERS]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("docs/configuration.md", OPTION_ROWS),
        ("docs/backends/native.md", METRIC_ROWS),
        ("docs/backends/contract.md", TENSOR_ROWS),
        ("docs/backends/contract.md", PERF_METRIC_ROWS),
        ("docs/backends/contract.md", PARAMETER_ROWS),
    ],
    ids=["options", "metrics", "tensors", "metrics of a request", "parameters"],
)
def test_tables_hold_exactly_what_the_code_has(name, rows):
    text = document(name)
    missing = [row for row in rows if row not in text]
    assert not missing, "add to " + name + ":\n" + "\n".join(missing)
    # All rows stand together, so a row that is no longer in the code would stand between or beside them.
    table = "\n".join(rows)
    assert table in text, f"the table in {name} has other rows, or another order:\n{table}"
    before, after = text.split(table)
    assert before.endswith("|---|---|---|\n")
    assert not after.startswith("\n|")


def test_sampling_parameters_are_documented():
    text = document("docs/backends/contract.md")
    assert [name for name in SAMPLING_FIELDS if f"`{name}`" not in text] == []


def test_the_readme_names_every_model_and_backend():
    text = document("README.md")
    models = sorted(p.parent.name for p in (ROOT / "model_repository").glob("*/config.pbtxt"))
    backends = sorted(p.parent.name for p in (ROOT / "python_backends").glob("*/model.py"))
    for heading, names in (("Models", models), ("Backends", backends)):
        section = re.search(rf"^## {heading}$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
        assert section is not None, heading
        assert sorted(re.findall(r"^\| `([^`]+)` \|", section[1], re.MULTILINE)) == names
    assert len(text.splitlines()) < 200


def test_links_between_documents_lead_somewhere():
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for path in documents:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.relative_to(ROOT)} links to {target}"


def test_no_document_names_a_machine_of_ours():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        assert not re.search(r"(?<![\w.])/(work|root|home)/", path.read_text("utf-8")), path


def test_no_document_has_a_blank_to_be_filled_in():
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        found = re.findall(
            r"^(?:BENCH|PERFORMANCE|TODO|FIXME|TBD)\b.*|commit COMMIT", path.read_text("utf-8"), re.M
        )
        assert not found, f"{path.relative_to(ROOT)}: {found}"
