"""Rows of tables reach the parser as cells. Their batches equal those of the same rows as ExampleBatch messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from monolith import _native
from monolith.core.errors import RecordCorrupt
from monolith.data import Batch, Dataset, DenseFeature, Schema, SparseFeature, from_source
from monolith.data.sources.column_options import ColumnOptions
from monolith.data.sources.frame import FrameSource

ROWS = 300
WIDE = 2**62


def make_table(rows: int = ROWS) -> pa.Table:
    random = np.random.default_rng(5)
    numbers = random.integers(-WIDE, WIDE, rows)
    lists = [None if each == 0 else random.integers(0, 1 << 40, each).tolist() for each in random.integers(0, 6, rows)]
    with_nulls = [[None if value % 3 == 0 else value for value in each] if each else each for each in lists]
    texts = [None if each % 7 == 0 else "x" * int(each % 200) for each in random.integers(0, 1000, rows)]
    return pa.table(
        {
            "number": pa.array(numbers),
            "small": pa.array([None if each % 5 == 0 else int(each % 100) for each in numbers], pa.int8()),
            "lists": pa.array(lists, pa.list_(pa.int64())),
            "wide_lists": pa.array(with_nulls, pa.large_list(pa.int64())),
            "unsigned": pa.array(random.integers(0, 1 << 60, rows), pa.uint64()),
            "flag": pa.array(numbers % 2 == 0),
            "text": pa.array(texts),
            "texts": pa.array([None if each is None else [each, "", "é"] for each in texts], pa.list_(pa.string())),
            "whole": pa.array((numbers % 1000).astype(np.float64)),
            "price": pa.array(random.random(rows, np.float32)),
            "count": pa.array(random.integers(0, 1000, rows), pa.int32()),
            "vector": pa.array(list(random.random((rows, 4))), pa.list_(pa.float64(), 4)),
            "__LABEL__": pa.array([[float(each % 2)] for each in numbers], pa.list_(pa.float32())),
            "instance_weight": pa.array(1 + numbers % 3, pa.int64()),
            "__UID__": pa.array(numbers),
            "__REQ_TIME__": pa.array([None if each % 4 == 0 else int(abs(each) % 10**9) for each in numbers]),
            "__ACTIONS__": pa.array([[int(each % 4)] * int(each % 3) for each in numbers], pa.list_(pa.int32())),
        }
    )


SCHEMA = Schema(
    sparse=[
        *(SparseFeature(name) for name in ("number", "small", "lists", "wide_lists", "unsigned", "flag", "text")),
        SparseFeature("texts"),
        SparseFeature("whole"),
        SparseFeature("made", slot=9, value_type="fid"),
    ],
    dense=[
        DenseFeature("price"),
        DenseFeature("count", dtype="int64"),
        DenseFeature("vector", 4),
        DenseFeature("small_number", column="small"),
    ],
)


class MessageSource(FrameSource):
    """The same rows as messages."""

    def read(self) -> _native.Records | None:
        records = super().read()
        if records is None:
            return None
        return _native.Records([records[0]], records.source, records.offsets.tolist())


def arrays_of(batch: Batch) -> dict[str, Any]:
    arrays: dict[str, Any] = {"label": batch.label, "weight": batch.weight, "uid": batch.uid}
    arrays |= {"time": batch.event_time_s, "actions": batch.actions.values, "ends": batch.actions.offsets}
    for name, ids in batch.ids.items():
        arrays |= {f"{name}.values": ids.values, f"{name}.offsets": ids.offsets}
    return arrays | dict(batch.dense.items())


STEPS: dict[str, Callable[[Dataset], Dataset]] = {
    "plain": lambda rows: rows,
    "shuffled": lambda rows: rows.shuffle(128),
    "filtered": lambda rows: rows.filter_by_feature_value(field_name="small", op="gt", operand=40, keep_empty=True),
    "hashed": lambda rows: rows.string_to_fid(name="lists", out="made", slot=9, method="int"),
    "rewritten": lambda rows: rows.map(lambda example: example),
}


@pytest.mark.parametrize("step", STEPS)
def test_cells_and_messages_of_the_same_rows_make_the_same_batches(step: str) -> None:
    def batches(source: type[FrameSource]) -> list[dict[str, Any]]:
        options = ColumnOptions(allow_missing=("made",))
        rows = from_source(lambda: source(make_table(), batch_rows=70, options=options)).with_schema(SCHEMA)
        return [arrays_of(batch) for batch in STEPS[step](rows).batch(64)]

    cells, messages = batches(FrameSource), batches(MessageSource)
    assert len(cells) == len(messages) > 0
    for ours, others in zip(cells, messages, strict=True):
        assert ours.keys() == others.keys()
        for name, values in ours.items():
            np.testing.assert_array_equal(values, others[name], err_msg=name)


def test_a_line_id_that_is_corrupt_names_the_row_of_its_record() -> None:
    table = pa.table({"number": [1, 2], "__LINE_ID__": [b"", b"\xff"]})
    rows = from_source(lambda: FrameSource(table)).with_schema(Schema(sparse=[SparseFeature("number")]))
    with pytest.raises(RecordCorrupt, match="record at row 0"):
        list(rows.batch(2))
