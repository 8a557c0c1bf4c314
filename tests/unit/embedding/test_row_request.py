"""Ids divided among ranks and rows put together again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monolith.embedding.ranks.row_request import RowRequest, blocks_of, sum_blocks

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=30)


@given(st.lists(IDS, min_size=1, max_size=3), st.integers(1, 5))
def test_rows_come_back_in_the_order_of_the_ids(tables: list[list[int]], ranks: int) -> None:
    ids = [np.array(table, np.int64) for table in tables]
    dims = list(range(1, len(ids) + 1))
    request = RowRequest.of(ids, ranks)
    assert request.sizes.sum() == sum(len(each) for each in ids)
    # Every row holds the low bits of its id, as many times as it has columns.
    rows = [np.repeat((each & 0xFFFF).astype(np.float32)[:, None], dim, 1) for each, dim in zip(ids, dims, strict=True)]
    assert request.ids().tolist() == request.arranged([each[:, None] for each in ids]).tolist()
    back = request.rows(request.arranged(rows), dims)
    for one, other in zip(back, rows, strict=True):
        np.testing.assert_array_equal(one, other)


@given(st.lists(st.lists(st.integers(0, 9), unique=True, max_size=8), min_size=1, max_size=4))
def test_gradients_of_one_id_are_added_in_rank_order(ranks: list[list[int]]) -> None:
    numbers = np.random.default_rng(len(ranks))
    ids = [np.array(each, np.int64) for each in ranks]
    grads = [numbers.normal(size=(len(each), 3)).astype(np.float32) for each in ids]
    counts = [numbers.integers(1, 5, len(each)) for each in ids]
    found = sum_blocks(ids, grads, counts)
    for place, fid in enumerate(found.ids.tolist()):
        total = None
        seen = 0
        for keys, rows, often in zip(ids, grads, counts, strict=True):
            for at in np.flatnonzero(keys == fid):
                total = rows[at] if total is None else total + rows[at]
                seen += int(often[at])
        np.testing.assert_array_equal(found.grads[place], total)
        assert found.counts[place] == seen
    assert sorted(found.ids.tolist()) == sorted({fid for each in ranks for fid in each})


def test_the_gradients_of_one_rank_keep_their_bytes() -> None:
    grads = np.array([[-0.0, 1.0]], np.float32)
    found = sum_blocks([np.array([3])], [grads], [np.array([1])])
    assert found.grads.tobytes() == grads.tobytes()


def test_blocks_may_be_empty() -> None:
    sizes = np.array([[0, 2], [0, 0]])
    blocks = blocks_of(np.arange(6, dtype=np.float32), sizes, [4, 3])
    assert [[block.shape for block in row] for row in blocks] == [[(0, 4), (2, 3)], [(0, 4), (0, 3)]]
