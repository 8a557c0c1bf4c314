from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.embedding import Fp16, Fp32, MultiTable, Sgd, SliceSpec, TableSpec
from monolith.export import shard_writer
from monolith.export.shard_writer import ShardRequest, encode_specs, write_ahead, write_shard


def spec(compressor: Any, **options: Any) -> TableSpec:
    return TableSpec("rows", [SliceSpec(2, optimizer=Sgd(1.0), compressor=compressor)], **options)


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shard_writer, "_OWN_PROCESS_ROWS", 1)
    tables = MultiTable([spec(Fp32(), seed=3)])
    tables["rows"].assign(np.arange(10), np.ones((10, 2), np.float32))
    tables.snapshot(tmp_path / "tables")
    return tmp_path / "tables"


def request(snapshot: Path, compressor: Any) -> ShardRequest:
    target = snapshot.parent / "export" / "images"
    return ShardRequest(
        snapshot=str(snapshot), target=str(target), shard=(1, 2), specs=encode_specs([spec(compressor, seed=4)])
    )


def test_shards_that_were_written_ahead_are_taken_and_not_written_again(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "_write_elsewhere", shard_writer._write)
    with write_ahead(snapshot, tmp_path, 2):
        monkeypatch.setattr(shard_writer, "_write_elsewhere", lambda _: pytest.fail("written twice"))
        assert write_shard(request(snapshot, Fp32())) == {"rows": 5}
    assert list((tmp_path / "export/images").iterdir())
    assert not list(tmp_path.glob(".shards-*"))


def test_shards_of_a_changed_model_are_written_again(
    snapshot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[ShardRequest] = []

    def write(each: ShardRequest) -> dict[str, int]:
        written.append(each)
        return shard_writer._write(each)

    monkeypatch.setattr(shard_writer, "_write_elsewhere", write)
    with write_ahead(snapshot, tmp_path, 2):
        assert write_shard(request(snapshot, Fp16())) == {"rows": 5}
    assert len(written) == 3
    assert not list(tmp_path.glob(".shards-*"))
