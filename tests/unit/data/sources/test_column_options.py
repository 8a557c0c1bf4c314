"""Columns that a dataset needs of tables: missing, excluded, made by steps, and those of the event time."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import monolith as mt
from monolith.core.errors import ConfigError, SchemaMismatch
from monolith.data import DenseFeature, Schema, SparseFeature

TABLE = pa.table({"user": [1, 2, 3], "price": [0.5, 1.5, 2.5], "click": [1, 0, 1]})
USER = Schema(sparse=[SparseFeature("user", 1)], label_features=["click"])


def batches(table: Any, schema: Schema, **options: Any) -> mt.data.Dataset:
    return mt.data.frame(table, schema=schema, **options).batch(10)


def test_a_column_that_the_schema_names_must_be_there() -> None:
    schema = Schema(sparse=[SparseFeature("usr", 1)], dense=["price"])
    with pytest.raises(SchemaMismatch, match=r"frame has no column 'usr', .* as feature; .*renamed to 'user'\?"):
        list(batches(TABLE, schema))
    with pytest.raises(SchemaMismatch, match=r"no column 'like', expected by the schema as label"):
        list(batches(TABLE, Schema(dense=["price"], label_features=["like"])))


def test_allowed_missing_columns_are_counted_once_per_table(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.parquet" for number in range(2)]
    pq.write_table(TABLE, paths[0])
    pq.write_table(TABLE.drop_columns(["price"]), paths[1])
    schema = Schema(sparse=[SparseFeature("user", 1)], dense=["price"], label_features=["click"])
    data = mt.data.parquet(paths, schema=schema, allow_missing=["price"]).batch(10)
    [batch] = list(data)
    assert batch.dense["price"].reshape(-1).tolist() == [0.5, 1.5, 2.5, 0, 0, 0]
    assert data.counts()["missing_columns"] == 1
    with pytest.raises(SchemaMismatch, match=r"1\.parquet has no column 'price'"):
        list(mt.data.parquet(paths, schema=schema).batch(10))


def test_features_that_steps_make_need_no_column() -> None:
    schema = Schema(sparse=[SparseFeature("both", 3)], label_features=["click"])
    data = mt.data.frame(TABLE, {"user": "fid_v2", "click": "int"}, schema=schema)
    made = data.feature_combine(name_a="user", name_b="user", slot=3, out="both").batch(10)
    assert [len(batch.ids["both"]) for batch in made] == [3]
    list(data.map(lambda row: row).batch(10))  # a Python function may make any feature
    with pytest.raises(SchemaMismatch, match="no column 'both'"):
        list(data.batch(10))


def test_columns_that_the_schema_does_not_name_may_have_any_type() -> None:
    table = TABLE.append_column("seen", pa.array([datetime.datetime(2024, 1, 1)] * 3))
    assert [batch.size for batch in batches(table, USER)] == [3]
    inferred = mt.data.infer_schema(mt.data.frame(table))
    assert {each.name for each in inferred.dense_features} == {"user", "price", "click"}


def test_an_excluded_column_that_a_table_lacks_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    dataset = mt.data.frame(TABLE, schema=USER, exclude=["prise"]).batch(1)
    assert list(dataset)
    assert caplog.text.count("excluded column absent file=frame column=prise nearest=price") == 1


def test_an_excluded_column_is_not_read() -> None:
    inferred = mt.data.infer_schema(mt.data.frame(TABLE, exclude=["price"]))
    assert {each.name for each in inferred.dense_features} == {"user", "click"}
    with pytest.raises(SchemaMismatch, match="'user' is excluded; include it"):
        list(batches(TABLE, USER, exclude=["user"]))
    with pytest.raises(ConfigError, match="exclude is 'user', expected a list of columns"):
        batches(TABLE, USER, exclude="user")


def test_a_label_of_text_names_column_and_type() -> None:
    table = TABLE.set_column(2, "click", pa.array(["yes", "no", "yes"]))
    with pytest.raises(SchemaMismatch, match=r"label column 'click' has type string, expected numbers"):
        list(batches(table, USER))


@pytest.mark.parametrize(
    "times",
    [
        pa.array([1_700_000_000, 1_700_000_001, None]),
        pa.array([1_700_000_000_500, 1_700_000_001_500, None]),
        pa.array([1_700_000_000.25, 1_700_000_001.5, None]),
        pa.array([1_700_000_000 * 10**9, 1_700_000_001 * 10**9 + 5, None]),
        pa.array([1_700_000_000, 1_700_000_001, None], pa.timestamp("s", tz="Europe/Vienna")),
        pa.array([1_700_000_000_000_000, 1_700_000_001_000_000, None], pa.timestamp("us")),
        pa.array(["2023-11-14T22:13:20", "2023-11-14 22:13:21", None]),
        pa.array(["2023-11-14T22:13:20Z", "2023-11-14T23:13:21+01:00", None]),
        pa.array(["2023-11-14T22:13:20.123456789", "2023-11-14T22:13:21.000000001", None]),
        pa.array(["2023-11-14T22:13:20.123456789Z", "2023-11-14T23:13:21.000000001+0100", None]),
        pa.array(["2023-11-14T22:13:20", "2023-11-14T23:13:21+01", None]),
    ],
    ids=[
        "seconds",
        "milliseconds",
        "floats",
        "nanoseconds",
        "zone",
        "timestamp",
        "text",
        "text_with_zone",
        "text_of_nanoseconds",
        "text_of_nanoseconds_with_zone",
        "text_with_and_without_zone",
    ],
)
def test_a_time_column_of_any_type_becomes_the_event_time(times: pa.Array) -> None:
    [batch] = list(batches(TABLE.append_column("at", times), USER, time_column="at"))
    assert batch.event_time_s.tolist() == [1_700_000_000, 1_700_000_001, 0]


def test_an_invalid_time_names_the_column() -> None:
    table = TABLE.append_column("at", pa.array(["yesterday"] * 3))
    with pytest.raises(SchemaMismatch, match="time column 'at' has a value that is not a time"):
        list(batches(table, USER, time_column="at"))
    with pytest.raises(SchemaMismatch, match="no column 'when' for the event time"):
        list(batches(table, USER, time_column="when"))
    twice = pa.table([[1], [2], [3], [0]], names=["user", "at", "at", "click"])
    with pytest.raises(SchemaMismatch, match="frame has 2 columns 'at', expected one for the event time"):
        list(batches(twice, USER, time_column="at"))


def test_a_time_column_may_be_missing_only_by_its_name(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SchemaMismatch, match="no column 'at' for the event time"):
        list(batches(TABLE, USER, time_column="at", allow_missing=True))
    [batch] = list(batches(TABLE, USER, time_column="at", allow_missing=["at"]))
    assert batch.event_time_s.tolist() == [0, 0, 0]
    assert "columns missing file=frame columns=at" in caplog.text


def test_the_time_may_be_a_feature_too() -> None:
    table = TABLE.append_column("at", pa.array([1_700_000_000, 1_700_000_001, 1_700_000_002]))
    schema = Schema(dense=[DenseFeature("at", dtype="int64")], label_features=["click"])
    [batch] = list(batches(table, schema, time_column="at"))
    assert batch.dense["at"][:, 0].tolist() == batch.event_time_s.tolist() == [1_700_000_000 + n for n in range(3)]


@pytest.mark.parametrize(("group_rows", "shards"), [(100, 3), (100, 1), (9, 3), (40, 4)])
def test_workers_share_the_rows_of_one_parquet_file(tmp_path: Path, group_rows: int, shards: int) -> None:
    path = tmp_path / "one.parquet"
    pq.write_table(pa.table({"user": range(100), "click": [1] * 100}), path, row_group_size=group_rows)
    users = []
    for index in range(shards):
        options: Any = {"schema": USER, "shard": (index, shards), "batch_rows": 7}
        data = mt.data.parquet(path, **options).batch(5)
        own = [int(user) & 0xFFFFFFFFFFFF for batch in data for user in batch.ids["user"].values]
        assert len(own) in range(100 // shards - 7, 100 // shards + 13), "no worker is idle"
        users += own
        first = mt.data.parquet(path, **options).batch(5)
        iterator = iter(first)
        read = sum(next(iterator).size for _ in range(3))
        resumed = mt.data.parquet(path, **options).batch(5)
        resumed.restore(first.state())
        assert read + sum(batch.size for batch in resumed) == len(own)
    assert sorted(users) == list(range(100))
