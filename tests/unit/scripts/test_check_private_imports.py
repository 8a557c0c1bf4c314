"""The check of private imports finds each form of import, and the project passes it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_private_imports", ROOT / "scripts/check_private_imports.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("from monolith.ps._link import Link", True),
        ("from monolith.ps import _link", True),
        ("import monolith.ps._link", True),
        ("from monolith.ps.link import _hidden", True),
        ("def f():\n    from monolith.ps import _link", True),
        ("from monolith.serving._own import thing", False),
        ("from . import _own", False),
        ("from ._own import thing", False),
        ("from monolith import _native", False),
        ("from monolith._proto.messages import parse_bytes", False),
        ("from monolith.ps import __all__", False),
        ("from other._private import thing", False),
    ],
)
def test_a_private_import_across_packages_is_refused(
    tmp_path: Path, script: ModuleType, line: str, is_refused: bool
) -> None:
    module = tmp_path / "monolith/serving/api.py"
    module.parent.mkdir(parents=True)
    module.write_text(f"{line}\n")
    violations = list(script.find_violations(tmp_path))
    assert bool(violations) == is_refused
    if is_refused:
        assert str(module) in violations[0]
        assert "private to monolith.ps" in violations[0]


def test_a_subpackage_may_import_private_modules_of_its_parents(tmp_path: Path, script: ModuleType) -> None:
    module = tmp_path / "monolith/layers/losses/heads.py"
    module.parent.mkdir(parents=True)
    module.write_text("from monolith.layers._arguments import check_number\n")
    assert not list(script.find_violations(tmp_path))


def test_the_project_has_no_private_import_across_packages(script: ModuleType) -> None:
    assert not list(script.find_violations(ROOT / "src"))
