"""Python's payloads are those that the native shard reads and writes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith import _native
from monolith.core.errors import ClusterError
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.embedding.shard_map import shard_of
from monolith.ps.fused import PushPart, decode_rows, encode_pull, encode_push

SPECS = [TableSpec(name, [SliceSpec(dim, optimizer=Sgd(1.0))]) for name, dim in (("a", 1), ("b", 3), ("c", 2))]
IDS = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=9)


@settings(max_examples=50)
@given(st.lists(IDS, min_size=3, max_size=3), st.booleans())
def test_encoded_pushes_decode_to_the_same_rows(ids: list[list[int]], half: bool) -> None:
    tables = MultiTable(SPECS)
    shard = _native.PsShard(0, 1, [tables[name]._native for name in tables], list(tables))
    keys = [np.array(each, np.int64) for each in ids]
    grads = [
        np.arange(len(key) * spec.dim, dtype=np.float32).reshape(-1, spec.dim)
        for key, spec in zip(keys, SPECS, strict=True)
    ]
    parts = [
        PushPart(number, key, grad, np.ones(len(key), np.uint32), np.ones(1, np.float32))
        for number, (key, grad) in enumerate(zip(keys, grads, strict=True))
    ]
    for _ in range(2):  # the second one is a repetition
        assert shard.push(encode_push(7, 1, 5, 6, parts, half=half), half=half) == b""
    reply = shard.pull(encode_pull([*enumerate(keys)]), half=half)
    rows = decode_rows(reply, [(len(key), spec.dim) for key, spec in zip(keys, SPECS, strict=True)], half=half)
    for got, grad in zip(rows, grads, strict=True):
        assert (got == -grad).all()
    assert shard.stats()["repeated_pushes"] == 1


def test_a_reply_of_another_length_is_refused() -> None:
    with pytest.raises(ClusterError, match="a reply has 4 bytes, expected 8"):
        decode_rows(bytes(4), [(1, 2)], half=False)
    with pytest.raises(ClusterError, match="a reply has 4 bytes, expected 2"):
        decode_rows(bytes(4), [(1, 1)], half=True)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30), st.integers(1, 7))
def test_both_twins_of_the_shard_map_agree(ids: list[int], shards: int) -> None:
    array = np.array(ids, np.int64)
    assert _native.ps_shard_of(array, shards).tolist() == shard_of(array, shards).tolist()
