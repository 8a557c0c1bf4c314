"""The native parsers of CSV and JSON lines against pyarrow's: the same values, types and batches, and named errors."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pytest

import monolith as mt
from monolith import _native
from monolith.core.errors import MonolithError, RecordCorrupt, SchemaMismatch
from monolith.data import DenseFeature, Schema, SparseFeature
from monolith.data.sources import text_tables
from monolith.data.sources.csv_files import NULLS
from monolith.data.sources.parsed_text import arrow_types, text_fields

ARROW = {"int64": pa.int64(), "uint64": pa.uint64(), "double": pa.float64(), "text": pa.string(), "bool": pa.bool_()}


def python_values(parsed: _native.ParsedText, place: int) -> list[Any]:
    """Return the values of a parsed column as Python objects."""
    kind, count, values, ends, valid, lists, list_valid = parsed.column(place)
    buffers = [valid, ends, b"" if values is None else values] if kind == "text" else [valid, values]
    if count == 0:
        items: list[Any] = []
    else:
        type_ = pa.large_string() if kind == "text" else ARROW[kind]
        arrays = [None if each is None else pa.py_buffer(each) for each in buffers]
        items = pa.Array.from_buffers(type_, count, arrays).to_pylist()
    if lists is None:
        return items if count else [None] * parsed.rows
    spans = np.frombuffer(lists, np.int64)
    bits = np.unpackbits(np.frombuffer(list_valid, np.uint8), bitorder="little") if list_valid is not None else None
    return [items[spans[row] : spans[row + 1]] if bits is None or bits[row] else None for row in range(len(spans) - 1)]


def same(left: list[Any], right: list[Any]) -> bool:
    def mark(value: Any) -> Any:
        if isinstance(value, list):
            return [mark(each) for each in value]
        return "NaN" if isinstance(value, float) and math.isnan(value) else (type(value), value)

    return [mark(value) for value in left] == [mark(value) for value in right]


# --- CSV ---


def pyarrow_csv(block: bytes, types: dict[str, Any], names: list[str]) -> pa.Table | None:
    """Return pyarrow's table of a block, or None where it refuses the block."""
    reader = pyarrow.csv
    try:
        return reader.read_csv(
            pa.BufferReader(block),
            read_options=reader.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
            parse_options=reader.ParseOptions(newlines_in_values=True),
            convert_options=reader.ConvertOptions(
                column_types=types,
                null_values=list(NULLS),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                check_utf8=False,
            ),
        )
    except pa.ArrowException:
        return None


FIELDS = [
    "0",
    "7",
    "-7",
    "+7",
    "007",
    "-0",
    "12345678",
    "123456789",
    "1234567890123456",
    "99999999999999999",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "0x1F",
    "-0x1F",
    "0x",
    "0xFFFFFFFFFFFFFFFF",
    "0x1FFFFFFFFFFFFFFFF",
    "1_0",
    "1.0",
    "-",
    "1e5",
    "1.",
    ".5",
    "-.5",
    "+1.5",
    "1E+5",
    "inf",
    "-inf",
    "Infinity",
    "NAN",
    "-nan",
    "1e400",
    "1e-400",
    "1e",
    ".",
    "1d5",
    "00.5",
    "0.1",
    "3.14159",
    "1e22",
    "1e23",
    "9007199254740993",
    "0.30000000000000004",
    "123456789012345678901234567890",
    "5e-324",
    "2.2250738585072011e-308",
    "true",
    "True",
    "TRUE",
    "tRue",
    "false",
    "FALSE",
    "1",
    "2024-01-01",
    "12:30",
    "x",
    *NULLS,
    " 12 ",
    "\t1.5",
    " NA",
    "a b",
    "  ",
    "é",
    "100000000",
    "a\x00b",
]
QUOTED = [
    '""',
    '"12"',
    '"1.5"',
    '"true"',
    '"NA"',
    '"a,b"',
    '"a""b"',
    '"a"b',
    '1"2"',
    '12"',
    'a"b',
    '" "',
    '"a"b"c"',
    '"a"""',
    '""""',
    '"a\nb"',
    '"a\r\nb"',
    '"x" ',
]


@pytest.mark.parametrize("kind", list(ARROW))
def test_every_csv_field_has_the_value_that_pyarrow_reads(kind: str) -> None:
    for field in [*FIELDS, *QUOTED]:
        # Behind the field there is text, and there is not: numbers are read in other ways at the end of a block.
        for tail in (",some longer text behind it\n", ",x"):
            block = (field + tail).encode()
            expected = pyarrow_csv(block, {"a": ARROW[kind], "b": pa.string()}, ["a", "b"])
            parsed = _native.parse_csv(block, ",", 2, [("a", kind, False, 0), ("b", "text", False, 1)])
            assert (parsed.problem is None) == (expected is not None), (field, parsed.problem)
            if expected is not None:
                assert same(python_values(parsed, 0), expected["a"].to_pylist()), field


def test_rows_are_split_as_pyarrow_splits_them() -> None:
    blocks = [
        *("1,2\r3,4\r", "1,2\r\n3,4\r\n", "1,2\n\n3,4\n", "1,2\n\r\n3,4", "1\n", "1,2,3\n", "1,2\n,\n", "1,2\n \n"),
        *("1,2\r\r\n3,4\n", "1,2\n3,4\r", "\n", "1,2\x00\n", '"1\n2",3\n4,"5\r"\r\n', '1,2\n"3,4\n', "1,2"),
    ]
    for block in blocks:
        types = {"a": pa.string(), "b": pa.string()}
        expected = pyarrow_csv(block.encode(), types, ["a", "b"])
        parsed = _native.parse_csv(block.encode(), ",", 2, [("a", "text", False, 0), ("b", "text", False, 1)])
        assert (parsed.problem is None) == (expected is not None), (block, parsed.problem)
        if expected is not None:
            assert parsed.rows == expected.num_rows
            assert python_values(parsed, 1) == expected["b"].to_pylist(), block
    # An open quote at the end is corrupt here; pyarrow takes the rest of the file for a value.
    assert _native.parse_csv(b'1,"2\n', ",", 2, []).problem is not None


def test_types_of_random_columns_are_those_of_pyarrow() -> None:
    randomness = random.Random(3)
    groups = [["1", "22", "-3"], ["0", "1", "true"], ["1.5", "2", "inf"], ["x", "1"], ["2024-01-01"], ["", "NA"]]
    groups += [['"1"', "2"], ['""', "1"], ["18446744073709551615", "1"], ["18446744073709551615", "-1"], ["0x1F", "1"]]
    for group in groups:
        for _ in range(20):
            values = randomness.choices([*group, "", "NA"], k=randomness.randint(1, 5))
            block = "".join(f"{value},x\n" for value in values).encode()
            [(_, kind, _), _], problem = _native.infer_csv(block, ",", 2)
            table = pyarrow_csv(block, {}, ["a", "b"])
            assert table is not None
            assert problem is None
            expected = table.schema.field("a").type
            if expected not in (pa.int64(), pa.float64(), pa.bool_(), pa.null()):
                expected = pa.string()
            if kind == "uint64":  # pyarrow rounds it
                assert expected == pa.float64()
                continue
            assert arrow_types([("a", kind, False)])["a"] == expected, values


# --- JSON lines ---


def pyarrow_json(block: bytes, types: list[tuple[str, Any]] | None) -> pa.Table | None:
    reader = pyarrow.json
    options = {} if types is None else {"explicit_schema": pa.schema(types), "unexpected_field_behavior": "ignore"}
    try:
        return reader.read_json(
            pa.BufferReader(block),
            read_options=reader.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=reader.ParseOptions(**options),
        )
    except pa.ArrowException:
        return None


VALUES = [
    "0",
    "1",
    "-1",
    "-0",
    "1.0",
    "1e3",
    "1E-2",
    "0.1",
    "9007199254740993",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "18446744073709551615",
    "01",
    "+1",
    ".5",
    "1.",
    "-",
    "1e400",
    "0x1",
    "true",
    "false",
    "null",
    "NaN",
    "Infinity",
    "-Infinity",
    "[]",
    "[1,2]",
    "[1.5,2]",
    "[true,false]",
    "[null,1]",
    "{}",
    "tru",
    "nul",
    '""',
    '"1"',
    '"a\\"b\\\\\\n\\u00e9\\ud83d\\ude00"',
    '["a", null, "b"]',
    '"x y"',
    '"\\q"',
    '"é"',
    "[1, ]",
    "[1",
]
LISTS = {f"list {kind}": pa.list_(type_) for kind, type_ in ARROW.items()}


@pytest.mark.parametrize("kind", [*ARROW, *LISTS])
def test_every_json_value_is_the_value_that_pyarrow_reads(kind: str) -> None:
    type_ = {**ARROW, **LISTS}[kind]
    for value in VALUES:
        block = f'{{"b": 1, "a": {value}}}\n{{"a": null, "c": [{{"d": "]"}}, 2]}}\n'.encode()
        expected = pyarrow_json(block, [("a", type_)])
        parsed = _native.parse_json_lines(block, text_fields({"a": type_}))
        assert (parsed.problem is None) == (expected is not None), (value, parsed.problem)
        if expected is not None:
            assert same(python_values(parsed, 0), expected["a"].to_pylist()), value


def test_types_of_json_fields_are_those_of_pyarrow() -> None:
    for first in VALUES:
        for second in ("1", "2.5", '"x"', "true", "null", "[1]", '["x"]'):
            block = f'{{"a": {first}}}\n{{"a": {second}}}\n'.encode()
            table = pyarrow_json(block, None)
            fields, problem = _native.infer_json_lines(block)
            if first == "1e400":
                continue  # the type is a number; the value is refused when it is read
            assert (problem is None) == (table is not None), (first, second, problem)
            if table is None or fields[0][1] in ("uint64", "nested"):  # pyarrow rounds integers above 63 bits
                continue
            assert arrow_types(fields)["a"] == table.schema.field("a").type, (first, second)


@pytest.mark.parametrize("line", ["null", "[1]", "1", '{"a":1}{"a":2}', '{"a":1}x', '{"a":\n1}', '{"a":1,"a":2}', "{"])
def test_a_line_that_is_not_one_object_is_refused(line: str) -> None:
    assert _native.parse_json_lines(line.encode() + b"\n", [("a", "int64", False, 0)]).problem is not None


# --- batches ---


def corpus(rows: int, seed: int) -> pa.Table:
    """Return columns with every type, missing values and characters that need quotes or escapes."""
    randomness = random.Random(seed)

    def missing(value: Any) -> Any:
        return None if randomness.random() < 0.1 else value

    words = ["plain", "a,b", 'say "hi"', "line\nend", "tab\t", "é😀", " space ", "\\", "x" * 300]
    return pa.table(
        {
            "id": pa.array([missing(randomness.getrandbits(63)) for _ in range(rows)], pa.int64()),
            "small": pa.array([randomness.randrange(-50, 50) for _ in range(rows)], pa.int64()),
            "word": pa.array([missing(randomness.choice(words)) for _ in range(rows)], pa.string()),
            "real": pa.array([missing(randomness.uniform(-1e6, 1e6)) for _ in range(rows)], pa.float64()),
            "flag": pa.array([randomness.random() < 0.5 for _ in range(rows)], pa.bool_()),
            "click": pa.array([missing(randomness.randrange(2)) for _ in range(rows)], pa.int64()),
            "at": pa.array([1_700_000_000 + row for row in range(rows)], pa.int64()),
        }
    )


def assert_equal(left: Any, right: Any) -> None:
    for name in left.ids:
        assert left.ids[name].tolist() == right.ids[name].tolist(), name
    for name in left.dense:
        np.testing.assert_array_equal(left.dense[name], right.dense[name])
    np.testing.assert_array_equal(left.label, right.label)
    np.testing.assert_array_equal(left.label_mask, right.label_mask)
    np.testing.assert_array_equal(left.event_time_s, right.event_time_s)


SPARSE = [SparseFeature(name, slot + 1) for slot, name in enumerate(["id", "small", "word"])]
SCHEMA = Schema(sparse=SPARSE, dense=["real", DenseFeature("flag", dtype="int64")], label_features=["click"])


@pytest.mark.parametrize("block_bytes", [300, 4096, 1 << 20])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_batches_of_text_equal_those_of_the_arrow_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, block_bytes: int
) -> None:
    monkeypatch.setattr(text_tables, "_BLOCK_BYTES", block_bytes)
    table, path = corpus(700, 5), tmp_path / f"rows.{suffix}"
    rows = table.to_pylist()
    if suffix == "csv":
        text = io.StringIO()
        csv.writer(text).writerows([table.column_names, *(row.values() for row in rows)])
        path.write_text("\ufeff" + text.getvalue(), newline="")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = mt.data.csv if suffix == "csv" else mt.data.json_lines
    ours = list(read(path, schema=SCHEMA, time_column="at", batch_rows=64).batch(50))
    expected = list(mt.data.frame(table, schema=SCHEMA, time_column="at").batch(50))
    assert len(ours) == len(expected)
    for one, other in zip(ours, expected, strict=True):
        assert_equal(one, other)


def test_json_lists_of_ids_equal_those_of_the_arrow_table(tmp_path: Path) -> None:
    lists = [[1, 2**62 + 1], [], None, [-5], [7] * 300]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in lists))
    schema = Schema(sparse=[SparseFeature("ids", 1)], labels=0)
    [ours] = mt.data.json_lines(tmp_path / "a.jsonl", schema=schema).batch(9)
    [expected] = mt.data.frame(pa.table({"ids": pa.array(lists, pa.list_(pa.int64()))}), schema=schema).batch(9)
    assert ours.ids["ids"].tolist() == expected.ids["ids"].tolist() == [ids or [] for ids in lists]


# --- errors ---


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        (
            "a.csv",
            'n,w\n1,"a\nb"\nx,c\n',
            SchemaMismatch,
            r"a.csv, line 4, column 'n': value is 'x', expected an integer",
        ),
        ("a.csv", "n,w\n1,a\n2\n", RecordCorrupt, r"a.csv, line 3, row has 1 fields, expected 2.*'2'"),
        ("a.csv", 'n,w\n1,"a\n2,b\n', RecordCorrupt, r"a.csv, line 2, quote is not closed"),
        (
            "a.jsonl",
            '{"n":1}\n\n{"n":"x"}\n',
            SchemaMismatch,
            r"a.jsonl, line 3, column 'n': value is '\"x\"', expected",
        ),
        ("a.jsonl", '{"n":1}\nnull\n', RecordCorrupt, r"a.jsonl, line 2, line is not a JSON object.*'null'"),
        ("a.jsonl", '{"n":1}\n{"n":2', RecordCorrupt, r"a.jsonl, line 2, object is not closed"),
    ],
)
def test_an_error_names_file_line_column_and_value(
    tmp_path: Path, name: str, text: str, error: type[MonolithError], message: str
) -> None:
    (tmp_path / name).write_text(text)
    read = mt.data.csv if name.endswith("csv") else mt.data.json_lines
    schema = Schema(dense=["n"], labels=0)
    with pytest.raises(error, match=message):
        list(read(tmp_path / name, schema=schema, column_types={"n": "int"}).batch(5))


def test_a_row_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_tables, "_BLOCK_BYTES", 64)
    monkeypatch.setattr(text_tables, "_MOST_ROW_BYTES", 1024)
    (tmp_path / "a.csv").write_text('n,w\n1,"' + "x" * 5000 + "\n")
    data = mt.data.csv(tmp_path / "a.csv", header=["n", "w"], schema=Schema(dense=["n"], labels=0))
    with pytest.raises(RecordCorrupt, match=r"a\.csv"):
        list(data.batch(5))
