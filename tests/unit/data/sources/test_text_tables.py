"""CSV, JSON lines and Arrow files: values, types, missing values, shares of workers, resume at every batch, errors."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest

import monolith as mt
from monolith.core.errors import ConfigError, MonolithError, RecordCorrupt, SchemaMismatch
from monolith.data import Schema
from monolith.data.schema import parse_batch
from monolith.data.sources import csv_files, json_files, text_tables
from monolith.data.sources.csv_files import CsvFormat
from monolith.data.sources.table_files import TableFilesSource
from monolith.data.sources.work_list import MemoryWorkList

SCHEMA = Schema(dense=[mt.data.DenseFeature("n", dtype="int64")], label_features=["click"])
ROWS = 500
FORMATS = ["csv", "csv.gz", "jsonl", "jsonl.zst", "arrow"]


def reader(path: Path | str) -> Any:
    return {"csv": mt.data.csv, "jsonl": mt.data.json_lines, "arrow": mt.data.arrow}[str(path).split(".")[1]]


def write(path: Path, first: int = 0, rows: int = ROWS) -> str:
    table = pa.table(
        {"n": range(first, first + rows), "text": [f'a,"{i}"\nb' for i in range(rows)], "click": [1] * rows}
    )
    if ".csv" in path.name:
        text = io.StringIO()
        csv.writer(text).writerows([table.column_names, *(row.values() for row in table.to_pylist())])
        content = text.getvalue().encode()
    elif ".jsonl" in path.name:
        content = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
    else:
        pyarrow.feather.write_feather(table, path, chunksize=70)
        return str(path)
    with pa.output_stream(str(path)) as stream:
        stream.write(content)
    return str(path)


def numbers(batches: Any) -> list[int]:
    return [int(value) for batch in batches for value in batch.dense["n"].reshape(-1)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tables, "_BLOCK_BYTES", 700)
    monkeypatch.setattr(text_tables, "_SMALLEST_BLOCK", 300)


@pytest.mark.parametrize("suffix", FORMATS)
def test_workers_read_every_row_once(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"rows.{suffix}")
    shares = [numbers(reader(path)(path, schema=SCHEMA, shard=(i, 3), batch_rows=16).batch(10)) for i in range(3)]
    assert sorted(itertools.chain(*shares)) == list(range(ROWS))
    assert min(map(len, shares)) > ROWS // 6, "no worker is idle"
    paths = [write(tmp_path / f"more-{number}.{suffix}", 1000 * number) for number in range(3)]
    assert numbers(reader(path)(paths, schema=SCHEMA, shard=(1, 3)).batch(100)) == list(range(1000, 1000 + ROWS))


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_resumed_reader_continues_at_the_exact_row(tmp_path: Path, suffix: str) -> None:
    path = [write(tmp_path / f"rows-{number}.{suffix}", 1000 * number, 90) for number in range(2)]

    def opened(shard: int) -> mt.data.Dataset:
        return reader(path[0])(path, schema=SCHEMA, shard=(shard, 4), batch_rows=8).batch(7)

    for shard in range(4):
        whole, states = numbers(opened(shard)), []
        first = opened(shard)
        for batch in first:
            states.append((batch.dense["n"].reshape(-1)[-1], first.state()))
        for last, state in states:
            resumed = opened(shard)
            resumed.restore(json.loads(json.dumps(state)))
            assert numbers(resumed) == whole[whole.index(int(last)) + 1 :]


def test_workers_claim_files_of_text_from_a_list(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"rows-{number}.csv", 1000 * number, 20) for number in range(3)]
    data = mt.data.csv(work_list=MemoryWorkList(paths), worker="a", schema=SCHEMA).batch(7)
    assert len(numbers(data)) == 60


def test_types_of_csv_columns_come_from_the_first_file(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("zip,price,day,flag,id\n12,1,2024-01-01,true,x\n")
    schema = mt.data.infer_schema(tmp_path / "0.csv")
    kinds = {each.name: each.dtype for each in schema.dense_features}
    assert kinds == {"zip": "int64", "price": "int64", "day": "bytes", "flag": "int64", "id": "bytes"}
    (tmp_path / "1.csv").write_text("zip,price,day,flag,id\n12,1.5,2024-01-01,true,x\n")
    both = f"{tmp_path}/0.csv,{tmp_path}/1.csv"
    wanted = Schema(dense=["price"], labels=0)
    with pytest.raises(SchemaMismatch, match=r"1\.csv, line 2, column 'price': value is '1\.5', .* column_types"):
        list(mt.data.csv(both, schema=wanted).batch(2))
    [batch] = list(mt.data.csv(both, schema=wanted, column_types={"price": "float"}).batch(2))
    assert batch.dense["price"].reshape(-1).tolist() == [1.0, 1.5]


def test_an_integer_above_63_bits_is_not_rounded(tmp_path: Path) -> None:
    (tmp_path / "big.csv").write_text("n\n18446744073709551615\n")
    with pytest.raises(SchemaMismatch, match="'n', row 0: 18446744073709551615 does not fit"):
        mt.data.infer_schema(tmp_path / "big.csv")


def test_text_types_can_be_declared(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("zip\n0123\n")
    (tmp_path / "a.jsonl").write_text('{"zip": 123, "price": 1}\n')
    assert (
        mt.data.infer_schema(mt.data.csv(tmp_path / "a.csv", column_types={"zip": "text"})).dense_features[0].dtype
        == "bytes"
    )
    typed = mt.data.infer_schema(mt.data.json_lines(tmp_path / "a.jsonl", column_types={"price": "float"}))
    assert {each.name: each.dtype for each in typed.dense_features} == {"zip": "int64", "price": "float32"}
    with pytest.raises(ConfigError, match="column 'zip' has type 'string', expected one of int, float, text"):
        list(mt.data.csv(tmp_path / "a.csv", column_types={"zip": "string"}))  # type: ignore[dict-item]


def test_empty_fields_and_nulls_are_missing(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n,x,t,click\n1,0.5,a,1\n,NA,,0\n3,null,"",\n')
    schema = Schema(dense=[mt.data.DenseFeature("n", dtype="int64", default=-1), "x"], label_features=["click"])
    [batch] = list(mt.data.csv(tmp_path / "a.csv", schema=schema).batch(5))
    assert batch.dense["n"].reshape(-1).tolist() == [1, -1, 3]
    assert batch.dense["x"].reshape(-1).tolist() == [0.5, 0, 0]
    assert batch.label_mask.reshape(-1).tolist() == [True, True, False]


def test_lists_of_json_are_lists_of_values(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"g": ["x", "y"], "at": "2024-01-01T00:00:00"}\n{"g": [], "at": null}\n{}\n')
    schema = Schema(sparse=[mt.data.SparseFeature("g", 1)], labels=0)
    [batch] = list(mt.data.json_lines(tmp_path / "a.jsonl", schema=schema, time_column="at").batch(5))
    assert batch.ids["g"].offsets.tolist() == [0, 2, 2, 2]
    assert batch.event_time_s.tolist() == [1704067200, 0, 0]


def test_files_without_a_header_and_with_other_delimiters(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;0\n2;1\n")
    data = mt.data.csv(tmp_path / "a.csv", header=["n", "click"], delimiter=";", schema=SCHEMA)
    assert numbers(data.batch(5)) == [1, 2]
    (tmp_path / "b.tsv").write_bytes(b"\xef\xbb\xbfn\tclick\r\n7\t1\r\n")
    assert numbers(mt.data.csv(tmp_path / "b.tsv", schema=SCHEMA).batch(5)) == [7]
    (tmp_path / "blank.csv").write_bytes(b"\xef\xbb\xbf\r\n\nn,click\n\n7,1\n")
    assert numbers(mt.data.csv(tmp_path / "blank.csv", schema=SCHEMA).batch(5)) == [7]
    (tmp_path / "mac.csv").write_bytes(b'\r"n","cl""\r"\r7,1\r8,0\r')
    assert numbers(mt.data.csv(tmp_path / "mac.csv", schema=Schema(dense=["n"], labels=0)).batch(5)) == [7, 8]
    (tmp_path / "inch.csv").write_text('size 5",n,"cl""\nö"\n1,7,1\n2,8,0\n')
    assert numbers(mt.data.csv(tmp_path / "inch.csv", schema=Schema(dense=["n"], labels=0)).batch(5)) == [7, 8]
    schema = Schema(dense=[mt.data.DenseFeature("n", column='cl"\nö')], labels=0)
    assert numbers(mt.data.csv(tmp_path / "inch.csv", schema=schema).batch(5)) == [1, 0]
    (tmp_path / "c.csv").write_text("n;click\n1;0\n")
    with pytest.raises(RecordCorrupt, match=r"c\.csv has one column 'n;click'.*give the delimiter: ';'"):
        list(mt.data.csv(tmp_path / "c.csv", schema=SCHEMA).batch(5))


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.csv", b"", "a.csv is empty"),
        ("a.csv", b"\r\n\r\n", "a.csv is empty"),
        ("a.csv", b"n" * 140_000 + b",click\n1,2\n", "a.csv has the header 'nnn.*', expected names of columns"),
        ("a.csv", "n,click\n1,2\n".encode("utf-16"), "a.csv is text in UTF-16, expected UTF-8"),
        ("a.csv", b"n,click\n1,2,3\n", "a.csv"),
        ("a.csv", b"m,click\n1,2\n", "has no column 'n'"),
        ("a.jsonl", b"", "a.jsonl is empty"),
        ("a.jsonl", b'{"n": 1\n', "a.jsonl"),
        ("a.jsonl", b'{"m": 1, "click": 0}\n', "has no column 'n'"),
        ("a.jsonl", b'{"n": {"deep": 1}, "click": 0}\n', "column 'n' has type struct"),
        ("a.arrow", b"not arrow at all", "not an Arrow IPC file"),
        ("a.csv.gz", b"n,click\n1,2\n", "a.csv.gz"),
        ("a.csv.gz", gzip.compress(b"n,click\n" + b"1,2\n" * 5000, mtime=0)[:-30], "a.csv.gz"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: bytes, text: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MonolithError, match=text):
        list(reader(name)(tmp_path / name, schema=SCHEMA).batch(5))


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("left", [0, 3000])
def test_a_file_that_is_cut_during_a_run_is_an_error(tmp_path: Path, suffix: str, left: int) -> None:
    path = write(tmp_path / f"rows.{suffix}")
    batches = iter(reader(path)(path, schema=SCHEMA, batch_rows=8).batch(8))
    next(batches)
    size = os.path.getsize(path)
    os.truncate(path, left)
    with pytest.raises(RecordCorrupt, match=rf"rows\.{suffix} ends at byte .*, expected {size} bytes"):
        list(batches)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_rows_that_follow_during_a_run_are_not_read(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"rows.{suffix}")
    more = Path(write(tmp_path / f"more.{suffix}", first=ROWS)).read_bytes()
    batches = iter(reader(path)(path, schema=SCHEMA, batch_rows=8).batch(8))
    first = next(batches)
    with open(path, "ab") as file:
        file.write(more[:-5])
    assert numbers([first, *batches]) == list(range(ROWS))


@pytest.mark.parametrize(("suffix", "half"), [("csv", b"77,te"), ("jsonl", b'{"n": 77, "cl')])
def test_a_last_row_that_is_still_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, half: bytes
) -> None:
    for module in (csv_files, json_files):
        monkeypatch.setattr(module, "_SAMPLE_BYTES", 1000)  # types come from rows before
    path = write(tmp_path / f"rows.{suffix}")
    with open(path, "ab") as file:
        file.write(half)
    size = os.path.getsize(path)
    batches = iter(reader(path)(path, schema=SCHEMA, batch_rows=8).batch(8))
    next(batches)
    with open(path, "ab") as file:
        file.write(b"xt,1\n")
    with pytest.raises(RecordCorrupt, match=rf"rows\.{suffix} has more than {size} bytes, .* not whole then"):
        list(batches)


class SlowFile(io.FileIO):
    """A file whose reads wait while ``may_read`` is not set."""

    may_read = threading.Event()
    is_waiting = threading.Event()

    def read(self, size: int | None = -1, /) -> bytes | Any:
        self.is_waiting.set()
        assert self.may_read.wait(30)
        return super().read(-1 if size is None else size)


def test_a_source_that_is_closed_while_it_reads_keeps_its_position(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv")
    source = TableFilesSource([path], CsvFormat(lambda: path, open_file=lambda name: SlowFile(name, "rb")))
    SlowFile.may_read.set()
    found: list[Any] = [source.read()]
    SlowFile.is_waiting.clear()
    SlowFile.may_read.clear()

    def read() -> None:
        found.append(source.read())
        found.append(source.position())

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert SlowFile.is_waiting.wait(30)
    closer = threading.Thread(target=source.close, daemon=True)
    closer.start()
    while not source._is_closed:
        time.sleep(0.001)
    SlowFile.may_read.set()
    closer.join(30)
    reader.join(30)
    assert len(found) == 3
    assert found[1] is not None
    assert source.position() == found[2]
    assert source.read() is None
    resumed = TableFilesSource([path], CsvFormat(lambda: path))
    resumed.resume(found[2])
    rest = 0
    while (records := resumed.read()) is not None:
        rest += int(parse_batch([records[0]], record="example_batch", schema=Schema(labels=0)).size)
    first = sum(parse_batch([each[0]], record="example_batch", schema=Schema(labels=0)).size for each in found[:2])
    assert first + rest == ROWS


def test_a_changed_file_is_refused_on_resume(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv")
    data = mt.data.csv(path, schema=SCHEMA, batch_rows=8).batch(8)
    batches = iter(data)
    next(batches)
    next(batches)
    state = data.state()
    write(tmp_path / "rows.csv", rows=ROWS + 1)
    changed = mt.data.csv(path, schema=SCHEMA).batch(5)
    changed.restore(state)
    with pytest.raises(MonolithError, match=r"rows.csv has \d+ bytes, expected"):
        list(changed)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_schema_is_inferred_from_each_format(tmp_path: Path, suffix: str) -> None:
    schema = mt.data.infer_schema(write(tmp_path / f"rows.{suffix}"))
    assert {each.name: each.dtype for each in schema.dense_features} == {
        "n": "int64",
        "text": "bytes",
        "click": "int64",
    }
