from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import _native
from monolith.core.errors import ConfigError, RecordCorrupt
from monolith.data.records.messages import ChannelCache, Example
from monolith.data.transforms import ItemPool, NegativeGen, pools_of, restore_pools, save_pools


def stream_of(*caches: Any) -> bytes:
    return b"".join(_native.frame_record(cache.SerializeToString()) for cache in caches)


def messages_of(stream: bytes) -> list[Any]:
    records, size = _native.scan_records(stream, 0, "pool", 1 << 30, True)
    assert size == len(stream)
    return [ChannelCache.FromString(record) for record in records]


def cache(channel: int, ids: list[int]) -> Any:
    message = ChannelCache(channel_id=channel)
    for item in ids:
        data = message.feature_datas.add(gid=item, fids=[item, -item], origin_cnt=2, sample_cnt=item % 3)
        data.feature_columns.add(name="a").feature.fid_v2_list.value.extend([item, 1 << 50])
        data.feature_columns.add(name="b").feature.float_lists.list.add().value.extend([0.5, 1.5])
        data.feature_columns.add(name="c").feature.bytes_list.value.extend([b"", b"xyz"])
        data.feature_columns.add(name="d").feature.int64_list.value.extend([-1, 300])
        data.feature_columns.add(name="e").feature.double_list.value.append(2.5)
    return message


def test_a_pool_reads_and_writes_the_originals_messages() -> None:
    pool = ItemPool(["a", "b", "c", "d", "e"])
    caches = [cache(-2, [5]), cache(3, [9, 4, 7])]
    pool.restore(stream_of(*reversed(caches)))
    assert pool.channels == [-2, 3]
    assert len(pool) == 4
    assert [tuple(item) for item in pool.items(3)] == [(9, 2, 0), (4, 2, 1), (7, 2, 1)]
    assert messages_of(pool.state()) == caches


def test_features_that_the_pool_does_not_have_are_left_out() -> None:
    pool = ItemPool(["c", "new"])
    pool.restore(stream_of(cache(3, [1])))
    (message,) = messages_of(pool.state())
    assert [column.name for column in message.feature_datas[0].feature_columns] == ["c"]


def test_a_smaller_pool_takes_the_newest_items() -> None:
    pool = ItemPool(["a"], max_items=2)
    pool.restore(stream_of(cache(3, [1, 2, 3]), cache(3, [4])))
    assert [item.id for item in pool.items(3)] == [3, 4]


@given(st.lists(st.integers(-8, 8).filter(bool), unique=True), st.integers(1, 4))
def test_shards_make_up_the_whole(channels: list[int], shards: int) -> None:
    pool = ItemPool(["a"])
    pool.restore(stream_of(*(cache(channel, [channel + 100, 7]) for channel in channels)))
    other = ItemPool(["a"])
    other.restore(*(pool.state(shard, shards) for shard in range(shards)))
    assert other.state() == pool.state()


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=1), st.booleans())
def test_damage_is_an_error_and_changes_nothing(place: int, byte: bytes, cut: bool) -> None:
    state = stream_of(cache(3, [1, 2, 3]))
    place %= len(state)
    damaged = state[:place] if cut else state[:place] + byte + state[place + 1 :]
    pool = ItemPool(["a"])
    pool.restore(stream_of(cache(8, [6])))
    if damaged in (state, b""):
        return
    with pytest.raises(RecordCorrupt, match="item pool"):
        pool.restore(damaged)
    assert pool.channels == [8]


def test_a_message_of_another_kind_is_an_error() -> None:
    with pytest.raises(RecordCorrupt, match="not a ChannelCache message"):
        ItemPool(["a"]).restore(_native.frame_record(b"\x12\x05\x08"))


# --- files ---


def operation(bench: Any, items: list[int], **settings: Any) -> Any:
    made = NegativeGen(neg_num=1, item_features=["item"], start_num=1, **settings).build(bench.context)
    rows = []
    for item in items:
        row = Example(label=[0.0])
        row.line_id.item_id = item
        row.named_feature.add(name="item").feature.fid_v2_list.value.append(item)
        row.named_feature.add(name="channel").feature.fid_v2_list.value.append(item % 5 + 1)
        rows.append(row)
    made.run(bench.rows(rows))
    return made


def ids(op: Any) -> list[list[int]]:
    return [[item.id for channel in pool.channels for item in pool.items(channel)] for pool in pools_of([op])]


def test_all_pools_of_a_pipeline_are_saved_in_order(bench: Any, tmp_path: Path) -> None:
    ops = [operation(bench, [5, 3, 9]), operation(bench, [8, 1])]
    files = save_pools(ops, tmp_path / "new", 100, worker=1, workers=3)
    assert [path.name for path in files] == ["model.ckpt-100_item_pool_1_0_3", "model.ckpt-100_item_pool.1_1_0_3"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == sorted(path.name for path in files)
    restored = [operation(bench, []), operation(bench, [])]
    assert restore_pools(restored, tmp_path / "new", worker=1) == 100
    assert [ids(op) for op in restored] == [[[5, 3, 9]], [[8, 1]]]


def test_shards_split_channels_and_shard_0_comes_last(bench: Any, tmp_path: Path) -> None:
    op = operation(bench, list(range(1, 30)), per_channel=True, channel_feature="channel")
    files = save_pools([op], tmp_path, 7, worker=0, workers=1, shards=3)
    assert [path.name[-3:-2] for path in files] == ["2", "1", "0"]
    for shard, path in zip((2, 1, 0), files, strict=True):
        assert {message.channel_id % 3 for message in messages_of(path.read_bytes())} == {shard}
    other = operation(bench, [])
    assert restore_pools([other], tmp_path, worker=0) == 7
    assert other.state() == op.state()


def test_a_worker_takes_the_files_of_its_number_modulo_those_saved(bench: Any, tmp_path: Path) -> None:
    for worker in range(2):
        save_pools([operation(bench, [10 + worker])], tmp_path, 5, worker=worker, workers=2)
    for worker, expected in [(0, [10]), (1, [11]), (2, [10]), (5, [11])]:
        op = operation(bench, [99])
        assert restore_pools([op], tmp_path, worker=worker) == 5
        assert ids(op) == [expected]


def test_the_newest_step_that_is_not_too_new_is_taken(bench: Any, tmp_path: Path) -> None:
    for step in (10, 20, 100):
        save_pools([operation(bench, [step])], tmp_path, step, worker=0, workers=1)
    (tmp_path / "model.ckpt-50_item_pool_0_1_1").write_bytes(b"")  # its shard 0 was never written
    (tmp_path / "model.ckpt-60_item_pool_0_0_1-tmp-ab").write_bytes(b"torn")
    for wanted, expected in [(None, 100), (100, 100), (99, 20), (20, 20), (19, 10)]:
        op = operation(bench, [])
        assert restore_pools([op], tmp_path, worker=0, step=wanted) == expected
        assert ids(op) == [[expected]]
    assert restore_pools([operation(bench, [])], tmp_path, worker=0, step=9) is None
    assert restore_pools([operation(bench, [])], tmp_path / "none", worker=0) is None


def test_names_without_a_step_are_taken_when_no_others_fit(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "item_pool_0_0_1").write_bytes(operation(bench, [77]).state())
    op = operation(bench, [1])
    assert restore_pools([op], tmp_path, worker=3, step=5) == -1
    assert ids(op) == [[77]]
    save_pools([operation(bench, [4])], tmp_path, 5, worker=0, workers=1)
    assert restore_pools([op], tmp_path, worker=3, step=5) == 5


def test_a_pool_without_a_file_stays_and_is_logged(
    bench: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_pools([operation(bench, [4])], tmp_path, 5, worker=0, workers=1)
    ops = [operation(bench, []), operation(bench, [6])]
    with caplog.at_level(logging.WARNING):
        assert restore_pools(ops, tmp_path, worker=0) == 5
    assert [ids(op) for op in ops] == [[[4]], [[6]]]
    assert "no item pool file" in caplog.text
    assert "pool=1" in caplog.text


def test_a_torn_file_is_refused_by_name(bench: Any, tmp_path: Path) -> None:
    (path,) = save_pools([operation(bench, [4, 5])], tmp_path, 5, worker=0, workers=1)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(RecordCorrupt, match=r"model\.ckpt-5_item_pool_0_0_1"):
        restore_pools([operation(bench, [])], tmp_path, worker=0)


def test_impossible_places_are_refused(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="worker 2 of 2"):
        save_pools([], tmp_path, 1, worker=2, workers=2)
