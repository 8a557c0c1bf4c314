"""The script that builds wheels: which interpreters build, and which are reported as absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts_of_repository import load_script

load_script("set_up")
build_wheels = load_script("build_wheels")


def _interpreter(folder: Path, name: str, version: str | None) -> Path:
    """Write a program that answers as an interpreter of a version; None = as a shim of pyenv without its version."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\nexit 127\n" if version is None else f"#!/bin/sh\necho {path}\necho {version}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the PATH of a machine without interpreters."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    return tmp_path / "bin"


def test_python_3_11_and_the_oldest_with_the_stable_abi_build(
    machine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = _interpreter(machine, "python3.11", "3 11")
    new = _interpreter(machine, "python3.12", "3 12")
    _interpreter(machine, "python3.13", "3 13")
    names = ["python3.13", "python3.12", "python3.11", "python3.14"]
    assert build_wheels.choose_pythons(names) == [(old, (3, 11)), (new, (3, 12))]
    assert "python3.14 is absent from this machine" in capsys.readouterr().err


def test_a_version_of_pyenv_replaces_a_shim_that_fails(machine: Path, tmp_path: Path) -> None:
    _interpreter(machine, "python3.12", None)
    python = _interpreter(tmp_path / "pyenv" / "versions" / "3.12.1" / "bin", "python3.12", "3 12")
    assert build_wheels.find_python("python3.12") == (python, (3, 12))


def test_an_interpreter_may_be_a_path(machine: Path, tmp_path: Path) -> None:
    python = _interpreter(tmp_path / "opt", "python", "3 13")
    assert build_wheels.choose_pythons([str(python)]) == [(python, (3, 13))]


def test_a_machine_without_interpreters_names_the_remedy(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build_wheels.main([str(tmp_path / "venv"), str(tmp_path / "dist"), "python3.12"]) == 1
    assert "PYTHONS is 'python3.12', expected an interpreter of 3.11 or newer" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()


def test_missing_arguments_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert build_wheels.main([]) == 2
    assert "build_wheels.py VENV FOLDER" in capsys.readouterr().err
