from __future__ import annotations

import math

from monolith.embedding import MultiTable, Sgd, SliceSpec, SlidingHashFilter, TableSpec
from monolith.testing import ReferenceStore
from monolith.training.metrics import table_sizes


def specs() -> list[TableSpec]:
    slices = [SliceSpec(2, optimizer=Sgd(learning_rate=1.0))]
    return [
        TableSpec("item", slices),
        TableSpec("user", slices, admission=SlidingHashFilter(capacity=1000), slot_thresholds={0: 2}),
    ]


def test_rows_bytes_and_what_was_turned_away_are_told_by_table() -> None:
    store = MultiTable(specs())
    store.apply_gradients({"item": [1, 2, 3]}, {"item": [[1, 1], [1, 1], [math.nan, 1]]})
    store.apply_gradients({"user": [1]}, {"user": [[1, 1]]})
    sizes = table_sizes(store)
    assert list(sizes) == ["item", "user"]
    assert sizes["item"].rows == len(store["item"])
    assert sizes["item"].bytes == store["item"].memory_bytes > 0
    assert sizes["item"].nonfinite_gradients == 1
    assert (sizes["user"].rows, sizes["user"].not_admitted_ids) == (0, 1)


def test_a_store_that_another_process_keeps_has_no_sizes_here() -> None:
    assert table_sizes(ReferenceStore(specs())) == {}
