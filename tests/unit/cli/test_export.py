from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from monolith.artifacts.export_folder import ExportFolder
from monolith.artifacts.export_manifest import DenseProgram, ExportManifest, ServedTable, TensorInfo
from monolith.cli.main import app
from monolith.core.errors import ArtifactError, CheckpointMissing, ConfigError, ManifestInvalid
from monolith.export.signatures import score_signatures, table_signatures

SCORE = TensorInfo(dtype="float32", shape=(-1,))
TABLE = ServedTable(name="user", dim=17, rows=1200, compressors=((16, "fp16"), (1, "fp32")))


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Two versions, without their contents."""

    def fill(staging: Path, version: int) -> dict[str, ExportManifest]:
        (staging / "data").write_bytes(b"x" * 1000)
        return {
            "": ExportManifest(
                name="clicks",
                version=version,
                sub_model="standalone",
                global_step=40,
                exported_at_s=1_700_000_000.0,
                package_version="0.1.0",
                signatures={**score_signatures(["ctr"], {"ctr": SCORE}), **table_signatures([TABLE])},
                heads=("ctr",),
                tables=(TABLE,),
                dense=DenseProgram(
                    inputs={"layout/v": SCORE},
                    outputs={"ctr": SCORE},
                    weights={"w": SCORE},
                    quantize_bits=8,
                    bytes=500,
                    full_bytes=1500,
                    quantization_error=0.002,
                ),
            )
        }

    for version in (1, 2):
        ExportFolder(tmp_path / "served").add(version, [""], fill, now_s=0.0)
    return tmp_path / "served"


def test_inspect_shows_every_version_of_a_model(base: Path) -> None:
    text = run("inspect", "export", str(base))
    assert f"{base}/1: clicks version 1 (standalone)" in text
    assert f"{base}/2: clicks version 2 (standalone)" in text
    assert "1,200 rows of 16 fp16, 1 fp32" in text
    assert "500 bytes, 8 bits" in text
    assert "signature" not in text


def test_inspect_shows_the_signatures_of_one_version(base: Path) -> None:
    text = run("inspect", "export", str(base / "2"), "--verify")
    assert "serving_default: " in text
    assert "-> ctr float32[?]" in text
    assert "user/raw_assign" in text
    report = json.loads(run("inspect", "export", str(base / "2"), "--json"))
    (only,) = report["exports"]
    assert only["signatures"]["lookup"]["outputs"] == {"user": "float32[?, 17]"}
    assert only["dense"]["quantization_error"] == 0.002


def test_inspect_finds_damage(base: Path) -> None:
    (base / "2" / "data").write_bytes(b"y" * 1000)
    run("inspect", "export", str(base))
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        run("inspect", "export", str(base), "--verify")


def test_inspect_refuses_a_folder_without_an_export(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="contains no export"):
        run("inspect", "export", str(tmp_path))


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--format", "torchscript"], "deprecated"),
        (["--format", "savedmodel"], "monolith, onnx"),
        (["--quantize-bits", "4"], "quantize_bits is 4"),
        (["--shards", "2"], "distributed"),
        (["--task", "deepfm", "--task-options", "{"], "expected JSON"),
        (["--task", "deepfm", "--task-options", "[]"], "JSON object"),
        ([], "task is None"),
    ],
)
def test_an_impossible_export_is_refused_with_one_line(tmp_path: Path, flags: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        run("export", str(tmp_path), str(tmp_path / "out"), *flags)
    assert not (tmp_path / "out").exists()


def test_a_source_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMissing, match="nowhere"):
        run("export", str(tmp_path / "nowhere"), str(tmp_path / "out"))
