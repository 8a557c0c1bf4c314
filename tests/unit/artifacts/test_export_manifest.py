from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from monolith.artifacts.checkpoint_manifest import describe_files, verify_files
from monolith.artifacts.export_manifest import (
    WARMUP,
    DenseProgram,
    ExportManifest,
    ServedTable,
    Signature,
    TensorInfo,
    read_export_manifest,
    write_export_manifest,
)
from monolith.core.durable_files import seal
from monolith.core.errors import ArtifactError, ManifestInvalid, VersionConflict

SCORE = TensorInfo(dtype="float32", shape=(-1,))
MANIFEST = ExportManifest(
    name="ctr",
    version=7,
    sub_model="ps",
    shard=(1, 3),
    global_step=40,
    exported_at_s=1_700_000_000.5,
    package_version="0.1.0",
    signatures={"serving_default": Signature(kind="score", inputs={"examples": SCORE}, outputs={"ctr": SCORE})},
    declaration={"version": 1, "labels": 1},
    heads=("ctr",),
    tables=(ServedTable(name="user", dim=17, rows=3, compressors=((16, "fp16"), (1, "fp32"))),),
    has_tables=True,
    dense=DenseProgram(inputs={"layout/x": SCORE}, outputs={"ctr": SCORE}, weights={"w": SCORE}, quantized=("w",)),
)


def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_export_manifest(tmp_path, MANIFEST)
    assert read_export_manifest(tmp_path) == MANIFEST


def test_files_are_named_with_sizes_and_checksums_that_verify(tmp_path: Path) -> None:
    (tmp_path / WARMUP).parent.mkdir()
    (tmp_path / WARMUP).write_bytes(b"requests")
    manifest = dataclasses.replace(MANIFEST, files=describe_files(tmp_path))
    write_export_manifest(tmp_path, manifest)
    read = read_export_manifest(tmp_path)
    assert (read.bytes, read.warmup) == (8, True)
    verify_files(tmp_path, read)
    (tmp_path / WARMUP).write_bytes(b"requestz")
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        verify_files(tmp_path, read)


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected an export"):
        read_export_manifest(tmp_path)


def test_every_changed_byte_of_a_manifest_is_seen(tmp_path: Path) -> None:
    write_export_manifest(tmp_path, MANIFEST)
    path = tmp_path / "manifest.json"
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ArtifactError):
            read_export_manifest(tmp_path)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"format": "monolith.checkpoint", "version": 1}, ManifestInvalid),
        ({"format": "monolith.export", "format_version": 1}, VersionConflict),
        ({"format": "monolith.export", "format_version": 99}, VersionConflict),
        ({"format": "monolith.export", "format_version": 2, "name": "x"}, ManifestInvalid),
    ],
)
def test_another_kind_version_or_content_is_refused(tmp_path: Path, body: dict, error: type[Exception]) -> None:
    (tmp_path / "manifest.json").write_bytes(seal(body))
    with pytest.raises(error):
        read_export_manifest(tmp_path)


def test_the_size_of_a_file_is_checked_although_its_checksum_is_not(tmp_path: Path) -> None:
    (tmp_path / "rows").write_bytes(b"12345678")
    manifest = dataclasses.replace(MANIFEST, files=describe_files(tmp_path))
    verify_files(tmp_path, manifest, size_only=["rows"])
    (tmp_path / "rows").write_bytes(b"1234567")
    with pytest.raises(ManifestInvalid, match="rows"):
        verify_files(tmp_path, manifest, size_only=["rows"])
