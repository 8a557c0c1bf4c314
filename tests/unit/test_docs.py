"""What the documentation claims about the code is there."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from monolith.core import errors
from monolith.data import Batch, Dataset, DenseFeature, Schema, SparseFeature, transforms
from monolith.data.transforms import Transform
from monolith.embedding import MultiTable, Table, TableSpec
from monolith.embedding.admission import FILTERS
from monolith.embedding.compressors import COMPRESSORS
from monolith.embedding.initializers import INITIALIZERS
from monolith.embedding.optimizers import OPTIMIZERS

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
LAST = {"E": 6, "D": 8, "M": 7, "T": 8, "P": 8, "S": 4, "A": 11, "R": 3}
ROW = re.compile(r"^\| ([A-Z]\d+) \| (.+?) \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


def rows() -> list[tuple[str, str, str, str, str]]:
    return ROW.findall((REFERENCE / "parity.md").read_text())


def test_every_row_of_the_mission_is_in_the_parity_table_once() -> None:
    expected = {f"{group}{number}" for group, last in LAST.items() for number in range(1, last + 1)}
    assert sorted(row[0] for row in rows()) == sorted(expected)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_a_row_names_modules_and_tests_that_exist(row: tuple[str, str, str, str, str]) -> None:
    _, _, module, test, _ = row
    for path in re.findall(r"`((?:tests|cpp)/[^`]+)`", test):
        assert (ROOT / path.partition("::")[0]).exists(), path
    for name in re.findall(r"`(monolith[\w.]*)`", module):
        path = ROOT / "src" / name.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").exists(), name


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


def test_links_lead_somewhere() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check_docs.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
