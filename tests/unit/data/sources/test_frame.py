"""Data frames as records. The protobuf library parses the encoded records, with descriptors made here."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given

from monolith import _native
from monolith.core.errors import ConfigError, DataError, SchemaMismatch
from monolith.data.records.line_id import LineIdFields
from monolith.data.sources.arrow_columns import load_pyarrow
from monolith.data.sources.frame import FrameSource

ARMS = ("fid_v1_list", "fid_v2_list", "float_list", "double_list", "int64_list", "bytes_list")
TYPES = {"fixed64": 6, "float": 2, "double": 1, "int64": 3, "bytes": 12, "string": 9, "int32": 5}


def message_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="columns_test.proto", package="columns_test", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, str, bool]) -> None:
        made = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = 3 if repeated else 1
            if kind in TYPES:
                made.field.add(name=field, number=number, type=TYPES[kind], label=label)
            else:
                made.field.add(name=field, number=number, type=11, type_name=f".columns_test.{kind}", label=label)

    lists = {"FidList": "fixed64", "FloatList": "float", "DoubleList": "double", "Int64List": "int64"}
    for name, kind in {**lists, "BytesList": "bytes"}.items():
        message(name, ("value", 1, kind, True))
    kinds = ("FidList", "FidList", "FloatList", "DoubleList", "Int64List", "BytesList")
    message("Feature", *[(arm, index + 1, kinds[index], False) for index, arm in enumerate(ARMS)])
    message("Column", ("name", 1, "string", False), ("feature", 2, "Feature", True), ("type", 3, "int32", False))
    message("Batch", ("column", 1, "Column", True), ("batch_size", 3, "int32", False))
    spelled = {"int": "int64", "fixed64": "fixed64", "float": "float", "text": "string"}
    message(
        "LineId",
        *[(name, number, spelled[kind], many) for name, number, kind, many, _ in LineIdFields.standard().native()],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"columns_test.{name}"))
        for name in ("Batch", "LineId")
    }


CLASSES = message_classes()


def parsed(record: bytes) -> dict[str, list[tuple[str, list[Any]]]]:
    """Each column's rows as (arm, values); the arm is empty where the feature is."""
    batch = CLASSES["Batch"].FromString(record)
    columns = {}
    for column in batch.column:
        assert len(column.feature) == batch.batch_size
        rows = []
        for feature in column.feature:
            filled = feature.ListFields()
            rows.append((filled[0][0].name, list(filled[0][1].value)) if filled else ("", []))
        columns[column.name] = rows
    return columns


def read_all(source: FrameSource) -> dict[str, list[tuple[str, list[Any]]]]:
    columns: dict[str, list[tuple[str, list[Any]]]] = {}
    while (lot := source.read()) is not None:
        assert len(lot) == 1
        for name, rows in parsed(lot[0]).items():
            columns.setdefault(name, []).extend(rows)
    return columns


def values_of(column: list[tuple[str, list[Any]]]) -> list[list[Any]]:
    return [values for _, values in column]


def line_ids(column: list[tuple[str, list[Any]]]) -> list[Any]:
    return [CLASSES["LineId"].FromString(values[0]) if values else None for _, values in column]


# --- types of columns ---


@pytest.mark.parametrize(
    ("column", "kind", "arm", "values"),
    [
        (pa.array([1, -2], pa.int64()), "fid_v1", "fid_v1_list", [[1], [2**64 - 2]]),
        (pa.array([1, 2**64 - 1], pa.uint64()), "fid_v2", "fid_v2_list", [[1], [2**64 - 1]]),
        (pa.array([1.5, -0.0], pa.float64()), "float", "float_list", [[1.5], [-0.0]]),
        (pa.array([1.5, 2.5], pa.float16()), "float", "float_list", [[1.5], [2.5]]),
        (pa.array([0.1, 2.0], pa.float64()), "double", "double_list", [[0.1], [2.0]]),
        (pa.array([1.5, 2.0], pa.float32()), "double", "double_list", [[1.5], [2.0]]),
        (pa.array([True, False]), "int", "int64_list", [[1], [0]]),
        (pa.array(["a", ""]), "bytes", "bytes_list", [[b"a"], [b""]]),
        (pa.array([b"ab", b"cd"], pa.binary(2)), "bytes", "bytes_list", [[b"ab"], [b"cd"]]),
        (pa.array(["a", "b"], pa.large_string()), "bytes", "bytes_list", [[b"a"], [b"b"]]),
        (pa.array(["a", "b" * 30], pa.string_view()), "bytes", "bytes_list", [[b"a"], [b"b" * 30]]),
        (pa.array(["x", "y"]).dictionary_encode(), "bytes", "bytes_list", [[b"x"], [b"y"]]),
        (pa.array([[1, 2], []]), "fid_v2", "fid_v2_list", [[1, 2], []]),
        (pa.array([[1, 2], [3]], pa.large_list(pa.int32())), "int", "int64_list", [[1, 2], [3]]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), "float", "float_list", [[1, 2], [3, 4]]),
        (pa.array([["a"], ["b", "c"]], pa.list_(pa.string_view())), "bytes", "bytes_list", [[b"a"], [b"b", b"c"]]),
        (pa.array([[1], [2, 3]], pa.list_view(pa.int64())), "int", "int64_list", [[1], [2, 3]]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_a_column_becomes_the_declared_type(column: pa.Array, kind: Any, arm: str, values: list[Any]) -> None:
    rows = read_all(FrameSource(pa.table({"c": column}), {"c": kind}))["c"]
    assert values_of(rows) == values
    assert {name for name, each in rows if each} == {arm}


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["int", "uint"])
def test_integers_of_every_width_keep_their_ends(sign: str, bits: int) -> None:
    low, high = (0, 2**bits - 1) if sign == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    high = min(high, 2**63 - 1)
    table = pa.table({"n": pa.array([low, high], getattr(pa, f"{sign}{bits}")())})
    assert values_of(read_all(FrameSource(table))["n"]) == [[low], [high]]


def test_types_are_inferred_when_none_are_given() -> None:
    table = pa.table({"i": pa.array([1], pa.int8()), "f": [0.5], "s": ["x"], "l": [[1.5, 2.5]], "b": [True]})
    rows = read_all(FrameSource(table))
    assert {name: each[0] for name, each in rows.items()} == {
        "i": ("int64_list", [1]),
        "f": ("double_list", [0.5]),
        "s": ("bytes_list", [b"x"]),
        "l": ("double_list", [1.5, 2.5]),
        "b": ("int64_list", [1]),
    }


def test_a_null_is_a_missing_value_in_a_row_and_in_a_list() -> None:
    table = pa.table(
        {
            "n": pa.array([1, None, 3]),
            "l": pa.array([[1, None], None, [None]]),
            "s": pa.array([None, "x", None]),
            "f": pa.array([[1.0, None], None, [2.0, 3.0]], pa.list_(pa.float32(), 2)),
            "nothing": pa.nulls(3),
        }
    )
    for frame in (table, table.slice(1), table.slice(2, 1)):
        rows = read_all(FrameSource(frame))
        want = slice(3 - len(frame), None)
        assert values_of(rows["n"]) == [[1], [], [3]][want]
        assert values_of(rows["l"]) == [[1], [], []][want]
        assert values_of(rows["s"]) == [[], [b"x"], []][want]
        assert values_of(rows["f"]) == [[1.0], [], [2.0, 3.0]][want]
        assert values_of(rows["nothing"]) == [[], [], []][want]


def test_names_with_a_meaning() -> None:
    frame = {"__LABEL__": np.array([[0, 1], [1, 0]]), "instance_weight": [2, None], "__LINE_ID__": [b"\x18\x05", None]}
    rows = read_all(FrameSource(frame))
    assert rows["__LABEL__"] == [("float_list", [0.0, 1.0]), ("float_list", [1.0, 0.0])]
    assert rows["instance_weight"] == [("float_list", [2.0]), ("", [])]
    assert [line and line.req_time for line in line_ids(rows["__LINE_ID__"])] == [5, None]


def test_a_line_id_is_assembled_from_its_columns() -> None:
    table = pa.table(
        {
            "x": [1, 2, 3],
            "__UID__": pa.array([7, None, 2**64 - 1], pa.uint64()),
            "__REQ_TIME__": [1_700_000_000, None, -1],
            "__SAMPLE_RATE__": [0.5, None, 1.0],
            "__ACTIONS__": pa.array([[1, -2], None, []], pa.list_(pa.int32())),
            "__SPECIAL_STRATEGIES__": pa.array([[300], None, [1]]),
            "__USER_ID__": ["me", None, ""],
            "__IS_DRAW__": [True, None, False],
            "__RANK__": pa.array([3, None, 4], pa.int16()),
        }
    )
    rows = read_all(FrameSource(table))
    assert sorted(rows) == ["__LINE_ID__", "x"]
    first, second, third = line_ids(rows["__LINE_ID__"])
    assert (first.uid, first.req_time, first.sample_rate, first.user_id) == (7, 1_700_000_000, 0.5, "me")
    assert (list(first.actions), list(first.special_strategies)) == ([1, -2], [300])
    assert (first.is_draw, first.rank) == (1, 3)
    assert second is None
    assert (third.uid, third.req_time, list(third.actions)) == (2**64 - 1, -1, [])


def test_a_line_id_can_have_fields_of_the_user() -> None:
    fields = [*LineIdFields.standard().native(), ("did", 11, "text", False, 0.0), ("vids", 163, "fixed32", True, 0.0)]
    frame = {"__DID__": ["d"], "__VIDS__": [[1, -1, 2**32 - 1]], "__UID__": [1]}
    [(arm, [line])] = read_all(FrameSource(frame, line_fields=fields))["__LINE_ID__"]
    assert arm == "bytes_list"
    assert line == b"\x5a\x01d" + b"\x9a\x0a\x0c" + struct.pack("<Iii", 1, -1, -1) + b"\x11" + struct.pack("<Q", 1)


def test_the_bytes_are_those_of_the_format() -> None:
    frame = {"a": np.array([(1 << 48) | 100]), "__LABEL__": np.array([1.0], np.float32)}
    lot = FrameSource(frame, {"a": "fid_v2", "__LABEL__": "float"}).read()
    assert lot is not None
    want = "0a110a0161120c120a0a086400000000000100 0a150a095f5f4c4142454c5f5f12081a060a040000803f 1801"
    assert lot[0] == bytes.fromhex(want)


cells = st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=4))


@given(
    st.lists(st.tuples(cells, st.one_of(st.none(), st.binary(max_size=200))), min_size=1, max_size=30),
    st.integers(0, 5),
    st.integers(1, 7),
)
def test_any_table_is_read_back_as_it_was(rows: list[tuple[Any, Any]], skip: int, batch_rows: int) -> None:
    lists = pa.array([row[0] for row in rows], pa.list_(pa.int64()))
    texts = pa.array([row[1] for row in rows], pa.binary())
    table = pa.table({"l": pa.chunked_array([lists, lists]), "t": pa.chunked_array([texts, texts])}).slice(skip)
    got = read_all(FrameSource(table, batch_rows=batch_rows))
    want = (rows + rows)[skip:]
    assert values_of(got.get("l", [])) == [[x for x in row[0] or [] if x is not None] for row in want]
    assert values_of(got.get("t", [])) == [[] if row[1] is None else [row[1]] for row in want]


# --- kinds of frames ---


class OnlyToArrow:
    def to_arrow(self) -> pa.Table:
        return pa.table({"n": [1, 2]})


@pytest.mark.parametrize(
    "frame",
    [
        pa.table({"n": [1, 2]}),
        pa.record_batch({"n": [1, 2]}),
        pl.DataFrame({"n": [1, 2]}),
        pd.DataFrame({"n": [1, 2]}, index=[7, 8]),
        {"n": np.array([1, 2])},
        {"n": [1, 2]},
        OnlyToArrow(),
    ],
    ids=lambda frame: f"{type(frame).__module__}.{type(frame).__name__}",
)
def test_every_kind_of_frame_gives_the_same_record(frame: object) -> None:
    assert read_all(FrameSource(frame)) == {"n": [("int64_list", [1]), ("int64_list", [2])]}


def test_polars_categories_arrays_and_lists() -> None:
    frame = pl.DataFrame(
        {
            "c": pl.Series(["x", None, "x"], dtype=pl.Categorical),
            "a": pl.Series([[1.0, 2.0], None, [3.0, 4.0]], dtype=pl.Array(pl.Float32, 2)),
            "l": [["a", "b"], [], None],
        }
    )
    rows = read_all(FrameSource(frame))
    assert values_of(rows["c"]) == [[b"x"], [], [b"x"]]
    assert values_of(rows["a"]) == [[1, 2], [], [3, 4]]
    assert values_of(rows["l"]) == [[b"a", b"b"], [], []]


def test_rows_of_a_list_view_may_lie_in_any_order() -> None:
    offsets, sizes = pa.array([2, 0, 1], pa.int32()), pa.array([1, 2, 0], pa.int32())
    column = pa.ListViewArray.from_arrays(offsets, sizes, pa.array([5, 6, 7]))
    for skip in range(3):
        rows = read_all(FrameSource(pa.table({"v": column}).slice(skip)))
        assert values_of(rows["v"]) == [[7], [5, 6], []][skip:]


def test_nan_of_pandas_is_missing() -> None:
    frame = pd.DataFrame({"n": [1.5, float("nan")], "o": [[1, 2], None], "c": pd.Categorical(["x", None])})
    rows = read_all(FrameSource(frame))
    assert (values_of(rows["n"]), values_of(rows["o"]), values_of(rows["c"])) == (
        [[1.5], []],
        [[1, 2], []],
        [[b"x"], []],
    )


def test_a_dict_may_hold_arrays_of_two_axes() -> None:
    frame = {"m": np.arange(6, dtype=np.float32).reshape(3, 2)[::2], "none": np.zeros((2, 0))}
    rows = read_all(FrameSource(frame))
    assert values_of(rows["m"]) == [[0, 1], [4, 5]]
    assert values_of(rows["none"]) == [[], []]


# --- position ---


@pytest.mark.parametrize("batch_rows", [1, 3, 7, 100])
def test_it_resumes_at_every_row(batch_rows: int) -> None:
    table = pa.table({"n": pa.chunked_array([[0, 1], [2], list(range(3, 20))]), "s": [str(n) for n in range(20)]})
    source = FrameSource(table, batch_rows=batch_rows)
    lots, places = [], [source.position()]
    while (lot := source.read()) is not None:
        lots.append((lot[0], lot.offsets.tolist()))
        places.append(json.loads(json.dumps(source.position())))
    for index, place in enumerate(places):
        again = FrameSource(table, batch_rows=batch_rows)
        again.resume(place)
        rest = []
        while (lot := again.read()) is not None:
            rest.append((lot[0], lot.offsets.tolist()))
        assert rest == lots[index:]


def test_readers_share_the_rows() -> None:
    table = pa.table({"n": list(range(10))})
    rows = [values_of(read_all(FrameSource(table, shard=(i, 3), batch_rows=2))["n"]) for i in range(3)]
    assert [row for each in rows for row in each] == [[n] for n in range(10)]
    other = FrameSource(table, shard=(0, 3))
    with pytest.raises(DataError, match=r"row 9, expected 0 to 3"):
        other.resume({"row": 9, "rows": 10})


def test_another_frame_is_refused_on_resume() -> None:
    with pytest.raises(DataError, match="has 2 rows, expected 3"):
        FrameSource({"n": [1, 2]}).resume({"row": 1, "rows": 3})


def test_a_closed_source_is_at_its_end() -> None:
    source = FrameSource({"n": [1, 2]})
    source.close()
    source.close()
    assert source.read() is None
    assert source.record == "example_batch"


# --- errors ---


@pytest.mark.parametrize(
    ("column", "kind", "text"),
    [
        (pa.array([1.5]), "int", "column 'c' has type double, expected int"),
        (pa.array([1.5]), "fid_v2", "column 'c' has type double, expected fid_v2"),
        (pa.array([1], pa.int32()), "fid_v1", "column 'c' has type int32, expected fid_v1"),
        (pa.array([1]), "float", "column 'c' has type int64, expected float"),
        (pa.array(["1"]), "int", "column 'c' has type string, expected int"),
        (pa.array([1]), "bytes", "column 'c' has type int64, expected bytes"),
        (pa.array([["1"]]), "float", "column 'c' has type list<item: string>, expected float"),
    ],
)
def test_a_wrong_type_names_the_column_and_both_types(column: pa.Array, kind: Any, text: str) -> None:
    with pytest.raises(SchemaMismatch, match=text):
        FrameSource(pa.table({"c": column}), {"c": kind}).read()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0], pa.timestamp("us")),
        pa.array([{"a": 1}]),
        pa.array([[[1]]]),
        pa.array([1], pa.decimal128(5)),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    ],
    ids=lambda column: str(column.type),
)
def test_types_that_no_feature_can_have_are_refused(column: pa.Array) -> None:
    with pytest.raises(SchemaMismatch, match=r"column 'c' has type .*, which no feature can have"):
        FrameSource(pa.table({"c": column})).read()
    assert FrameSource(pa.table({"c": column, "n": [1]}), ["n"]).read() is not None


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        ({"__UID__": ["x"]}, "has type string, expected the LineId field"),
        ({"__UID__": [[1]]}, "expected one value per row"),
        ({"__REQ_TIME__": [1.5]}, "expected the LineId field 'req_time'"),
        ({"__DEVICE_TYPE__": [1]}, "expected the LineId field 'device_type'"),
        ({"__REQTIME__": [1]}, "'__REQTIME__' is not a field of LineId; known: __UID__, __REQ_TIME__"),
        ({"__LABEL__": ["yes"]}, "column '__LABEL__' has type string, expected float"),
        ({"__LINE_ID__": [1]}, "__LINE_ID__. has type int64, expected bytes"),
        ({"__LINE_ID__": [[b""]]}, "expected one value per row"),
        ({"__LINE_ID__": [b""], "__UID__": [1]}, "both give the LineId"),
    ],
)
def test_names_with_a_meaning_are_checked(frame: dict[str, Any], text: str) -> None:
    with pytest.raises(SchemaMismatch, match=text):
        FrameSource(frame).read()


def test_a_name_in_capitals_can_be_asked_for_as_a_feature() -> None:
    assert read_all(FrameSource({"__FEED_ID__": [5]}, {"__FEED_ID__": "int"})) == {"__FEED_ID__": [("int64_list", [5])]}


def test_a_number_too_large_names_row_and_remedy() -> None:
    source = FrameSource({"n": np.array([0, 2**63], np.uint64)})
    with pytest.raises(SchemaMismatch, match=r"frame: column 'n', row 1: 9223372036854775808 .* fid_v2"):
        source.read()


def test_a_missing_or_doubled_column_names_those_there_are() -> None:
    with pytest.raises(SchemaMismatch, match="frame has no column 'c'; its columns are: a, b"):
        FrameSource({"a": [1], "b": [1]}, ["c"]).read()
    doubled = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    with pytest.raises(SchemaMismatch, match="frame has 2 columns 'a'"):
        FrameSource(doubled).read()
    assert read_all(FrameSource(doubled, ["b"])) == {"b": [("int64_list", [3])]}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"frame": 5}, "frame is a int"),
        ({"frame": {"a": [1], "b": [1, 2]}}, "a: 1, b: 2"),
        ({"frame": {"a": [1, "x"]}}, "cannot be read as a table"),
        ({"frame": {"a": np.zeros((1, 1, 1))}}, "one or two axes"),
        ({"columns": {"a": "integer"}}, "has type .integer., expected one of fid_v1"),
        ({"columns": {"__LABEL__": "int"}}, "__LABEL__. has type .int., expected float"),
        ({"columns": ["a", "a"]}, ".a. twice"),
        ({"columns": []}, "columns is empty"),
        ({"columns": "a"}, "columns is .a."),
        ({"batch_rows": 0}, "batch_rows is 0"),
        ({"shard": (2, 2)}, "shard is"),
        ({"line_fields": [("x", 9, "map", False, 0.0)]}, "kind 'map'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        FrameSource(**{"frame": {"a": [1]}, **arguments})


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'monolith\[parquet\]'"):
        load_pyarrow("pyarrow.no_such_module")


def test_buffers_are_checked_before_they_are_read() -> None:
    with pytest.raises(ConfigError, match="values take 8 bytes, 2 of 8 bytes"):
        _native.Column("a", "int", "int64", rows=2, value_count=2, values=np.zeros(1, np.int64))
    with pytest.raises(ConfigError, match="kind of a column 'text' is not known"):
        _native.Column("a", "text", "int64", rows=0, value_count=0)
    with pytest.raises(ConfigError, match="2 payloads and 1 offsets"):
        _native.Records([b"", b""], "x", [1])


def test_the_sources_load_no_client_before_they_need_it() -> None:
    names = ("kafka", "parquet", "frame", "queue", "arrow_columns")
    imports = ", ".join(f"monolith.data.sources.{name}" for name in names)
    code = f"import json, sys, {imports}; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert "monolith.data.sources.kafka" in loaded
    assert not {"torch", "pyarrow", "pandas", "polars", "confluent_kafka", "google.protobuf"} & set(loaded)
