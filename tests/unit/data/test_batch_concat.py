"""``Batch.concat`` keeps every row of every column."""

from __future__ import annotations

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.data import Batch, DenseFeature, Schema, parse_batch
from monolith.data.batch import Ragged
from monolith.data.records.messages import Example
from monolith.demo.world import World


def test_parsed_batches_joined_equal_one_large_batch() -> None:
    clicks = World(users=20, items=20).clicks(100)
    whole = next(iter(clicks.dataset().batch(100)))
    joined = Batch.concat(list(clicks.dataset().batch(30)))
    assert joined.size == 100
    for name in whole.ids:
        assert joined.ids[name].tolist() == whole.ids[name].tolist()
    for name in whole.dense:
        np.testing.assert_array_equal(joined.dense[name], whole.dense[name])
    for name in ("label", "label_mask", "weight", "sample_rate", "event_time_s", "uid"):
        np.testing.assert_array_equal(joined[name], whole[name])


def test_a_shared_list_is_repeated_for_each_row() -> None:
    shared = Batch.from_arrays(ids={"a": Ragged(np.array([7, 8]), np.array([0, 2]), shared=True)}, label=[0, 1])
    plain = Batch.from_arrays(ids={"a": [[1]]}, label=[1])
    assert Batch.concat([shared, plain]).ids["a"].tolist() == [[7, 8], [7, 8], [1]]


def test_texts_are_joined_too() -> None:
    schema = Schema(dense=[DenseFeature("title", 2, "bytes")], labels=0)
    rows = []
    for number in range(5):
        row = Example()
        row.named_feature.add(name="title").feature.bytes_list.value.extend([b"a" * number, b"b"])
        rows.append(row.SerializeToString())
    parts = [parse_batch(rows[start : start + 2], record="example", schema=schema) for start in (0, 2, 4)]
    joined = Batch.concat(parts).dense["title"]
    assert joined.tolist() == parse_batch(rows, record="example", schema=schema).dense["title"].tolist()


def test_no_batch_and_other_columns_are_refused() -> None:
    with pytest.raises(ConfigError, match="batches is empty"):
        Batch.concat([])
    with pytest.raises(ConfigError, match="expected those of the first"):
        Batch.concat([Batch.from_arrays(ids={"a": [[1]]}), Batch.from_arrays(ids={"b": [[1]]})])
