"""Parquet files as records: the same bytes as the rows of the table that was written."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monolith.core.errors import ConfigError, DataError, RecordCorrupt, SchemaMismatch
from monolith.data.sources import parquet
from monolith.data.sources.frame import FrameSource

_sources: list[parquet.ParquetSource] = []


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    while _sources:
        _sources.pop().close()


def opened(*args: Any, **kwargs: Any) -> parquet.ParquetSource:
    """A source that is closed at the end of the test."""
    _sources.append(parquet.ParquetSource(*args, **kwargs))
    return _sources[-1]


def table(rows: int, first: int = 0) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        {
            "user": pa.array([n << 48 | n for n in numbers], pa.int64()),
            "items": pa.array([None if n % 5 == 0 else [n] * (n % 4) for n in numbers], pa.list_(pa.int64())),
            "price": pa.array([None if n % 3 == 0 else n / 2 for n in numbers], pa.float32()),
            "name": [f"n{n % 7}" for n in numbers],
            "__LABEL__": pa.array([float(n % 2) for n in numbers], pa.float32()),
            "__UID__": pa.array(list(numbers), pa.int64()),
            "__ACTIONS__": pa.array([[n % 3, 1] for n in numbers], pa.list_(pa.int32())),
        }
    )


def drain(source: Any) -> list[tuple[bytes, str, list[int]]]:
    lots = []
    while (lot := source.read()) is not None:
        assert len(lot) == 1
        lots.append((lot[0], lot.source, lot.offsets.tolist()))
    return lots


def frame_records(frame: pa.Table, cuts: list[int], columns: Any = None) -> list[bytes]:
    """The record of each stretch of rows between two cuts."""
    records = []
    for begin, end in itertools.pairwise(cuts):
        lot = FrameSource(frame.slice(begin, end - begin), columns, batch_rows=end - begin).read()
        assert lot is not None
        records.append(lot[0])
    return records


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "none"},
        {"compression": "snappy"},
        {"compression": "zstd"},
        {"compression": "gzip"},
        {"compression": "lz4"},
        {"compression": "brotli"},
        {"use_dictionary": False},
        {"data_page_version": "2.0"},
        {"version": "1.0"},
        {"data_page_size": 64},
    ],
    ids=str,
)
def test_every_way_of_writing_gives_the_same_records(tmp_path: Path, options: dict[str, Any]) -> None:
    frame = table(50)
    path = tmp_path / "a.parquet"
    pq.write_table(frame, path, row_group_size=30, **options)
    lots = drain(
        opened([path], {"user": "fid_v2", "items": "fid_v2", "name": "bytes", "__LABEL__": "float"}, batch_rows=16)
    )
    cuts = [0, 16, 30, 46, 50]
    columns = {"user": "fid_v2", "items": "fid_v2", "name": "bytes", "__LABEL__": "float"}
    assert [lot[0] for lot in lots] == frame_records(frame, cuts, columns)
    assert [lot[2] for lot in lots] == [[cut] for cut in cuts[:-1]]
    assert {lot[1] for lot in lots} == {str(path)}
    assert [lot[0] for lot in drain(opened([path], batch_rows=16))] == frame_records(frame, cuts)


def test_a_dictionary_keeps_its_values(tmp_path: Path) -> None:
    frame = pa.table({"c": pa.array(["x", None, "y"]).dictionary_encode(), "l": pa.array([["a"], None, ["b", "a"]])})
    pq.write_table(frame, tmp_path / "a.parquet")
    assert [lot[0] for lot in drain(opened([tmp_path / "a.parquet"]))] == frame_records(frame, [0, 3])


@pytest.mark.parametrize(
    "type_", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "bool_", "large_string"]
)
def test_every_width_of_numbers(tmp_path: Path, type_: str) -> None:
    frame = pa.table({"n": pa.array([0, 1, None, 1]).cast(getattr(pa, type_)())})
    pq.write_table(frame, tmp_path / "a.parquet")
    assert [lot[0] for lot in drain(opened([tmp_path / "a.parquet"]))] == frame_records(frame, [0, 4])


def test_a_nested_column_is_known_by_its_first_name(tmp_path: Path) -> None:
    frame = pa.table({"a": [[1, 2], [3]], "a.list.element": [1, 2], "a.b": [[5], []]})
    pq.write_table(frame, tmp_path / "a.parquet")
    lots = drain(opened([tmp_path / "a.parquet"], {"a": "fid_v1"}))
    assert [lot[0] for lot in lots] == frame_records(frame, [0, 2], {"a": "fid_v1"})


def test_the_index_of_a_pandas_frame_is_read_only_by_name(tmp_path: Path) -> None:
    frame = pa.table({"user": [7, 8], "__index_level_0__": [5, 9]})
    pq.write_table(frame, tmp_path / "a.parquet")
    lots = drain(opened([tmp_path / "a.parquet"]))
    assert [lot[0] for lot in lots] == frame_records(frame.select(["user"]), [0, 2])
    named = ["user", "__index_level_0__"]
    lots = drain(opened([tmp_path / "a.parquet"], named))
    assert [lot[0] for lot in lots] == frame_records(frame, [0, 2], named)
    assert lots[0][0] != frame_records(frame.select(["user"]), [0, 2])[0]


@pytest.mark.parametrize("batch_rows", [4, 7, 100])
def test_it_resumes_at_every_place(tmp_path: Path, batch_rows: int) -> None:
    paths = [tmp_path / f"{index}.parquet" for index in range(3)]
    for index, path in enumerate(paths):
        pq.write_table(table(0 if index == 1 else 20, index * 20), path, row_group_size=9)
    source = opened(paths, batch_rows=batch_rows)
    lots, places = [], [source.position()]
    while (lot := source.read()) is not None:
        lots.append((lot[0], lot.source, lot.offsets.tolist()))
        places.append(json.loads(json.dumps(source.position())))
    places.append(source.position())
    lots_after = [*lots, None]
    for index, place in enumerate(places):
        again = opened(paths, batch_rows=batch_rows)
        again.resume(place)
        assert again.position() == place or again.position()["row"] == 0
        assert drain(again) == lots_after[index:-1]


def test_a_resumed_source_may_have_other_batches(tmp_path: Path) -> None:
    pq.write_table(table(20), tmp_path / "a.parquet")
    first = opened([tmp_path / "a.parquet"], batch_rows=7)
    first.read()
    again = opened([tmp_path / "a.parquet"], batch_rows=5)
    again.resume(first.position())
    assert [lot[0] for lot in drain(again)] == frame_records(table(20), [7, 10, 15, 20])


@pytest.mark.parametrize("files", [1, 2, 3, 5])
@pytest.mark.parametrize("readers", [1, 2, 3])
def test_readers_share_files_or_row_groups(tmp_path: Path, files: int, readers: int) -> None:
    paths = [tmp_path / f"{index}.parquet" for index in range(files)]
    for index, path in enumerate(paths):
        pq.write_table(table(12, index * 12), path, row_group_size=4)
    whole = sorted(drain(opened(paths)))
    parts = [drain(opened(paths, shard=(index, readers))) for index in range(readers)]
    assert sorted(lot for part in parts for lot in part) == whole
    assert all(parts)
    for index in range(readers):
        source = opened(paths, shard=(index, readers))
        source.read()
        again = opened(paths, shard=(index, readers))
        again.resume(source.position())
        assert drain(again) == parts[index][1:]


def test_readers_share_the_rows_of_one_row_group(tmp_path: Path) -> None:
    path = tmp_path / "pandas.parquet"
    pq.write_table(table(12, 0), path)
    parts = [drain(opened([path], shard=(index, 3))) for index in range(3)]
    assert [[lot[0] for lot in part] for part in parts] == [
        frame_records(table(12), [0, 4]),
        frame_records(table(12), [4, 8]),
        frame_records(table(12), [8, 12]),
    ]


def test_files_may_be_opened_by_the_caller() -> None:
    stored = io.BytesIO()
    pq.write_table(table(3), stored)
    asked: list[str] = []

    def open_file(path: str) -> io.BytesIO:
        asked.append(path)
        return io.BytesIO(stored.getvalue())

    lots = drain(opened(["s3://bucket/a.parquet"], open_file=open_file))
    assert (len(lots), lots[0][1], asked) == (1, "s3://bucket/a.parquet", ["s3://bucket/a.parquet"])


def test_memory_does_not_grow_with_the_row_group(tmp_path: Path) -> None:
    rows = 2_000_000
    frame = pa.table({"n": np.arange(rows), "m": np.arange(rows)})
    pq.write_table(frame, tmp_path / "a.parquet", compression="none", use_dictionary=False, row_group_size=rows)
    del frame
    source = opened([tmp_path / "a.parquet"], batch_rows=16384)
    before = pa.total_allocated_bytes()
    most = 0
    while source.read() is not None:
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 8 << 20  # of 32 MB


# --- errors ---


def test_unknown_columns_and_wrong_types_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(3), path)
    with pytest.raises(SchemaMismatch, match=r"a\.parquet has no column 'usr'; its columns are: user, items, price"):
        opened([path], ["usr"]).read()
    with pytest.raises(SchemaMismatch, match=r"a\.parquet: column 'price' has type float, expected fid_v2"):
        opened([path], {"price": "fid_v2"}).read()


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"]), path)
    with pytest.raises(SchemaMismatch, match=r"has 2 columns 'a'; its columns are: a, a, b"):
        opened([path]).read()


def test_a_later_file_is_checked_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": ["x"]}), tmp_path / "b.parquet")
    source = opened([tmp_path / "a.parquet", tmp_path / "b.parquet"], {"n": "int"})
    assert source.read() is not None
    with pytest.raises(SchemaMismatch, match=r"b\.parquet: column 'n' has type string, expected int"):
        source.read()


def test_a_corrupt_file_raises_and_never_crashes(tmp_path: Path) -> None:
    stored = io.BytesIO()
    pq.write_table(table(200), stored, row_group_size=50, compression="snappy", write_page_checksum=True)
    whole = stored.getvalue()
    want = drain(opened(["x"], open_file=lambda path: io.BytesIO(whole)))
    generator = np.random.default_rng(5)
    for cut in [0, 3, 4, 11, *generator.integers(12, len(whole), 20).tolist()]:
        with pytest.raises(RecordCorrupt, match=r"^x: "):
            drain(opened(["x"], open_file=lambda path, cut=cut: io.BytesIO(whole[:cut])))
    for place in generator.integers(4, len(whole) // 2, 40).tolist():
        broken = bytearray(whole)
        broken[place] ^= 0x5A
        try:
            got = drain(opened(["x"], open_file=lambda path, broken=broken: io.BytesIO(bytes(broken))))
        except (RecordCorrupt, SchemaMismatch):
            continue
        assert [len(lot) for lot in got] == [len(lot) for lot in want]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.parquet cannot be opened"):
        opened([tmp_path / "none.parquet"]).read()


def test_other_files_are_refused_on_resume(tmp_path: Path) -> None:
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(table(9), a)
    pq.write_table(table(9), b)
    source = opened([a, b], batch_rows=4)
    source.read()
    place = source.position()
    with pytest.raises(DataError, match="same files in the same order"):
        opened([b, a]).resume(place)
    with pytest.raises(DataError, match="same files in the same order"):
        opened([a]).resume({**place, "file_index": 4})
    pq.write_table(table(8), a)
    with pytest.raises(DataError, match=r"a\.parquet has 8 rows, expected 9"):
        opened([a, b]).resume(place)
    a.unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        opened([a, b]).resume(place)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"paths": []}, "paths is empty"),
        ({"paths": "a.parquet"}, "expected a list of files"),
        ({"batch_rows": 0}, "batch_rows"),
        ({"shard": (0, 0)}, "shard"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        opened(**{"paths": ["a.parquet"], **arguments})


def test_a_closed_source_is_at_its_end(tmp_path: Path) -> None:
    pq.write_table(table(9), tmp_path / "a.parquet")
    source = opened([tmp_path / "a.parquet"], batch_rows=4)
    source.read()
    source.close()
    source.close()
    assert source.read() is None
    source.committed(source.position())
