"""The check of class names finds a second definition and ignores private names and twins."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_class_names", ROOT / "scripts/check_class_names.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_second_definition_of_a_public_class_fails_the_check(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.py").write_text("class Cut: ...\nclass DIN: ...\nclass _Row: ...\n")
    (tmp_path / "two.py").write_text("\nclass Cut: ...\nclass DIN: ...\nclass _Row: ...\n")
    monkeypatch.setattr("sys.argv", ["check", str(tmp_path)])
    assert script.main() == 1
    printed = capsys.readouterr().out
    assert "class Cut" in printed
    assert "two.py:2" in printed
    assert "DIN" not in printed
    assert "_Row" not in printed


def test_unique_class_names_pass_the_check(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.py").write_text("class Cut: ...\n")
    monkeypatch.setattr("sys.argv", ["check", str(tmp_path)])
    assert script.main() == 0
