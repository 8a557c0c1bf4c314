from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def test_at_least_a_hundred_mutants_fit_the_code_and_name_existing_tests() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "mutants.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "mutants, " in result.stdout


def load_script(monkeypatch: pytest.MonkeyPatch, folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants_script", ROOT / "scripts" / "mutants.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants_script", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", folder / "results.jsonl")
    return module


def choose(script: ModuleType, mutants: list[Any], **options: Any) -> list[Any]:
    arguments = argparse.Namespace(**{"only": "", "sample": 0, "seed": 0, "failed": False, "again": False, **options})
    chosen: list[Any] = script._choose(mutants, arguments, script.Results())
    return chosen


def test_a_run_resumes_after_the_stored_results_and_can_judge_the_failed_ones_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load_script(monkeypatch, tmp_path)
    one, two, three = (script.Mutant("src/a.py", name, "x", ("tests/a.py",)) for name in ("1", "2", "3"))
    results = script.Results()
    results.add(one, "noticed", ("tests/a.py::test_one",), 1.0)
    results.add(two, "unnoticed", (), 1.0)
    assert choose(script, [one, two, three]) == [three]
    assert choose(script, [one, two, three], failed=True) == [two]
    assert choose(script, [one, two, three], again=True, only="1") == [one]
    results.add(two, "noticed", ("tests/a.py::test_two",), 1.0)
    assert choose(script, [one, two, three], failed=True) == []


def test_a_mutant_whose_test_fails_without_it_is_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script(monkeypatch, tmp_path)
    good, bad = (script.Mutant("src/a.py", name, "x", ("tests/a.py",)) for name in ("1", "2"))
    results = script.Results()
    results.add(good, "noticed", ("sound",), 1.0)
    results.add(bad, "noticed", ("broken",), 1.0)
    script._check_failed([good, bad], results, SimpleNamespace(find_sound=lambda tests: [[tests[-1]]]))
    again = script.Results()
    assert (again.of(good), again.of(bad)) == ("noticed", "invalid")
    assert again.failed(good) == []
