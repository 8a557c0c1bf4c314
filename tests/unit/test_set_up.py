"""The setup of the repository: pip's settings for uv, the count of compiled files, the end of a failed build."""

from __future__ import annotations

import os
import sys
import venv as venv_module
from pathlib import Path

import pytest

from scripts_of_repository import load_script

set_up = load_script("set_up")


def test_indexes_folders_and_certificates_of_pip_reach_uv() -> None:
    lines = [
        ":env:.find-links='/wheels'",
        "global.cert='/etc/ca.pem'",
        "global.extra-index-url='file:///a/simple https://b/simple'",
        "global.find-links='/old /older'",
        "global.timeout='60'",
    ]
    assert set_up.translate_settings(lines) == {
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_FIND_LINKS": "/wheels",
        "UV_INDEX": "file:///a/simple https://b/simple",
    }
    assert set_up.translate_settings(["global.find-links='/a\\n/b'"]) == {"UV_FIND_LINKS": "/a,/b"}


def test_the_lock_file_pins_every_package_that_a_compilation_needs() -> None:
    lines = set_up.select_tools((Path(__file__).parents[2] / "requirements.lock").read_text())
    names = [line.split("==")[0] for line in lines]
    assert sorted(names) == ["cmake", "nanobind", "ninja", "packaging", "pathspec", "scikit_build_core"]


def test_an_environment_whose_creation_was_stopped_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(set_up.shutil, "which", lambda name: None)  # no uv
    monkeypatch.setattr(set_up, "install", lambda *_: 0)
    venv = tmp_path / "venv"
    venv_module.create(venv, with_pip=False)
    (venv / "left-over").touch()
    lock = tmp_path / "requirements.lock"
    lock.touch()
    assert not set_up.can_install(venv)
    assert set_up.install_tools(venv, lock) == 0
    assert set_up.can_install(venv)
    assert not (venv / "left-over").exists()
    assert set_up.install_tools(venv, lock) == 0
    assert capsys.readouterr().err.count("creating") == 1


def test_a_long_installation_shows_a_line_from_time_to_time_and_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(set_up, "_SECONDS_BETWEEN_LINES", 0.05)
    assert set_up.wait_for(["sh", "-c", "sleep 0.4; exit 3"], dict(os.environ)) == 3
    assert "setup:       installing packages, 0 s" in capsys.readouterr().err


def test_the_compilation_takes_no_jobs_from_the_make_that_installs_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEFLAGS", " -j2 --jobserver-auth=fifo:/tmp/x")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "flags: [$MAKEFLAGS]"\n')
    python.chmod(0o755)
    assert set_up.build_native(tmp_path / "venv", tmp_path / "build") == 0
    assert (tmp_path / "build.log").read_text() == "flags: []\n"


def test_the_count_of_files_is_a_line_at_each_quarter_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    counter = set_up.Counter()
    for done in range(1, 9):
        counter.show(done, 8)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("compiled ")[1].split(" files")[0] for line in lines] == ["2 of 8", "4 of 8", "6 of 8", "8 of 8"]


def test_a_failed_build_shows_its_end_and_names_the_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nfor i in $(seq 100); do echo line $i; done; echo 'x.cc:1: error: bad'; exit 3\n")
    python.chmod(0o755)
    assert set_up.build_native(tmp_path / "venv", tmp_path / "build") == 3
    error = capsys.readouterr().err
    assert "x.cc:1: error: bad" in error
    assert "line 40\n" not in error
    assert f"the whole output is in {tmp_path / 'build.log'}" in error
    assert (tmp_path / "build.log").read_text().startswith("line 1\n")


def test_an_unknown_subcommand_shows_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert set_up.main(["all"]) == 2
    assert "set_up.py tools|packages|native" in capsys.readouterr().err


def test_an_old_python_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert set_up.install_tools(tmp_path / "venv", tmp_path / "lock") == 1
    assert "Python is 3.9.2, expected 3.11 or newer; name another one: make PYTHON=" in capsys.readouterr().err
