"""Distribution functions: laws that hold for all input, and refused arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.compat.layout_encodings import distribution as d
from monolith.core.errors import ConfigError, DimensionMismatch
from monolith.data.batch import Ragged

FIDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=12)


@given(FIDS, st.integers(1, 4))
def test_splitting_and_its_gradient_undo_each_other(ids: list[int], n: int) -> None:
    values = np.array(ids, np.int64)
    parts = d.split_by_indices(values % n, values, n)
    np.testing.assert_array_equal(d.split_by_indices_gradient(values % n, parts), values)


@given(st.lists(FIDS, min_size=1, max_size=3), st.integers(1, 4), st.data())
def test_every_id_finds_its_row_at_the_place_of_the_order(lists: list[list[int]], n: int, data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(1, 3), min_size=len(lists), max_size=len(lists)))
    arrays = [np.array(ids, np.int64) for ids in lists]
    order = d.fused_reorder_by_indices(arrays, n, dims)
    owners = np.split(order.ids, np.cumsum(order.sharded_slot_sizes)[:-1])
    floats = [np.repeat(ids, dims[i % len(dims)]) for i, ids in enumerate(owners)]
    rows = d.fused_gather_embeddings(np.concatenate(floats).astype(np.float32), order, dims)
    for ids, row, dim in zip(arrays, rows, dims, strict=True):
        np.testing.assert_array_equal(row, np.repeat(ids.astype(np.float32)[:, None], dim, axis=1))


@given(st.lists(FIDS, min_size=1, max_size=3))
def test_filling_and_its_gradient_are_transposes(bags: list[list[int]]) -> None:
    keys = d.unique_key_with_value_and_offset(Ragged.from_lists(bags), [2, 1, 3][: len(bags)])
    rng = np.random.default_rng(0)
    floats = int(np.dot(np.diff(keys.keys.offsets), keys.dims))
    value, grad = rng.integers(-5, 5, floats), rng.integers(-5, 5, keys.buffer_length)
    forward = np.dot(d.fill_with_offset_map(keys, value), grad)
    assert forward == np.dot(d.fill_with_offset_map_gradient(keys, grad), value)


def test_the_gradient_of_reduce_sqrtn_is_that_of_differences() -> None:
    rng = np.random.default_rng(0)
    rows, offsets, grad = rng.uniform(0.5, 1, (5, 2)), [0, 2, 2, 5], rng.standard_normal((3, 2))
    found = d.reduce_sqrtn_gradient(rows, offsets, grad)
    step = 1e-2
    for place in np.ndindex(rows.shape):
        up, down = rows.copy(), rows.copy()
        up[place] += step
        down[place] -= step
        slope = ((d.reduce_sqrtn(up, offsets) - d.reduce_sqrtn(down, offsets)) * grad).sum() / (2 * step)
        np.testing.assert_allclose(found[place], slope, rtol=1e-2, atol=1e-3)


def test_aligned_arrays_come_back_as_they_were() -> None:
    arrays = [np.arange(size, dtype=np.float32).reshape(-1, 1) for size in (1, 16, 17, 0, 3)]
    flat = d.aligned_flat_concat(arrays)
    assert len(flat) == 16 * (1 + 1 + 2 + 0 + 1)
    for array, found in zip(arrays, d.aligned_flat_split(flat, [a.shape for a in arrays]), strict=True):
        np.testing.assert_array_equal(found, array)


UNIQUE = d.unique_key_with_value_and_offset(Ragged.from_lists([[1, 1]]), [2])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: d.split_by_indices([0, 2], [1, 2], 2), "indices go from 0 to 2; there are 2 shards"),
        (lambda: d.split_by_indices([0], [1, 2], 2), "x has length 2; it must have 1"),
        (lambda: d.split_by_indices_gradient([0], [[1], [2]]), "gradient 1 has length 1; it must have 0"),
        (lambda: d.reorder_by_indices([0.5], [0], 1), "ids have dtype float64"),
        (lambda: d.fused_reorder_by_indices([[1]], 2, [1], first_shard=2), "first_shard is 2 of 2 shards"),
        (lambda: d.fused_reorder_by_indices([[1]], 2, [1, 2]), "there are 1 lists and 2 dims"),
        (
            lambda: d.fused_gather_embeddings_gradient(
                [np.zeros((2, 2))], d.fused_reorder_by_indices([[1]], 1, [2]), [2]
            ),
            r"gradient 0 has shape \(2, 2\); list 0 needs \(1, 2\)",
        ),
        (lambda: d.unique_key_with_value_and_offset(Ragged.from_lists([[1]]), []), "keys of 1 tables and 0 dims"),
        (lambda: d.fill_with_offset_map_gradient(UNIQUE, [1]), "grad has length 1; it must have 4"),
        (lambda: d.fused_reduce_sum_and_split([0], [[1, 2]], 1, [1]), r"values has shape \(1, 2\)"),
        (lambda: d.fused_reduce_sum_and_split([3], [[1]], 1, [1]), "rows go from 3 to 3; the batch has 1"),
        (lambda: d.normalize_merged_split([0, 1], [1]), r"sizes are \[1\]"),
        (lambda: d.gen_seq_mask([0.0, 1.0], 2), "splits has dtype float64"),
        (lambda: d.pack_tensors({"a": [1], "b": [0.5]}), r"types \['float64', 'int64'\]"),
        (lambda: d.unpack_tensors({"a": (2,)}, [1, 2, 3], [3]), r"'a' has 3 values; .*\(2,\)"),
        (lambda: d.unpack_typed_tensors([{"a": (1,)}], [[1]], [2, 1]), r"counts \[2\]"),
        (lambda: d.aligned_flat_concat([]), "at least one"),
        (lambda: d.aligned_flat_concat([np.zeros(1)], 12), "align_bytes is 12; give a multiple of the 8 bytes"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises((ConfigError, DimensionMismatch), match=message):
        call()
