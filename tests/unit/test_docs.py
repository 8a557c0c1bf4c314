"""Modules, tests, settings and files that the documentation names exist."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import monolith as mt
from monolith.artifacts import CheckpointManifest, FileRecord
from monolith.artifacts.export_manifest import DenseProgram, ExportManifest, ServedTable, Signature
from monolith.core import errors
from monolith.data import Batch, Dataset, DenseFeature, Schema, SparseFeature, transforms
from monolith.data.transforms import Transform
from monolith.embedding import MultiTable, Table, TableSpec
from monolith.embedding.admission import FILTERS
from monolith.embedding.compressors import COMPRESSORS
from monolith.embedding.initializers import INITIALIZERS
from monolith.embedding.optimizers import OPTIMIZERS
from monolith.telemetry import names as metric_names
from monolith.training import hooks

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
LAST = {"E": 6, "D": 8, "M": 8, "T": 8, "P": 8, "S": 4, "A": 11, "R": 3}
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+?) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str, str, str]]:
    return ROW.findall((REFERENCE / "parity.md").read_text())


def test_every_row_of_the_mission_is_in_the_parity_table_once() -> None:
    expected = {f"{group}{number}" for group, last in LAST.items() for number in range(1, last + 1)}
    assert sorted(row[0] for row in rows()) == sorted(expected)


@cache
def defined_tests() -> frozenset[str]:
    """Names of all tests: functions of Python, and ``Suite.Name`` of C++."""
    folders = (ROOT / "tests", ROOT / "src" / "monolith" / "testing")
    texts = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    names = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    for path in (ROOT / "cpp").rglob("*_test.cc"):
        names |= {f"{suite}.{name}" for suite, name in re.findall(r"TEST\w*\((\w+),\s*(\w+)\)", path.read_text())}
    return frozenset(names)


def missing_names(text: str) -> list[str]:
    """Return the paths, modules and tests in backquotes that do not exist."""
    found = []
    for path, test in re.findall(
        r"`((?:tests|cpp|scripts|examples|src|benchmarks|deploy|proto)/[\w./-]*)(?:::(\w+))?`", text
    ):
        is_there = (ROOT / path).exists() and (not test or f"def {test}" in (ROOT / path).read_text())
        found += [] if is_there else [f"{path}::{test}" if test else path]
    for name in re.findall(r"`(monolith(?:\.\w+)+)`", text):
        found += [] if _is_importable(name) else [name]
    found += [name for name in re.findall(r"`(test_\w+)`", text) if name not in defined_tests()]
    return found


def _is_importable(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    path = ROOT / "src" / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    owner, _, attribute = name.rpartition(".")
    path = ROOT / "src" / owner.replace(".", "/")
    if not path.is_dir() and not path.with_suffix(".py").exists():
        return False
    return hasattr(importlib.import_module(owner), attribute)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_names_modules_and_tests_that_exist(row: tuple[str, str, str, str, str]) -> None:
    _, _, module, test, note = row
    assert missing_names(module) == []
    assert missing_names(test) == []
    assert missing_names(note) == []
    assert re.search(r"`(monolith|examples/|cpp/)", module), "a row names its module"
    assert re.search(r"`tests/", test), "a row names its test"


@pytest.mark.parametrize("page", ["differences.md", "bugs.md"])
def test_a_page_names_modules_and_tests_that_exist(page: str) -> None:
    assert missing_names((REFERENCE / page).read_text()) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    text = (
        "`tests/none.py`, `monolith.none`, `test_none`, `monolith.data.Nothing`, `tests/unit/test_docs.py::test_none`"
    )
    assert len(missing_names(text)) == 5
    text = (
        "`tests/unit`, `monolith.data`, `monolith.data.Batch`, `test_a_name_that_does_not_exist_is_found`, `cpp/engine`"
    )
    assert missing_names(text) == []


def test_every_finding_of_the_audit_has_a_test_or_a_decision() -> None:
    text = (REFERENCE / "bugs.md").read_text().partition("## Findings of the audit")[2]
    findings = re.findall(r"^\| ([\d, ]+) \| (.+?) \| (.+) \|$", text, re.MULTILINE)
    numbers = [int(number) for row in findings for number in row[0].split(",")]
    assert sorted(numbers) == list(range(1, 35))
    assert [row[0] for row in findings if not re.search(r"`(test_|tests/)|\(differences.md#", row[2])] == []


def test_every_error_is_in_the_reference() -> None:
    text = (REFERENCE / "errors.md").read_text()
    assert [name for name in errors.__all__ if f"{name}`" not in text] == []


@pytest.mark.parametrize("owner", [Table, MultiTable], ids=lambda owner: owner.__name__)
def test_every_method_of_a_table_is_in_the_guide(owner: type) -> None:
    text = (ROOT / "docs" / "guide" / "tables.md").read_text()
    assert [name for name in vars(owner) if not name.startswith("_") and name not in text] == []


def test_every_setting_of_a_table_is_in_the_guide() -> None:
    text = (ROOT / "docs" / "guide" / "tables.md").read_text()
    assert [field.name for field in dataclasses.fields(TableSpec) if f"`{field.name}`" not in text] == []


@pytest.mark.parametrize("family", [OPTIMIZERS, INITIALIZERS, COMPRESSORS, FILTERS])
def test_every_part_and_its_settings_are_in_the_reference(family: dict[str, type]) -> None:
    text = (REFERENCE / "optimizers.md").read_text()
    for part in family.values():
        assert re.search(rf"`{part.__name__}\W", text), part
        for field in dataclasses.fields(part):  # type: ignore[arg-type]
            assert re.search(rf"\b{field.name}\b", text), f"{part.__name__}.{field.name}"


def test_every_transform_and_its_settings_are_in_the_reference() -> None:
    text = (REFERENCE / "transforms.md").read_text()
    for name in transforms.__all__:
        made = getattr(transforms, name)
        if not (isinstance(made, type) and issubclass(made, Transform)) or inspect.isabstract(made):
            continue
        assert re.search(rf"`{name}\W", text), name
        for field in dataclasses.fields(made):  # type: ignore[arg-type]
            assert re.search(rf"\b{field.name}\b", text), f"{name}.{field.name}"


def test_every_method_of_a_dataset_is_in_the_guide() -> None:
    text = (ROOT / "docs" / "guide" / "data.md").read_text()
    assert [name for name in vars(Dataset) if not name.startswith("_") and f"{name}" not in text] == []


@pytest.mark.parametrize("owner", [Schema, SparseFeature, DenseFeature, Batch], ids=lambda owner: owner.__name__)
def test_every_field_of_schema_and_batch_is_in_the_guide(owner: type) -> None:
    text = (ROOT / "docs" / "guide" / "data.md").read_text()
    names = [field.name for field in dataclasses.fields(owner) if not field.name.startswith("_")]  # type: ignore[arg-type]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("method", [mt.Model.embedding_feature, mt.Model.embedding_slice], ids=lambda m: m.__name__)
def test_every_argument_of_a_declaration_is_in_the_guide(method: Callable[..., object]) -> None:
    text = (ROOT / "docs" / "guide" / "models.md").read_text()
    names = [name for name in inspect.signature(method).parameters if name != "self"]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("owner", [mt.Estimator, mt.Output], ids=lambda owner: owner.__name__)
def test_everything_of_estimator_and_output_is_in_the_guide(owner: type) -> None:
    text = (ROOT / "docs" / "guide" / "training.md").read_text()
    assert [name for name in vars(owner) if not name.startswith("_") and name not in text] == []


def test_every_hook_is_in_the_reference() -> None:
    text = (REFERENCE / "hooks.md").read_text()
    names = [name for name in hooks.__all__ if name.endswith("Hook") and name != "Hook"]
    assert [name for name in names if f"`{name}`" not in text] == []
    for owner in (hooks.Hook, hooks.Run, hooks.StepResult):
        assert [name for name in vars(owner) if not name.startswith("_") and name not in text] == [], owner


@pytest.mark.parametrize("model", mt.models.MODELS.values(), ids=lambda model: model.__name__)
def test_every_option_of_a_ready_made_model_is_in_its_row(model: type) -> None:
    text = (REFERENCE / "models.md").read_text()
    (row,) = re.findall(rf"^\| `{model.__name__}` .*$", text, re.MULTILINE)
    parameters = inspect.signature(model).parameters.values()
    own = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    assert own
    assert [name for name in own if f"`{name}`" not in row] == []
    assert [name for name in mt.models.TableOptions.__annotations__ if f"`{name}`" not in text] == []


def test_every_metric_of_a_run_is_in_the_guide() -> None:
    text = (ROOT / "docs" / "guide" / "metrics.md").read_text()
    names = [each.name for each in metric_names.ALL if re.match(r"monolith_(train|table|checkpoint)_", each.name)]
    assert names
    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("owner", [CheckpointManifest, FileRecord], ids=lambda owner: owner.__name__)
def test_every_field_of_a_manifest_is_in_the_reference(owner: type) -> None:
    text = (REFERENCE / "checkpoint-format.md").read_text()
    names = [field.name for field in dataclasses.fields(owner)]  # type: ignore[arg-type]
    assert [name for name in names if not re.search(rf"[`\"]{name}[`\"]", text)] == []


@pytest.mark.parametrize(
    "owner", [ExportManifest, DenseProgram, ServedTable, Signature], ids=lambda owner: owner.__name__
)
def test_every_field_of_an_export_is_in_the_reference(owner: type) -> None:
    text = (REFERENCE / "export-format.md").read_text()
    names = [field.name for field in dataclasses.fields(owner)]  # type: ignore[arg-type]
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    "command", [["check_docs.py"], ["write_config_reference.py", "--check"]], ids=lambda command: command[0]
)
def test_links_lead_somewhere_and_the_written_page_is_current(command: list[str]) -> None:
    script = str(ROOT / "scripts" / command[0])
    done = subprocess.run([sys.executable, script, *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_test_in_the_list_of_bugs_exists() -> None:
    """A renamed test must be renamed there too."""
    folders = ("tests", "cpp", "src/monolith/testing")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".cc")]
    text = "\n".join(path.read_text() for path in sources)
    rows = [line for line in (REFERENCE / "bugs.md").read_text().splitlines() if line.startswith("|")]
    names = {name for row in rows for name in re.findall(r"`([^`]+)`", row.rsplit("|", 2)[-2])}
    missing = [name for name in names if name.startswith("test_") and f"def {name}(" not in text]
    missing += [
        name for name in names if "/" in name and not any((ROOT / each / name).exists() for each in ("", "cpp/fuzz"))
    ]
    native = [name.split(".") for name in names if re.fullmatch(r"[A-Z]\w+\.[A-Z]\w+", name)]
    missing += [f"{a}.{b}" for a, b in native if not re.search(rf"TEST(_F)?\({a},\s*{b}\)", text)]
    assert missing == []
    review = (REFERENCE / "bugs.md").read_text().split("## Findings of the review")[1].split("## Findings")[0]
    found = {int(number) for row in re.findall(r"^\| ([\d, ]+) \|", review, re.MULTILINE) for number in row.split(",")}
    assert found == set(range(1, 40))
