from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import monolith.data
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.data import Batch, DenseFeature, Schema
from monolith.data.batch import Ragged, Texts
from monolith.data.records import messages
from monolith.data.records.line_id import LineIdFields
from monolith.training.feature_engineering import encode_batch, write_features

FIELDS = LineIdFields.standard().extended({"vids": (163, "repeated int64"), "note": (164, "bytes")})
SCHEMA = Schema(
    sparse=["user", "item", "context"],
    dense=[DenseFeature("age", 2), DenseFeature("count", 1, "int64"), DenseFeature("text", 1, "bytes")],
    labels=2,
    extras={"item_id": 1, "vids": 2, "device_type": 1, "is_draw": 1},
    line_fields=FIELDS,
)


def texts(*values: bytes) -> Texts:
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int64)
    return Texts(np.frombuffer(b"".join(values), np.uint8), offsets)


def a_batch(first: int = 0) -> Batch:
    batch = Batch.from_arrays(
        ids={
            "user": [[first + 1], []],
            "item": [[-5, 1 << 62], [7]],
            "context": Ragged(np.array([3, 4]), np.array([0, 2]), shared=True),
        },
        dense={"age": [[0.5, 1.5], [2.5, 3.5]]},
        label=[[1, 0], [0, 0]],
        label_mask=[[True, True], [True, False]],
        weight=[2, 1],
        sample_rate=[0.25, 1],
        event_time_s=[1_700_000_000, 1],
        uid=[-1, 9],
        actions=[[1, 2], []],
        extras={"item_id": np.array([[-2], [8]]), "vids": np.array([[1, 2], [3, 4]]), "is_draw": np.array([[1], [0]])},
    )
    dense = {**batch.dense, "count": np.array([[1 << 40], [-1]]), "text": texts(b"a", b"bc")}
    extras = {**batch.extras, "device_type": texts("ö".encode(), b"")}
    return Batch(**{name: getattr(batch, name) for name in Batch.__slots__} | {"dense": dense, "extras": extras})


def same(one: object, other: object) -> bool:
    if isinstance(one, Texts) and isinstance(other, Texts):
        return one.tolist() == other.tolist()
    if isinstance(one, Ragged) and isinstance(other, Ragged):
        return (one.tolist(), one.shared) == (other.tolist(), other.shared)
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def read_again(folder: Path, batch_size: int = 2) -> list[Batch]:
    return list(monolith.data.files(f"{folder}/features/*.pb", record="example_batch", schema=SCHEMA).batch(batch_size))


def test_what_is_read_again_is_what_was_written(tmp_path: Path) -> None:
    written = write_features([a_batch()], tmp_path, line_fields=FIELDS)
    assert (written.batches, written.rows, len(written.paths)) == (1, 2, 1)
    (found,) = read_again(tmp_path)
    expected = a_batch()
    for name in ("label", "label_mask", "weight", "sample_rate", "event_time_s", "uid", "actions"):
        assert same(getattr(found, name), getattr(expected, name)), name
    for group in ("ids", "dense", "extras"):
        theirs, ours = getattr(found, group), getattr(expected, group)
        assert set(theirs) == set(ours)
        for name in ours:
            assert same(theirs[name], ours[name]), name


def test_tensors_are_written_as_arrays_are() -> None:
    assert encode_batch(a_batch().as_torch(), FIELDS) == encode_batch(a_batch(), FIELDS)


def test_a_record_is_eight_zero_bytes_its_length_and_an_example_batch(tmp_path: Path) -> None:
    (path,) = write_features([a_batch()], tmp_path, line_fields=FIELDS).paths
    content = path.read_bytes()
    zeros, size = struct.unpack("<QQ", content[:16])
    assert (zeros, size) == (0, len(content) - 16)
    record = messages.ExampleBatch.FromString(content[16:])
    columns = {column.name: column for column in record.named_feature_list}
    assert columns["item"].feature[0].fid_v2_list.value == [2**64 - 5, 1 << 62]
    assert columns["age"].feature[1].float_list.value == [2.5, 3.5]
    assert (columns["item"].type, columns["context"].type) == (messages.INDIVIDUAL, messages.SHARED)
    assert record.batch_size == 2


def test_every_hundred_batches_a_file_and_none_is_empty(tmp_path: Path) -> None:
    written = write_features((a_batch(number) for number in range(7)), tmp_path, batches_per_file=3, line_fields=FIELDS)
    assert [len(list(read_records(path))) for path in written.paths] == [3, 3, 1]
    assert sorted(written.paths) == sorted((tmp_path / "features").iterdir())
    exact = write_features((a_batch() for _ in range(6)), tmp_path / "b", batches_per_file=3, line_fields=FIELDS)
    assert (len(exact.paths), exact.batches) == (2, 6)
    nothing = write_features([], tmp_path / "c")
    assert (nothing.paths, list((tmp_path / "c/features").iterdir())) == ((), [])


def read_records(path: Path) -> Iterator[bytes]:
    from monolith.data.records.reader import read_records as read

    return read(path)


@pytest.mark.parametrize(("index", "role"), [(0, "chief_"), (1, "worker0_"), (3, "worker2_")])
def test_files_are_named_after_the_worker(tmp_path: Path, index: int, role: str) -> None:
    (path,) = write_features([a_batch()], tmp_path, index=index, line_fields=FIELDS).paths
    assert path.name.startswith(role)
    assert path.suffix == ".pb"


def test_when_reading_fails_whole_files_stay_and_half_ones_do_not_appear(tmp_path: Path) -> None:
    def batches() -> Iterator[Batch]:
        yield from (a_batch(), a_batch(), a_batch())
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        write_features(batches(), tmp_path, batches_per_file=2, line_fields=FIELDS)
    (path,) = (tmp_path / "features").iterdir()
    assert len(list(read_records(path))) == 2


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batches_per_file 0"):
        write_features([], tmp_path, batches_per_file=0)
    with pytest.raises(ConfigError, match="no field 'vids'"):
        encode_batch(a_batch())
    broken = Batch.from_arrays(ids={"user": [[1]]})
    extras = {"device_type": texts(b"\xff")}
    broken = Batch(**{name: getattr(broken, name) for name in Batch.__slots__} | {"extras": extras})
    with pytest.raises(SchemaMismatch, match="'device_type' holds"):
        encode_batch(broken)
