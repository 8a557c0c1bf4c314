"""TFRecord files go between TensorFlow and us, both ways. ``make test-compat`` sets TENSORFLOW_PYTHON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.core.errors import RecordCorrupt
from monolith.core.fid import make_v2
from monolith.data import DenseFeature, Schema, SparseFeature, files
from monolith.data.records.messages import TfExample
from monolith.data.records.tfrecord import TfRecordWriter, read_tfrecords

Row = dict[str, Any]
Ask = Callable[..., Any]

COMPRESSIONS = ["", "GZIP", "ZLIB"]
SUFFIXES = {"": "", "GZIP": ".gz", "ZLIB": ".zz"}
ROWS: list[Row] = [
    {
        "ids": [number * 7 + place for place in range(number % 4)],
        "price": [number / 4, -number / 8],
        "words": [f"word {number}", "für"][: number % 3],
        "label": [float(number % 2)],
    }
    for number in range(1000)
]


@pytest.fixture(scope="module")
def ask(conversation: Callable[..., Any]) -> Iterator[Ask]:
    """Lets TensorFlow do something."""
    with conversation("tensorflow_side.py") as ask:
        yield ask


def as_example(row: Row) -> TfExample:
    example = TfExample()
    feature = example.features.feature
    feature["ids"].int64_list.value.extend(row["ids"])
    feature["price"].float_list.value.extend(row["price"])
    feature["words"].bytes_list.value.extend(word.encode() for word in row["words"])
    feature["label"].float_list.value.extend(row["label"])
    return example


def write(path: Path, compression: str, rows: list[Row]) -> None:
    with TfRecordWriter(path, compression) as writer:
        for row in rows:
            writer.write(as_example(row).SerializeToString())


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_tensorflow_reads_what_we_write(ask: Ask, tmp_path: Path, compression: str) -> None:
    path = tmp_path / "ours.tfrecord"
    write(path, compression, ROWS)
    assert ask("read", path=str(path), compression=compression) == ROWS


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_we_read_what_tensorflow_writes(ask: Ask, tmp_path: Path, compression: str) -> None:
    path = tmp_path / f"theirs.tfrecord{SUFFIXES[compression]}"
    assert ask("write", path=str(path), compression=compression, rows=ROWS) == len(ROWS)
    records = list(read_tfrecords(path))
    assert [TfExample.FromString(record) for record in records] == [as_example(row) for row in ROWS]


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_batches_of_tensorflows_files_have_their_values(ask: Ask, tmp_path: Path, compression: str) -> None:
    path = tmp_path / "theirs.tfrecord"
    ask("write", path=str(path), compression=compression, rows=ROWS)
    in_slot = SparseFeature("fids", slot=3, column="ids", value_type="fid")
    schema = Schema(sparse=[SparseFeature("ids"), in_slot], dense=[DenseFeature("price", 2)])
    batches = list(files(path, record="tf_example", schema=schema).batch(300))
    assert [batch.size for batch in batches] == [300, 300, 300, 100]
    assert [row for batch in batches for row in batch.ids["ids"].tolist()] == [row["ids"] for row in ROWS]
    fids = [[make_v2(3, value) for value in row["ids"]] for row in ROWS]
    assert [row for batch in batches for row in batch.ids["fids"].tolist()] == fids
    assert np.concatenate([batch.dense["price"] for batch in batches]).tolist() == [row["price"] for row in ROWS]
    assert np.concatenate([batch.label for batch in batches]).tolist() == [row["label"] for row in ROWS]


@pytest.mark.parametrize("place", [3, 9, 20, -1])
def test_both_refuse_a_damaged_record(ask: Ask, tmp_path: Path, place: int) -> None:
    path = tmp_path / "damaged.tfrecord"
    write(path, "", ROWS[:1])
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
    assert ask("read", path=str(path), compression="") == "DataLossError"
    with pytest.raises(RecordCorrupt):
        list(read_tfrecords(path))
