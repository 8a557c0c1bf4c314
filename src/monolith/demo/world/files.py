"""Writes impressions of the world as files: records of every kind that holds fids, and Parquet."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from monolith import _native
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.records import convert
from monolith.data.records.messages import ExampleBatch, parse_message
from monolith.data.records.writer import RecordWriter
from monolith.data.sources.arrow_columns import load_pyarrow
from monolith.data.sources.frame import FrameSource
from monolith.demo.world.clicks import Clicks

__all__ = ["ClickRecord", "example_batch", "write_parquet", "write_records"]

ClickRecord: TypeAlias = Literal["example_batch", "example", "instance"]

_TO_ROWS: Mapping[str, Callable[[ExampleBatch], list[Any]]] = {
    "example": convert.batch_to_examples,
    "instance": convert.batch_to_instances,
}


def write_records(
    clicks: Clicks, writer: RecordWriter, record: ClickRecord = "example_batch", *, batch_rows: int = 256
) -> int:
    """Append impressions to a record file, with v2 fids as ids; return the number of records.

    The engine makes batches, a million rows in seconds; Python writes the other kinds row by row.

    Args:
        clicks: The rows. Labels are click and like.
        writer: An open writer, which stays open.
        record: Message to write.
        batch_rows: Rows of a record, for batches.

    Raises:
        ConfigError: The record is unknown.
    """
    if record not in ("example_batch", "example", "instance"):
        raise ConfigError(f"record is {record!r}; give 'example_batch', 'example' or 'instance'")
    source = FrameSource(_with_fids(clicks), _column_types(clicks), batch_rows=batch_rows, name="clicks")
    begin = writer.records
    while (records := source.read()) is not None:
        _write_lot(records, writer, record)
    return writer.records - begin


def example_batch(clicks: Clicks) -> bytes:
    """Return impressions as one serialized ``ExampleBatch``, the message of streams and of requests."""
    records = FrameSource(_with_fids(clicks), _column_types(clicks), batch_rows=len(clicks), name="clicks").read()
    assert records is not None
    return bytes(records[0])


def _write_lot(records: _native.Records, writer: RecordWriter, record: ClickRecord) -> None:
    if record == "example_batch":
        writer.write_lot(records)
        return
    for index in range(len(records)):
        batch = parse_message(ExampleBatch, records[index])
        for row in _TO_ROWS[record](batch):
            writer.write(row.SerializeToString(deterministic=True))


def write_parquet(clicks: Clicks, path: str | os.PathLike[str]) -> None:
    """Write impressions as a Parquet file with plain columns: the features, ``click``, ``like``, user and time."""
    pa, parquet = load_pyarrow(), load_pyarrow("pyarrow.parquet")
    columns = clicks.feature_columns() | {
        "click": clicks.click,
        "like": clicks.like,
        "__UID__": clicks.user_id,
        "__REQ_TIME__": clicks.event_time_s,
    }
    parquet.write_table(pa.table(columns), os.fspath(path))


def _with_fids(clicks: Clicks) -> Any:
    """Return the table of the clicks with ids instead of plain numbers."""
    pa = load_pyarrow()
    table = clicks.table()
    for feature in clicks.schema().sparse_features:
        assert feature.slot is not None
        ids = pa.array(fid.switch_slot(getattr(clicks, feature.name), feature.slot))
        if feature.name == "history":
            ids = pa.LargeListArray.from_arrays(clicks.history_offsets, ids)
        table = table.set_column(table.schema.get_field_index(feature.name), feature.name, ids)
    return table


def _column_types(clicks: Clicks) -> dict[str, Any]:
    schema = clicks.schema()
    fids = {feature.name: "fid_v2" for feature in schema.sparse_features}
    floats = {feature.name: "float" for feature in schema.dense_features}
    return fids | floats | {"__LABEL__": "float", "__UID__": "int", "__ITEM_ID__": "int", "__REQ_TIME__": "int"}
