"""Golden vectors of sharded ids and fused layouts: the worked example, forward and back, in every encoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monolith.compat.layout_encodings.layout_configs import (
    FeatureConfig,
    FeatureConfigs,
    OutConfig,
    OutType,
    PoolingType,
    SliceConfig,
    native_layouts,
    resolve,
)
from monolith.compat.layout_encodings.sharding import (
    SHARED_BIT,
    ShardedFids,
    concat_requests,
    embedding_to_layout,
    embedding_to_layout_grad,
    sharding_sparse_fids,
)
from monolith.data.batch import Ragged
from monolith.embedding import MultiTable, SliceSpec, TableSpec
from monolith.embedding.optimizers import Adagrad, Ftrl

IDS = {
    "a": Ragged.from_lists([[4, 5], [4]]),
    "b": Ragged.from_lists([[6], [8, 9]]),
    "c": Ragged.from_lists([[10, 11, 12], []]),
}
BIAS = [[15], [12.5]]
SEQ = [[[10, 10.1], [11, 11.1]], [[0, 0], [0, 0]]]
VEC = [[9.2, 9.4, 6.1, 6.2], [4.1, 4.2, 8.6, 8.7]]
GRADS = [
    np.array([[1], [10]], np.float32),
    np.ones((2, 2, 2), np.float32),
    np.array([[1, 2, 3, 4], [10, 20, 30, 40]], np.float32),
]
BLOCK_GRADS = [[11, 11, 22, 1, 3, 4, 5, 15, 20], [1, 1, 2, 5, 15, 20], [1, 1, 0, 0], [1, 1]]


def cut(feature: str, start: int, end: int) -> SliceConfig:
    return SliceConfig(feature_name=feature, start=start, end=end)


@pytest.fixture
def configs() -> FeatureConfigs:
    return resolve(
        FeatureConfigs(
            feature_configs={
                "a": FeatureConfig(table="T1", slice_dims=[1, 2]),
                "b": FeatureConfig(table="T1", slice_dims=[1, 2], pooling_type=PoolingType.MEAN),
                "c": FeatureConfig(table="T2", slice_dims=[2], pooling_type=PoolingType.FIRSTN, max_sequence_length=2),
            },
            out_configs={
                "bias": OutConfig(slice_configs=[cut("a", 0, 1), cut("b", 0, 1)], out_type=OutType.ADDN),
                "seq": OutConfig(slice_configs=[cut("c", 0, 2)], out_type=OutType.NONE),
                "vec": OutConfig(slice_configs=[cut("a", 1, 3), cut("b", 1, 3)], out_type=OutType.CONCAT),
            },
        )
    )


def rows_of(ids: Any, dim: int) -> np.ndarray:
    """The embedding of an id is id + 0.1 * column."""
    return (np.asarray(ids)[:, None] + 0.1 * np.arange(dim)).astype(np.float32)


def embeddings_of(fids: ShardedFids) -> list[np.ndarray]:
    if fids.version != 4:
        return [rows_of(ids, 3 if block < 2 else 2) for block, ids in enumerate(fids.fid_list)]
    assert fids.concat_sizes is not None
    ids = np.split(fids.fid_list[0], np.cumsum(fids.concat_sizes.fid_list_table_row_length)[:-1])
    return [np.concatenate([rows_of(part, 3 if i % 2 == 0 else 2).reshape(-1) for i, part in enumerate(ids)])]


def halves(fids: ShardedFids) -> list[tuple[int, int]]:
    return [(int(offset) >> 32, int(offset) & 0xFFFFFFFF) for offset in fids.fid_offset]


V3 = [(0, 0), (1, 0), (0, 0), (0, 3), (0, 6), (1, 3), (2, 0), (3, 0), (2, 2)]
OFFSETS: dict[int, list[tuple[int, int]]] = {
    1: [(0, 0), (1, 0), (0, 0), (0, 1), (0, 2), (1, 1), (2, 0), (3, 0), (2, 1)],
    2: [(0, 0), (2, 0), (0, 0), (1, 0), (1, 1), (3, 0), (4, 0), (5, 0), (4, 1)],
    3: V3,
    4: V3,
    5: V3,
}


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_ids_are_spread_as_in_the_worked_example(configs: FeatureConfigs, version: Any) -> None:
    fids = sharding_sparse_fids(IDS, configs, 2, version=version)
    assert halves(fids) == OFFSETS[version]
    assert fids.feature_offset.tolist() == [0, 2, 3, 4, 6, 9, 9]
    assert fids.nfl_offset.tolist() == [0, 2, 4, 7]
    assert fids.batch_size == 2
    if version != 4:
        assert [ids.tolist() for ids in fids.fid_list] == [[4, 6, 8], [5, 9], [10, 12], [11]]
        assert [splits.tolist() for splits in fids.fid_list_row_splits] == [[0, 1, 3], [0, 1, 2], [0, 2], [0, 1]]


def test_version_4_joins_everything_shard_by_shard(configs: FeatureConfigs) -> None:
    fids = sharding_sparse_fids(IDS, configs, 2, version=4)
    assert [ids.tolist() for ids in fids.fid_list] == [[4, 6, 8, 10, 12, 5, 9, 11]]
    assert [splits.tolist() for splits in fids.fid_list_row_splits] == [[0, 1, 3, 0, 2, 0, 1, 2, 0, 1]]
    assert fids.concat_sizes is not None
    assert fids.concat_sizes.fid_list_table_row_length.tolist() == [3, 2, 2, 1]
    assert fids.concat_sizes.fid_list_shard_row_length.tolist() == [5, 3]
    assert fids.concat_sizes.fid_list_emb_row_length.tolist() == [9, 4, 6, 2]


def test_version_5_holds_the_length_of_every_part(configs: FeatureConfigs) -> None:
    sizes = sharding_sparse_fids(IDS, configs, 2).request_sizes
    assert sizes is not None
    assert sizes.batch_size.tolist() == [2]
    assert sizes.nfl_size.tolist() == [4]
    assert sizes.feature_size.tolist() == [7]
    assert sizes.fid_size.tolist() == [9]
    assert sizes.emb_size.tolist() == [[9, 6, 4, 2]]
    assert sizes.row_splits_size.tolist() == [[3, 3, 2, 2]]


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("unique", [True, False])
def test_layouts_are_those_of_the_worked_example(configs: FeatureConfigs, version: Any, unique: bool) -> None:
    fids = sharding_sparse_fids(IDS, configs, 2, version=version, unique=unique)
    bias, seq, vec = embedding_to_layout(embeddings_of(fids), fids, configs)
    np.testing.assert_allclose(bias, BIAS, rtol=1e-6)
    np.testing.assert_allclose(seq, SEQ, rtol=1e-6)
    np.testing.assert_allclose(vec, VEC, rtol=1e-6)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_gradients_are_those_of_the_worked_example(configs: FeatureConfigs, version: Any) -> None:
    fids = sharding_sparse_fids(IDS, configs, 2, version=version)
    embeddings = embeddings_of(fids)
    grads = embedding_to_layout_grad(GRADS, embeddings, fids, configs)
    assert [grad.shape for grad in grads] == [block.shape for block in embeddings]
    order = [0, 2, 1, 3]
    expected = BLOCK_GRADS if version != 4 else [[value for block in order for value in BLOCK_GRADS[block]]]
    assert [grad.reshape(-1).tolist() for grad in grads] == expected


def test_unused_layouts_have_no_gradient_and_the_scale_multiplies_the_rest(configs: FeatureConfigs) -> None:
    fids = sharding_sparse_fids(IDS, configs, 2)
    grads = embedding_to_layout_grad([GRADS[0], None, None], embeddings_of(fids), fids, configs, scale=0.5)
    assert [grad.reshape(-1).tolist() for grad in grads] == [
        [5.5, 0, 0, 0.5, 0, 0, 2.5, 0, 0],
        [0.5, 0, 0, 2.5, 0, 0],
        [0, 0, 0, 0],
        [0, 0],
    ]


def test_the_native_kernel_gives_the_worked_example_too(configs: FeatureConfigs) -> None:
    bags = [IDS[name] for name in configs.features]
    plan = native_layouts(configs).plan(2, [b.values for b in bags], [b.offsets for b in bags], [False] * 3)
    assert [plan.ids(table).tolist() for table in range(2)] == [[4, 5, 6, 8, 9], [10, 11]]
    assert [plan.counts(table).tolist() for table in range(2)] == [[2, 1, 1, 1, 1], [1, 1]]
    outputs = [np.full((2, width), np.nan, np.float32) for width in (1, 4, 4)]
    plan.pool([rows_of(plan.ids(0), 3), rows_of(plan.ids(1), 2)], outputs)
    np.testing.assert_allclose(outputs[0], BIAS, rtol=1e-6)
    np.testing.assert_allclose(outputs[1].reshape(2, 2, 2), SEQ, rtol=1e-6)
    np.testing.assert_allclose(outputs[2], VEC, rtol=1e-6)
    grads = [np.full((5, 3), np.nan, np.float32), np.full((2, 2), np.nan, np.float32)]
    squares = plan.scatter([grad.reshape(2, -1) for grad in GRADS], grads)
    assert grads[0].tolist() == [[11, 11, 22], [1, 1, 2], [1, 3, 4], [5, 15, 20], [5, 15, 20]]
    assert grads[1].tolist() == [[1, 1], [1, 1]]
    assert squares == [11**2 * 2 + 22**2 + 1 + 1 + 4 + 1 + 9 + 16 + 2 * (25 + 225 + 400), 4]


def test_a_feature_that_is_absent_is_shared_and_empty(configs: FeatureConfigs) -> None:
    fids = sharding_sparse_fids({"a": IDS["a"], "b": IDS["b"]}, configs, 2)
    assert fids.nfl_offset.tolist() == [0, 2, 4 | SHARED_BIT, 6]
    assert fids.feature_offset.tolist() == [0, 2, 3, 4, 6, 6]
    bias, seq, vec = embedding_to_layout(embeddings_of(fids), fids, configs)
    np.testing.assert_allclose(bias, BIAS, rtol=1e-6)
    np.testing.assert_array_equal(seq, np.zeros((2, 2, 2)))
    np.testing.assert_allclose(vec, VEC, rtol=1e-6)


def test_a_shared_feature_has_one_row_and_the_gradient_of_all_examples(configs: FeatureConfigs) -> None:
    shared = Ragged(np.array([4, 5]), np.array([0, 2]), shared=True)
    fids = sharding_sparse_fids({**IDS, "a": shared}, configs, 2)
    assert fids.nfl_offset.tolist() == [0 | SHARED_BIT, 1, 3, 6]
    bias, _, vec = embedding_to_layout(embeddings_of(fids), fids, configs)
    np.testing.assert_allclose(bias, [[9 + 6], [9 + 8.5]], rtol=1e-6)
    np.testing.assert_allclose(vec[:, :2], [[9.2, 9.4], [9.2, 9.4]], rtol=1e-6)
    grads = embedding_to_layout_grad(GRADS, embeddings_of(fids), fids, configs)
    assert grads[0].reshape(-1)[:3].tolist() == [11, 11, 22]
    assert grads[1].reshape(-1)[:3].tolist() == [11, 11, 22]


def test_several_requests_of_version_5_are_answered_together(configs: FeatureConfigs) -> None:
    other = {
        "a": Ragged(np.array([5, 7, 5]), np.array([0, 3]), shared=True),
        "b": Ragged.from_lists([[6], [], [9, 9]]),
    }
    requests = [sharding_sparse_fids(IDS, configs, 2), sharding_sparse_fids(other, configs, 2)]
    blocks = [embeddings_of(request) for request in requests]
    joined = concat_requests(requests)
    flat = [np.concatenate(pair) for pair in zip(*([b.reshape(-1) for b in own] for own in blocks), strict=True)]
    alone = [embedding_to_layout(own, request, configs) for own, request in zip(blocks, requests, strict=True)]
    together = embedding_to_layout(flat, joined, configs)
    for tensor, first, second in zip(together, *alone, strict=True):
        np.testing.assert_array_equal(tensor, np.concatenate([first, second]))

    grads = [np.arange(tensor.size, dtype=np.float32).reshape(tensor.shape) for tensor in together]
    found = embedding_to_layout_grad(grads, flat, joined, configs)
    own_grads = [
        embedding_to_layout_grad([grad[rows] for grad in grads], own, request, configs)
        for own, request, rows in zip(blocks, requests, (slice(0, 2), slice(2, 5)), strict=True)
    ]
    for block, first, second in zip(found, *own_grads, strict=True):
        np.testing.assert_array_equal(block, np.concatenate([first.reshape(-1), second.reshape(-1)]))


def test_one_step_with_ftrl_and_adagrad_through_the_layouts() -> None:
    """uid has slices 1 and 4, gid and cid 1, 4 and 8; weights 3, every layout's gradient 2, rate 1."""
    dims = {"uid": [1, 4], "gid": [1, 4, 8], "cid": [1, 4, 8]}
    tables = MultiTable(
        TableSpec(name, [SliceSpec(dim, optimizer=(Adagrad if i else Ftrl)()) for i, dim in enumerate(own)])
        for name, own in dims.items()
    )
    names = sorted(dims)
    columns = {"bias": (0, 1, names), "vec": (1, 5, names), "deep": (5, 13, ["cid", "gid"])}
    configs = resolve(
        FeatureConfigs(
            feature_configs={name: FeatureConfig(table=name, slice_dims=own) for name, own in dims.items()},
            out_configs={
                layout: OutConfig(slice_configs=[cut(name, start, end) for name in own], out_type=OutType.CONCAT)
                for layout, (start, end, own) in columns.items()
            },
        )
    )
    ids = {name: Ragged.from_lists([[10 * rank + 1]]) for rank, name in enumerate(names)}
    for name in names:
        tables[name].assign(ids[name].values, np.full((1, sum(dims[name])), 3, np.float32))
    fids = sharding_sparse_fids(ids, configs, 2)
    owners = [name for name in names for _ in range(2)]
    pulled = [tables[name].lookup(own) for name, own in zip(owners, fids.fid_list, strict=True)]
    outputs = embedding_to_layout(pulled, fids, configs)
    assert all((output == 3).all() for output in outputs)
    grads = embedding_to_layout_grad([np.full_like(output, 2) for output in outputs], pulled, fids, configs)
    for name, own, grad in zip(owners, fids.fid_list, grads, strict=True):
        tables[name].apply_gradients(own, grad, learning_rates=[1.0] * len(dims[name]))
    n, old = 4.1, 0.1
    ftrl = -(2 - 3 * (np.sqrt(n) - np.sqrt(old))) / np.sqrt(n)
    for name in names:
        row = tables[name].lookup(ids[name].values)[0]
        np.testing.assert_allclose(row[0], ftrl, rtol=1e-5)
        np.testing.assert_allclose(row[1:], 3 - 2 / np.sqrt(n), rtol=1e-5)
