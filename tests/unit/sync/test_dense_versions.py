from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from monolith.core.durable_files import seal
from monolith.core.errors import ArtifactError, ConfigError, ManifestInvalid, VersionConflict
from monolith.sync import DenseReader, DenseWriter


def ones(size: int = 3, value: float = 1.0) -> np.ndarray:
    return np.full(size, value, np.float32)


def read(root: Path, version: int) -> dict[str, np.ndarray]:
    return DenseReader(root).changes(version)[0]


def test_only_tensors_that_changed_are_written_again(tmp_path: Path) -> None:
    writer = DenseWriter(tmp_path)
    assert writer.write({"w": ones(1000), "b": ones()}) == 1
    assert writer.write({"w": ones(1000), "b": ones()}) == 1
    assert writer.write({"w": ones(1000), "b": ones(value=2.0)}) == 2
    small, large = (tmp_path / "dense" / f"dense-{version:020d}.safetensors" for version in (2, 1))
    assert small.stat().st_size < 1000 < large.stat().st_size
    found = read(tmp_path, 2)
    np.testing.assert_array_equal(found["w"], ones(1000))
    np.testing.assert_array_equal(found["b"], ones(value=2.0))


def test_a_reader_gets_the_changed_tensors_after_any_number_of_versions(tmp_path: Path) -> None:
    writer, reader = DenseWriter(tmp_path), DenseReader(tmp_path)
    writer.write({"w": ones(), "b": ones(), "c": np.array(5)})
    weights, stamps = reader.changes(1)
    assert sorted(weights) == ["b", "c", "w"]
    reader.mark_applied(stamps)
    assert reader.changes(1)[0] == {}
    writer.write({"w": ones(value=2.0), "b": ones(), "c": np.array(5)})
    writer.write({"w": ones(value=2.0), "b": ones(value=3.0), "c": np.array(5)})
    assert sorted(reader.changes(3)[0]) == ["b", "w"]


def test_weights_that_are_not_numbers_do_not_change_all_the_time(tmp_path: Path) -> None:
    writer = DenseWriter(tmp_path)
    writer.write({"w": ones(value=np.nan)})
    assert writer.write({"w": ones(value=np.nan)}) == 1
    assert writer.write({"w": ones(value=0.0)}) == 2
    assert writer.write({"w": ones(value=-0.0)}) == 3


def test_a_new_writer_continues_the_numbers_and_writes_all_tensors(tmp_path: Path) -> None:
    DenseWriter(tmp_path).write({"w": ones(), "b": ones()})
    (tmp_path / "dense" / "dense-00000000000000000002.safetensors.tmp").write_bytes(b"left by a killed one")
    assert DenseWriter(tmp_path).write({"w": ones(), "b": ones(value=2.0)}) == 2
    assert sorted(read(tmp_path, 2)) == ["b", "w"]
    assert not list((tmp_path / "dense").glob("*.tmp"))


def test_old_versions_go_but_not_the_files_that_newer_ones_need(tmp_path: Path) -> None:
    writer = DenseWriter(tmp_path)
    for number in range(30):
        writer.write({"frozen": ones(), "w": ones(value=number)})
    found = read(tmp_path, 30)
    np.testing.assert_array_equal(found["frozen"], ones())
    np.testing.assert_array_equal(found["w"], ones(value=29))
    assert len(list((tmp_path / "dense").iterdir())) < 20
    with pytest.raises(ArtifactError, match="is missing"):
        read(tmp_path, 3)


def test_a_version_that_was_altered_is_refused(tmp_path: Path) -> None:
    DenseWriter(tmp_path).write({"w": ones()})
    path = tmp_path / "dense" / "dense-00000000000000000001.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x01")
    with pytest.raises(ManifestInvalid, match="checksum differs"):
        read(tmp_path, 1)
    path.unlink()
    with pytest.raises(ArtifactError, match="is gone"):
        read(tmp_path, 1)
    listed = path.with_suffix(".json")
    listed.write_bytes(listed.read_bytes().replace(b'"w"', b'"v"'))
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        read(tmp_path, 1)
    listed.write_bytes(seal({"format": "monolith.dense", "version": 2}))
    with pytest.raises(VersionConflict, match="version 2, expected"):
        read(tmp_path, 1)


def test_a_type_that_no_server_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'w' is complex64"):
        DenseWriter(tmp_path).write({"w": np.ones(2, np.complex64)})
