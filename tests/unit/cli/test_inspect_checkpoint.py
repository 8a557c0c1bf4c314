from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolith.artifacts import CheckpointFolder, CheckpointManifest, Retention
from monolith.cli import inspect_checkpoint
from monolith.cli import main as program
from monolith.core.errors import ArtifactError, CheckpointMissing, ManifestInvalid


def fill(folder: Path) -> Mapping[str, int]:
    (folder / "dense.safetensors").write_bytes(b"x" * 2000)
    return {"item": 1234, "user": 5}


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for name, kind, steps in (("checkpoints", "full", (100, 200)), ("dense_only", "dense_only", (150,))):
        for step in steps:
            header = CheckpointManifest(
                step=step, number=0, kind=kind, saved_at_s=1_700_000_000, reason="due", package_version="9.9"
            )  # type: ignore[arg-type]
            CheckpointFolder(tmp_path / name).add(header, fill, retention=Retention(), started_at_s=1_700_000_000)
    CheckpointFolder(tmp_path / "checkpoints").exempt("100")
    return tmp_path


def inspect(*arguments: object) -> str:
    result = CliRunner().invoke(program.app, ["inspect", "checkpoint", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_run_shows_all_its_checkpoints(run_folder: Path) -> None:
    out = inspect(run_folder)
    assert f"{run_folder}: 3 checkpoints\n" in out
    assert "step 100 (full, exempt)" in out
    assert "step 200 (full)" in out
    assert "step 150 (dense_only)" in out
    assert "2023-11-14 22:13:20 UTC, due, release 9.9" in out
    assert "item  1,234 rows" in out


def test_one_checkpoint_shows_its_files(run_folder: Path) -> None:
    out = inspect(run_folder / "checkpoints/step-000000200", "--verify")
    assert "1 checkpoint, all checksums match" in out
    assert "dense.safetensors  2 kB, crc32c " in out


def test_json_contains_everything(run_folder: Path) -> None:
    report = json.loads(inspect(run_folder / "checkpoints", "--json"))
    assert [each["step"] for each in report["checkpoints"]] == [100, 200]
    assert [each["is_exempt"] for each in report["checkpoints"]] == [True, False]
    assert report["checkpoints"][0]["tables"] == {"item": 1234, "user": 5}
    assert report["checkpoints"][0]["bytes"] == 2000


def test_a_terminal_gets_a_table(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    inspect_checkpoint.checkpoint(run_folder, verify=True)
    out = " ".join(capsys.readouterr().out.split())  # the width of the path moves line breaks
    assert "checksums match" in out
    assert "exempt" in out
    assert "whole" in out


def test_verify_finds_the_damaged_one_and_still_shows_the_others(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_folder / "checkpoints/step-000000100/dense.safetensors"
    file.write_bytes(b"y" + b"x" * 1999)
    inspect(run_folder)
    with pytest.raises(ManifestInvalid, match=r"step-000000100/dense\.safetensors"):
        inspect_checkpoint.checkpoint(run_folder, verify=True)
    out = capsys.readouterr().out
    assert "3 checkpoints, 1 damaged" in out
    assert "step 100 (full, exempt, DAMAGED)" in out


def test_a_newest_one_without_a_manifest_is_refused(run_folder: Path) -> None:
    (run_folder / "checkpoints/step-000000200/manifest.json").unlink()
    with pytest.raises(ArtifactError, match="step-000000200"):
        inspect(run_folder)


def test_a_folder_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match="contains no checkpoint"):
        inspect(tmp_path)


def test_looking_at_checkpoints_does_not_load_torch(run_folder: Path) -> None:
    import subprocess

    code = (
        "import sys; from pathlib import Path; from monolith.cli.inspect_checkpoint import checkpoint; "
        f"checkpoint(Path({str(run_folder)!r})); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
