"""Golden vectors of the original's distribution operators."""

from __future__ import annotations

import numpy as np
import pytest

from monolith.compat.layout_encodings import distribution as d
from monolith.core.errors import ConfigError
from monolith.data.batch import Ragged
from monolith.data.transforms import ragged
from monolith.embedding import MultiTable, SliceSpec, TableSpec
from monolith.embedding.optimizers import Adagrad


def test_split_by_indices_is_stable_and_its_gradient_goes_back() -> None:
    ids = np.array([0, 1, 2, 2, 3])
    assert [part.tolist() for part in d.split_by_indices(ids % 3, ids, 3)] == [[0, 3], [1], [2, 2]]
    assert d.split_by_indices_gradient(ids % 3, [[1, 2], [3], [4, 5]]).tolist() == [1, 3, 4, 5, 2]


def test_reorder_by_indices_groups_in_reverse_order() -> None:
    ids = np.array([0, 1, 2, 2, 3, 5])
    found, sizes = d.reorder_by_indices(ids, ids % 3, 3)
    assert found.tolist() == [3, 0, 1, 5, 2]
    assert sizes.tolist() == [2, 1, 2]


def test_ragged_split_by_indices_keeps_the_rows() -> None:
    parts = d.ragged_split_by_indices([0, 1, 0, 1], Ragged.from_lists([[4, 3, 2], [1]]), 2)
    assert [values.tolist() for values, _ in parts] == [[[4, 2], []], [[3], [1]]]
    assert [positions.tolist() for _, positions in parts] == [[[0, 2], []], [[1], [3]]]


@pytest.fixture
def keys() -> d.UniqueKeys:
    return d.unique_key_with_value_and_offset(Ragged.from_lists([[], [0, 1, 2, 1, 0], [0, 1, 0], []]), [1, 2, 3, 4])


def test_unique_keys_know_the_places_of_their_occurrences(keys: d.UniqueKeys) -> None:
    assert keys.keys.tolist() == [[], [0, 1, 2], [0, 1], []]
    assert keys.value_offsets.tolist() == [[0, 8], [2, 6], [4], [10, 16], [13]]
    assert keys.buffer_length == 19


def test_the_offset_map_fills_and_its_gradient_sums(keys: d.UniqueKeys) -> None:
    filled = d.fill_with_offset_map(keys, np.arange(12))
    assert filled.tolist() == [0, 1, 2, 3, 4, 5, 2, 3, 0, 1, 6, 7, 8, 9, 10, 11, 6, 7, 8]
    grad = d.fill_with_offset_map_gradient(keys, np.arange(19))
    assert grad.tolist() == [8, 10, 8, 10, 4, 5, 26, 28, 30, 13, 14, 15]
    with pytest.raises(ConfigError, match=r"value has 11 floats; .* need 12"):
        d.fill_with_offset_map(keys, np.arange(11))


def test_map_id_to_embedding_sums_the_gradients_of_repeated_ids() -> None:
    ids, embeddings = [[1], [2]], [[[1.0, 1.0]], [[2.0, 2.0]]]
    assert d.map_id_to_embedding(ids, embeddings, [1, 1, 2]).tolist() == [[1, 1], [1, 1], [2, 2]]
    grads = d.map_id_to_embedding_gradient(ids, [1, 1, 2], -np.ones((3, 2)))
    assert [grad.tolist() for grad in grads] == [[[-2, -2]], [[-1, -1]]]
    with pytest.raises(ConfigError, match="id 3 has no embedding"):
        d.map_id_to_embedding(ids, embeddings, [1, 3])


def test_gather_embeddings_by_input_returns_the_places_of_the_rows() -> None:
    rows, places = d.gather_embeddings_by_input([1, 2, 3], [[1, 1], [2, 2], [3, 3]], [2, 1, 2])
    assert rows.tolist() == [[2, 2], [1, 1], [2, 2]]
    assert places.tolist() == [1, 0, 1]
    assert d.gather_embeddings_gradient(places, np.ones((3, 2)), 3).tolist() == [[1, 1], [2, 2], [0, 0]]


def test_fused_reorder_of_three_tables_on_two_shards() -> None:
    order = d.fused_reorder_by_indices([[0, 1, 0], [3, 2, 3], [5, 6, 7]], 2, [1, 2, 3])
    assert order.ids.tolist() == [0, 2, 6, 1, 3, 5, 7]
    assert order.shard_sizes.tolist() == [3, 4]
    assert order.sharded_slot_sizes.tolist() == [1, 1, 1, 1, 1, 2]
    assert order.emb_offset_sizes.tolist() == [3, 3, 3]
    assert order.fused_emb_offset.tolist() == [0, 6, 0, 7, 1, 7, 9, 3, 12]


def test_fused_reorder_without_repeated_shards() -> None:
    order = d.fused_reorder_by_indices([[0, 1, 2, 2, 3, 5], [6, 7, 8, 8, 9, 11]], 3, [1, 1])
    assert order.ids.tolist() == [0, 3, 6, 9, 1, 7, 2, 5, 8, 11]
    assert order.shard_sizes.tolist() == [4, 2, 4]
    assert order.sharded_slot_sizes.tolist() == [2, 2, 1, 1, 2, 2]


def test_fused_reorder_may_leave_the_first_shard_empty() -> None:
    order = d.fused_reorder_by_indices([[0, 1, 4, 5]], 5, [1], first_shard=1)
    assert order.ids.tolist() == [0, 4, 1, 5]
    assert order.shard_sizes.tolist() == [0, 2, 2, 0, 0]


def test_fused_gather_and_its_gradient() -> None:
    lists, dims = [[2, 3, 1, 2, 7, 2], [5, 8, 4, 4, 5, 11, 6]], [3, 2]
    order = d.fused_reorder_by_indices(lists, 3, dims)
    assert order.ids.tolist() == [3, 6, 1, 7, 4, 2, 5, 8, 11]
    assert order.shard_sizes.tolist() == [2, 3, 4]
    assert order.sharded_slot_sizes.tolist() == [1, 1, 2, 1, 1, 3]
    assert order.fused_emb_offset.tolist() == [13, 0, 5, 13, 8, 13, 16, 18, 11, 11, 16, 20, 3]
    rows = d.fused_gather_embeddings(np.arange(22), order, dims)
    assert rows[0].tolist() == [[13, 14, 15], [0, 1, 2], [5, 6, 7], [13, 14, 15], [8, 9, 10], [13, 14, 15]]
    grads = [
        np.array([[row + 0.1, row + 0.2, row + 0.3] for row in range(1, 7)]),
        np.array([[row + 0.4, row + 0.5] for row in range(1, 8)]),
    ]
    first = [2.1, 2.2, 2.3, 7.4, 7.5, 3.1, 3.2, 3.3, 5.1, 5.2, 5.3]
    second = [7.8, 8.0, 11.3, 11.6, 11.9, 6.8, 7.0, 2.4, 2.5, 6.4, 6.5]
    expected = np.array([*first, *second])
    np.testing.assert_allclose(d.fused_gather_embeddings_gradient(grads, order, dims), expected, rtol=1e-6)
    np.testing.assert_allclose(d.fused_gather_embeddings_gradient(grads, order, dims, 0.5), expected / 2, rtol=1e-6)


def test_fused_reduce_sum_and_split() -> None:
    sums = d.fused_reduce_sum_and_split([0, 0, 2], [[1, 1, 1], [2, 2, 1], [4, 4, 2]], 4, [1, 2])
    assert [part.tolist() for part in sums] == [[[3], [0], [4], [0]], [[3, 2], [0, 0], [4, 2], [0, 0]]]


def test_normalize_merged_split() -> None:
    assert d.normalize_merged_split([0, 2, 5, 5, 9, 0, 0, 3, 4], [5, 4]).tolist() == [0, 2, 5, 5, 9, 9, 12, 13]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gen_seq_mask_has_the_type_of_its_splits(dtype: type) -> None:
    mask = d.gen_seq_mask(np.array([0, 5, 7, 9, 13], dtype), 6)
    assert mask.dtype == dtype
    assert ["".join(map(str, row)) for row in mask.tolist()] == ["111110", "110000", "110000", "111100"]


def test_tensors_are_packed_in_order_of_their_names() -> None:
    packed, sizes = d.pack_tensors({"x": [1, 2], "y": [[4, 5], [6, 7]]})
    assert packed.tolist() == [1, 2, 4, 5, 6, 7]
    assert sizes.tolist() == [2, 4]
    unpacked = d.unpack_tensors({"x": (-1,), "y": (2, 2)}, packed, sizes)
    assert unpacked["x"].tolist() == [1, 2]
    assert unpacked["y"].tolist() == [[4, 5], [6, 7]]


def test_typed_packs_begin_with_their_counts() -> None:
    groups = [
        {"a": np.zeros((2, 4), np.float32), "b": np.zeros(4, np.float32)},
        {"c": np.zeros(2, np.int64), "d": np.arange(4)},
        {"e": np.arange(7, dtype=np.int32)},
    ]
    packed, sizes = d.pack_typed_tensors(groups)
    assert sizes.tolist() == [2, 2, 1, 8, 4, 2, 4, 7]
    shapes = [{name: array.shape for name, array in group.items()} for group in groups]
    for group, found in zip(groups, d.unpack_typed_tensors(shapes, packed, sizes), strict=True):
        for name, array in group.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)


def test_ragged_row_ids() -> None:
    assert ragged.row_ids(Ragged.from_lists([[], [1], [2, 3]]).offsets).tolist() == [1, 2, 2]


def test_ten_synchronous_steps_equal_adagrad() -> None:
    table = MultiTable([TableSpec("t", [SliceSpec(5, optimizer=Adagrad(initial_accumulator_value=1.0))])])
    ids = np.array([1, 2, 3, 4])
    order = d.fused_reorder_by_indices([ids], 1, [5])
    weights, state = np.zeros((4, 5)), np.ones((4, 5))
    for step in range(10):
        grads = np.full((4, 5), step + 1, np.float32) * ids[:, None]
        flat = d.fused_gather_embeddings_gradient([grads], order, [5])
        table["t"].apply_gradients(order.ids, flat.reshape(4, 5), learning_rates=[0.1])
        state += grads**2
        weights -= 0.1 * grads / np.sqrt(state)
        np.testing.assert_allclose(table["t"].lookup(ids), weights, rtol=2e-5)


def test_reduce_sqrtn_and_its_gradient() -> None:
    rows, offsets = [[3.0, 0.0], [4.0, 0.0], [2.0, -2.0]], [0, 2, 2, 3]
    assert d.reduce_sqrtn(rows, offsets).tolist() == [[5, 0], [0, 0], [2, 2]]
    grads = d.reduce_sqrtn_gradient(rows, offsets, np.full((3, 2), 10))
    np.testing.assert_allclose(grads, [[6, 0], [8, 0], [10, -10]], rtol=1e-6)
