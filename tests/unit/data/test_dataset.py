"""Datasets: order, steps, and resuming at the exact record at every kind of stop."""

from __future__ import annotations

import gc
import io
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import monolith as mt
from monolith import _native
from monolith.core.errors import ConfigError, DataError, RecordCorrupt, SchemaMismatch
from monolith.data import Batch, Dataset, DenseFeature, Framing, RecordWriter, Schema, SparseFeature
from monolith.data.records.messages import Example, ExampleBatch
from monolith.data.sources.queue import QueueSource
from monolith.data.sources.work_list import MemoryWorkList
from monolith.data.stages import ShuffleStage
from monolith.data.transforms import NegativeGen

SCHEMA = Schema(sparse=[SparseFeature("user", slot=1), SparseFeature("item", slot=2)], dense=[DenseFeature("x", 2)])
FRAMING = Framing(sort_id=True, kafka_dump=True)


def example(number: int) -> Any:
    row = Example()
    row.named_feature.add(name="user").feature.fid_v2_list.value.extend([1 << 48 | number])
    row.named_feature.add(name="item").feature.fid_v2_list.value.extend([2 << 48 | number % 7] * (number % 3))
    row.named_feature.add(name="x").feature.float_list.value.extend([number, -number])
    row.line_id.uid = number
    row.line_id.item_id = number % 7 + 1
    row.line_id.req_time = 1_000_000 + number
    row.line_id.actions.append(number % 5)
    row.label.append(number % 2)
    return row


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five files of Examples, 100 rows in all, in different codecs."""
    number = 0
    for index, (size, suffix) in enumerate([(13, ""), (0, ""), (37, ".zst"), (1, ".gz"), (49, "")]):
        compression = {"": "none", ".zst": "zstd", ".gz": "gzip"}[suffix]
        with RecordWriter(tmp_path / f"part-{index}.pb{suffix}", framing=FRAMING, compression=compression) as writer:
            for _ in range(size):
                writer.write(example(number).SerializeToString())
                number += 1
    return tmp_path


def open_files(folder: Path, **options: Any) -> Dataset:
    return mt.data.files(f"{folder}/part-*", record="example", framing=FRAMING, schema=SCHEMA, **options)


def uids(batches: Any) -> list[int]:
    return [uid for batch in batches for uid in batch.uid.tolist()]


# --- reading ---


def test_batches_hold_every_row_once_and_in_order(folder: Path) -> None:
    batches = list(open_files(folder).batch(16))
    assert uids(batches) == list(range(100))
    assert [batch.size for batch in batches] == [16] * 6 + [4]
    assert [batch.size for batch in open_files(folder).batch(16, drop_last=True)] == [16] * 6
    first = batches[0]
    assert first["user"].tolist() == [[1 << 48 | number] for number in range(16)]
    assert first["item"].tolist() == [[2 << 48 | number % 7] * (number % 3) for number in range(16)]
    assert first["x"][5].tolist() == [5, -5]
    assert first.label[:, 0].tolist() == [number % 2 for number in range(16)]
    assert first.event_time_s[3] == 1_000_003
    assert first.actions.tolist() == [[number % 5] for number in range(16)]


def test_a_dataset_can_be_read_again_and_shares_nothing(folder: Path) -> None:
    dataset = open_files(folder).batch(7).prefetch(2)
    assert uids(dataset) == uids(dataset) == list(range(100))
    one, two = iter(dataset), iter(dataset)
    assert next(one).uid.tolist() == next(two).uid.tolist() == list(range(7))


def test_rows_are_messages_before_batch(folder: Path) -> None:
    rows = list(open_files(folder))
    assert [row.line_id.uid for row in rows] == list(range(100))
    assert rows[9] == rows[9].FromString(rows[9].SerializeToString())
    assert {named.name for named in rows[5].named_feature} == {"user", "item", "x"}


def test_arrays_outlive_the_batch_and_cannot_be_written(folder: Path) -> None:
    batch = next(iter(open_files(folder).batch(10)))
    values = batch["user"].values
    del batch
    assert values[9] == 1 << 48 | 9
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 0


def test_reading_on_needs_no_more_memory(folder: Path) -> None:
    dataset = open_files(folder).batch(25)
    gc.disable()  # nothing may wait for it
    try:
        held = []
        for _ in range(30):
            for batch in dataset:
                assert batch["user"].values.size
                assert batch["x"].size
            held.append(_native.pooled_bytes())
        assert held[-1] <= held[10]
    finally:
        gc.enable()


def test_torch_tensors_are_views_of_the_same_memory(folder: Path) -> None:
    batch = next(iter(open_files(folder).batch(10)))
    tensors = batch.as_torch()
    assert tensors["user"].values.data_ptr() == batch["user"].values.ctypes.data
    assert tensors.dense["x"].data_ptr() == batch.dense["x"].ctypes.data
    assert tensors.label_mask.dtype.is_floating_point is False
    assert tensors.to("cpu").label.tolist() == batch.label.tolist()
    assert np.array_equal(tensors.numpy().dense["x"], batch.dense["x"])


# --- resuming ---


def negatives(dataset: Dataset) -> Dataset:
    return dataset.transform(NegativeGen(neg_num=2, item_features=["item"], start_num=2, max_item_num=5))


PIPELINES: dict[str, Callable[[Dataset], Dataset]] = {
    "plain": lambda ds: ds.batch(7),
    "prefetch": lambda ds: ds.batch(7).prefetch(3),
    "filter": lambda ds: ds.filter_by_action(has_actions=[1, 2, 3]).batch(7),
    "sample": lambda ds: ds.negative_sample(drop_rate=0.5, threshold=0.5).batch(5),
    "shuffle": lambda ds: ds.shuffle(32, seed=3).batch(7),
    "shuffle all": lambda ds: ds.shuffle(1000).batch(9).prefetch(2),
    "repeat": lambda ds: ds.repeat(3).batch(11),
    "shuffle then repeat": lambda ds: ds.shuffle(17).repeat(2).batch(8),
    "repeat then shuffle": lambda ds: ds.repeat(2).shuffle(150).batch(8),
    "map rows": lambda ds: ds.map(lambda row: [row, row] if row.line_id.uid % 3 else None).batch(6),
    "map batches": lambda ds: ds.batch(6).map(lambda batch: batch if batch.uid[1] % 4 else None),
    "negatives": lambda ds: negatives(ds).batch(7),
    "negatives, shuffle, prefetch": lambda ds: negatives(ds).shuffle(40).batch(7).prefetch(2),
    "reweight": lambda ds: ds.instance_reweight(action_priority="1,2,3,4", reweight="1:2:1,2:3:0").batch(4),
    "merge": lambda ds: ds.filter_by_action(has_actions=[1]).merge_flow(ds.shuffle(20), block=3).batch(7),
    "joined batches": lambda ds: ds.shuffle(20).batch(4).merge_batches(3).prefetch(2),
    "rows": lambda ds: ds,
}


def printed(item: Any) -> str:
    """Everything that an item holds."""
    if not isinstance(item, Batch):
        return str(item)
    arrays = [item.label, item.label_mask, item.weight, item.sample_rate, item.event_time_s, item.uid, item.dense["x"]]
    return repr([array.tolist() for array in arrays] + [item.ids[name].tolist() for name in item.ids])


@pytest.mark.parametrize("name", PIPELINES)
def test_a_resumed_run_returns_the_same_items_as_an_uninterrupted_one(folder: Path, name: str) -> None:
    def make() -> Dataset:
        return PIPELINES[name](open_files(folder, seed=11, interleave=2))

    whole = [printed(item) for item in make()]
    assert len(whole) > 5
    for stop in range(0, len(whole) + 1, max(1, len(whole) // 9)):
        dataset = make()
        reading = iter(dataset)
        head = [printed(next(reading)) for _ in range(stop)]
        state = json.loads(json.dumps(dataset.state()))
        del reading
        resumed = make()
        resumed.restore(state)
        assert resumed.state() == state
        tail = [printed(item) for item in resumed]
        assert head + tail == whole, f"stopped after {stop}"


def test_a_state_that_was_taken_twice_is_the_same(folder: Path) -> None:
    dataset = PIPELINES["negatives, shuffle, prefetch"](open_files(folder))
    for number, _ in enumerate(dataset):
        if number == 4:
            assert dataset.state() == dataset.state()


def test_at_the_end_nothing_more_comes(folder: Path) -> None:
    dataset = open_files(folder).batch(16)
    list(dataset)
    again = open_files(folder).batch(16)
    again.restore(dataset.state())
    assert list(again) == []


def test_a_state_of_other_steps_is_refused(folder: Path) -> None:
    dataset = open_files(folder).batch(16)
    next(iter(dataset))
    with pytest.raises(DataError, match=r"source > shuffle\(10\) > batched"):
        open_files(folder).shuffle(10).batch(16).restore(dataset.state())
    shuffled = open_files(folder).shuffle(20).batch(16)
    next(iter(shuffled))
    with pytest.raises(DataError, match=r"shuffle\(20\) > batched', this dataset has .*shuffle\(10\)"):
        open_files(folder).shuffle(10).batch(16).restore(shuffled.state())
    earlier = {**shuffled.state(), "steps": "source > shuffle > batched"}
    shuffled.restore(earlier)  # a state of an earlier release
    with pytest.raises(DataError, match="version"):
        dataset.restore({})


def test_a_missing_file_fails_the_resume(folder: Path) -> None:
    dataset = open_files(folder).batch(60)
    next(iter(dataset))
    state = dataset.state()
    (folder / "part-4.pb").unlink()
    again = open_files(folder).batch(60)
    again.restore(state)
    with pytest.raises((DataError, ConfigError), match=r"part-4|9 more rows"):
        list(again)
    assert again.state() == state


@pytest.mark.parametrize("batches", [0, 1, 3, 4])
@pytest.mark.parametrize("packs", [True, False])
def test_a_window_that_the_end_has_cut_stays_as_it_was(
    batches: int, packs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files may follow at the end of the list, and records at the end of a stream."""
    if not packs:
        monkeypatch.setattr(ShuffleStage, "_MOST_PACKED", 0)
    files = [tmp_path / f"{number}.pb" for number in range(2)]
    for begin, file in zip((0, 40), files, strict=True):
        with RecordWriter(file, framing=FRAMING) as writer:
            for number in range(begin, begin + 40):
                writer.write(example(number).SerializeToString())

    def make(count: int) -> Dataset:
        return mt.data.files(files[:count], record="example", framing=FRAMING, schema=SCHEMA).shuffle(100).batch(9)

    dataset = make(1)
    reading = iter(dataset)
    head = uids([next(reading) for _ in range(batches)])
    state = json.loads(json.dumps(dataset.state()))
    resumed = make(2)
    resumed.restore(state)
    assert sorted(head + uids(resumed)) == list(range(80))


def test_rows_that_an_incomplete_batch_drops_follow_when_there_are_more(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.pb" for number in range(2)]
    for begin, file in zip((0, 10), files, strict=True):
        with RecordWriter(file, framing=FRAMING) as writer:
            for number in range(begin, begin + 10):
                writer.write(example(number).SerializeToString())

    def make(count: int, merged: int) -> Dataset:
        rows = mt.data.files(files[:count], record="example", framing=FRAMING, schema=SCHEMA)
        return rows.batch(4 // merged, drop_last=True).merge_batches(merged, drop_last=True)

    for merged in (1, 2):
        dataset = make(1, merged)
        assert uids(dataset) == list(range(8))
        again = make(1, merged)
        again.restore(dataset.state())
        assert list(again) == []
        resumed = make(2, merged)
        resumed.restore(again.state())
        assert uids(resumed) == list(range(8, 20))


# --- steps ---


def test_shuffle_keeps_every_row_and_depends_on_the_seed(folder: Path) -> None:
    orders = [uids(open_files(folder, seed=seed).shuffle(64).batch(10)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(100))
    assert sorted(orders[0][:64]) == list(range(64)), "windows do not mix"
    assert orders[0][:64] != list(range(64))


@pytest.mark.parametrize("size", [64, 1000])
def test_a_window_that_is_packed_late_has_the_same_order(
    folder: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed_early = uids(open_files(folder).shuffle(size).batch(10))
    monkeypatch.setattr(ShuffleStage, "_MOST_PACKED", 0)
    assert uids(open_files(folder).shuffle(size).batch(10)) == packed_early


def test_shuffle_buffer_of_files_is_shuffle(folder: Path) -> None:
    assert uids(open_files(folder, shuffle_buffer=50).batch(9)) == uids(open_files(folder).shuffle(50).batch(9))


def test_epochs_differ_in_their_random_choices(folder: Path) -> None:
    rows = uids(open_files(folder).negative_sample(drop_rate=0.5, threshold=2).repeat(2).batch(10))
    turn = next(place for place in range(1, len(rows)) if rows[place] < rows[place - 1])
    halves = [rows[:turn], rows[turn:]]
    assert 20 < len(halves[0]) < 80
    assert halves[0] != halves[1]


def test_repeating_for_ever_ends_when_there_is_nothing(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "part-0.pb", framing=FRAMING):
        pass
    assert list(open_files(tmp_path).repeat().batch(3)) == []


def test_shards_are_disjoint_and_complete(folder: Path) -> None:
    parts = [uids(open_files(folder, shard=(index, 2)).batch(10)) for index in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(100))


def test_split_flows_can_be_merged_again(tmp_path: Path) -> None:
    names = ["pc", "mobile", "cloud"]
    from monolith.data.records.data_source import data_source_key

    with RecordWriter(tmp_path / "part-0.pb", framing=Framing(lagrangex_header=True)) as writer:
        for number in range(4096):
            writer.write(example(number).SerializeToString(), source=data_source_key(names[number % 3]))
    dataset = mt.data.files(
        tmp_path / "part-0.pb", record="example", framing=Framing(lagrangex_header=True), schema=SCHEMA
    )
    flows = dataset.split_flow(names)
    assert [len(uids(flow.batch(512))) for flow in flows] == [1366, 1365, 1365]
    merged = list(flows[0].merge_flow(*flows[1:]).batch(512))
    assert len(merged) == 8
    assert sorted(uids(merged)) == list(range(4096))
    assert merged[0].uid[:6].tolist() == [0, 1, 2, 3, 4, 5]


def test_an_interrupt_ends_merged_flows_of_a_stream(folder: Path) -> None:
    queue = QueueSource("example")
    queue.put([example(7).SerializeToString()])
    stream = mt.data.from_source(lambda: queue, schema=SCHEMA, is_stream=True)
    merged = open_files(folder).merge_flow(stream).batch(3)
    is_reading = threading.Event()

    def read() -> None:
        for _ in merged:
            is_reading.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert is_reading.wait(30)
    merged.interrupt()
    reader.join(30)
    assert not reader.is_alive()
    assert not open_files(folder).merge_flow(open_files(folder)).is_stream


def test_steps_in_the_wrong_place_are_refused(folder: Path) -> None:
    batched = open_files(folder).batch(4)
    for step in (
        lambda: batched.batch(2),
        lambda: batched.shuffle(10),
        lambda: batched.repeat(),
        lambda: batched.filter_by_action(has_actions=[1]),
        lambda: open_files(folder).prefetch(),
        lambda: open_files(folder).merge_batches(2),
        lambda: batched.merge_batches(0),
        lambda: batched.merge_batches(2).in_batch_negatives(num=1, item_features=["item"]),
        lambda: batched.map(lambda batch: batch).in_batch_negatives(num=1, item_features=["item"]),
        lambda: open_files(folder).in_batch_negatives(num=1, item_features=["item"]),
        lambda: open_files(folder).batch(0),
        lambda: open_files(folder).shuffle(-1),
    ):
        with pytest.raises(ConfigError):
            step()


def test_batches_without_a_schema_are_refused(folder: Path) -> None:
    dataset = mt.data.files(f"{folder}/part-*", record="example", framing=FRAMING).batch(3)
    with pytest.raises(ConfigError, match="schema"):
        next(iter(dataset))
    assert next(iter(dataset.with_schema(SCHEMA))).size == 3


def test_in_batch_negatives_are_drawn_from_the_batch(folder: Path) -> None:
    dataset = open_files(folder).batch(10).in_batch_negatives(num=1, item_features=["item"])
    batch = next(iter(dataset))
    assert batch.size > 10
    assert [one.uid.tolist() for one in dataset] == [one.uid.tolist() for one in dataset]


def test_joined_batches_hold_the_rows_of_several_in_order(folder: Path) -> None:
    joined = list(open_files(folder).batch(16).merge_batches(3))
    assert [batch.size for batch in joined] == [48, 48, 4]
    assert uids(joined) == list(range(100))
    assert [batch.size for batch in open_files(folder).batch(16).merge_batches(3, drop_last=True)] == [48, 48]
    small = [batch.size for batch in open_files(folder).batch(10).in_batch_negatives(num=1, item_features=["item"])]
    large = open_files(folder).batch(10).in_batch_negatives(num=1, item_features=["item"]).merge_batches(5)
    assert [batch.size for batch in large] == [sum(small[:5]), sum(small[5:])], "negatives are those of small batches"


def test_the_text_of_a_transform_config_is_a_step(folder: Path) -> None:
    text = "configs { basic_config { filter_by_action { has_actions: [1, 2] } } }"
    assert uids(open_files(folder).transform(text).batch(10)) == [n for n in range(100) if n % 5 in (1, 2)]


def test_counts_contain_the_rows_in_and_out_of_each_step(folder: Path) -> None:
    dataset = open_files(folder).filter_by_action(has_actions=[1]).batch(10)
    list(dataset)
    assert dataset.counts() == {
        "rows_read": 100,
        "corrupt_records": 0,
        "0.FilterByAction.rows_in": 100,
        "0.FilterByAction.rows_out": 20,
    }


def test_epochs_are_counted_together_and_leave_nothing_behind(folder: Path) -> None:
    once = open_files(folder).filter_by_action(has_actions=[1])
    dataset = once.repeat(3).merge_flow(once.repeat(2)).filter_by_action(has_actions=[1, 2]).batch(10)
    reading = iter(dataset)
    next(reading)
    before = len(dataset.operations)
    list(reading)
    assert len(dataset.operations) == before == 3
    assert dataset.counts() == {
        "rows_read": 500,
        "corrupt_records": 0,
        "0.FilterByAction.rows_in": 300,
        "0.FilterByAction.rows_out": 60,
        "1.FilterByAction.rows_in": 200,
        "1.FilterByAction.rows_out": 40,
        "2.FilterByAction.rows_in": 100,
        "2.FilterByAction.rows_out": 100,
    }


# --- bad data ---


def test_a_corrupt_record_ends_the_reading_or_is_counted(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "part-0.pb", framing=FRAMING) as writer:
        for number in range(10):
            writer.write(example(number).SerializeToString() if number != 4 else b"\xff\xff\xff")
    with pytest.raises(RecordCorrupt, match=r"part-0\.pb: record at byte \d+"):
        list(open_files(tmp_path).batch(4).prefetch(1))
    dataset = open_files(tmp_path, on_corrupt="skip").batch(4)
    assert uids(dataset) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert dataset.counts()["corrupt_records"] == 1
    with pytest.raises(ConfigError, match="on_corrupt"):
        open_files(tmp_path, on_corrupt="ignore")


def test_a_row_that_does_not_fit_names_the_feature(folder: Path) -> None:
    narrow = Schema(dense=[DenseFeature("x", 3)])
    with pytest.raises(SchemaMismatch, match="'x', row 0 of the batch: it has 2 values, its width is 3"):
        next(iter(open_files(folder).with_schema(narrow).batch(4)))


# --- other inputs ---


def test_stdin_is_read_like_a_file(folder: Path) -> None:
    stream = io.BytesIO((folder / "part-0.pb").read_bytes())
    dataset = mt.data.stdin(stream, record="example", framing=FRAMING, schema=SCHEMA)
    assert uids(dataset.batch(5)) == list(range(13))


def test_parquet_and_frames_give_the_same_batches(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {
            "user": np.arange(50) | 1 << 48,
            "price": np.arange(50, dtype=np.float32) / 4,
            "__LABEL__": np.arange(50, dtype=np.float32) % 2,
            "__UID__": np.arange(50),
        }
    )
    frame.to_parquet(tmp_path / "rows.parquet")
    schema = Schema(sparse=["user"], dense=["price"])
    columns = {"user": "fid_v2", "price": "float", "__LABEL__": "float", "__UID__": "int"}
    datasets = [
        mt.data.parquet(str(tmp_path / "*.parquet"), columns, schema=schema).batch(16),
        mt.data.frame(frame, columns, schema=schema).batch(16),
    ]
    for dataset in datasets:
        batches = list(dataset)
        assert uids(batches) == list(range(50))
        assert batches[3]["price"][1] == [49 / 4]
        assert batches[0].label[:4, 0].tolist() == [0, 1, 0, 1]
        assert batches[0]["user"][7].tolist() == [1 << 48 | 7]


def test_shared_columns_stay_stored_once(tmp_path: Path) -> None:
    batch = ExampleBatch(batch_size=6)
    user = batch.named_feature_list.add(name="user", type=1)
    user.feature.add().fid_v2_list.value.extend([5, 6])
    item = batch.named_feature_list.add(name="item")
    for number in range(6):
        item.feature.add().fid_v2_list.value.append(number)
    with RecordWriter(tmp_path / "a.pb", framing=FRAMING) as writer:
        writer.write(batch.SerializeToString())
        writer.write(batch.SerializeToString())
    schema = Schema(sparse=["user", "item"])
    dataset = mt.data.files(tmp_path / "a.pb", record="example_batch", framing=FRAMING, schema=schema)
    first = next(iter(dataset.batch(6)))
    assert first["user"].shared
    assert first["user"].values.tolist() == [5, 6]
    assert first["user"][4].tolist() == [5, 6]
    assert first["user"].expanded(6).tolist() == [[5, 6]] * 6
    assert not first["item"].shared
    spanning = next(iter(dataset.batch(12)))
    assert not spanning["user"].shared
    assert spanning["user"].tolist() == [[5, 6]] * 12


def test_a_row_without_values_does_not_share_those_of_another(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "part-0.pb", framing=FRAMING) as writer:
        for number in range(3):
            row = example(number)
            row.named_feature.add(name="six").feature.fid_v2_list.value.extend(range(1, 7))
            if number == 2:
                row.named_feature.add(name="maybe").feature.fid_v2_list.value.extend(range(1, 7))
            writer.write(row.SerializeToString())
    schema = Schema(sparse=[SparseFeature("cross", slot=9)])
    crossed = open_files(tmp_path).feature_combine(name_a="maybe", name_b="six", slot=9, out="cross")
    for seed in range(20):
        (batch,) = crossed.shuffle(3, seed).with_schema(schema).batch(3)
        sizes = [len(ids) for ids in batch.ids["cross"].expanded(3).tolist()]
        assert sizes == [36 if uid == 2 else 0 for uid in batch.uid.tolist()]


def test_a_schema_can_be_inferred_from_a_file(folder: Path) -> None:
    schema = mt.data.infer_schema(folder / "part-0.pb")
    assert {(each.name, each.slot) for each in schema.sparse_features} == {("user", 1), ("item", 2)}
    assert [(each.name, each.width) for each in schema.dense_features] == [("x", 2)]
    assert schema.labels == 1
    assert Schema.from_json(schema.to_json()) == schema


@pytest.fixture(autouse=True)
def _no_threads_are_left() -> Iterator[None]:
    import threading

    before = threading.active_count()
    yield
    if threading.active_count() > before:
        gc.collect()  # ends the threads of unreachable flows
    assert threading.active_count() <= before


# --- dynamic sharding ---


def shared_readers(files: list[str], state: Any = None) -> tuple[MemoryWorkList, list[Dataset]]:
    shared = MemoryWorkList(files)
    readers = [
        mt.data.files(work_list=shared, worker=f"worker-{number}", record="example", framing=FRAMING, schema=SCHEMA)
        .batch(3)
        .prefetch(2)
        for number in range(2)
    ]
    if state is not None:
        shared.restore(state["list"])
        for reader, place in zip(readers, state["readers"], strict=True):
            reader.restore(place)
    return shared, readers


def write_parts(folder: Path, parts: int) -> list[str]:
    files = []
    for part in range(parts):
        files.append(str(folder / f"part-{part:02d}.pb"))
        with RecordWriter(files[-1], framing=FRAMING) as writer:
            for number in range(part * 10, part * 10 + 10):
                writer.write(example(number).SerializeToString())
    return files


@pytest.mark.parametrize("batches", [1, 3, 4, 5, 7])
def test_no_row_is_lost_when_files_of_a_worker_that_resumes_were_given_away(batches: int, tmp_path: Path) -> None:
    files = write_parts(tmp_path, 5)
    shared, (one, other) = shared_readers(files)
    reading = iter(one)
    seen = uids([next(reading) for _ in range(batches)])
    saved = one.state()
    reading.close()
    shared.requeue("worker-0")  # it is taken for dead
    others = iter(other)
    seen += uids([next(others)])
    one.restore(saved)
    seen += uids(one) + uids(others)
    assert set(seen) == set(range(50))


def test_workers_that_share_a_list_read_each_row_once_and_resume_exactly(tmp_path: Path) -> None:
    files = write_parts(tmp_path, 12)
    for stop in (1, 5, 9):
        shared, readers = shared_readers(files)
        readings = [iter(reader) for reader in readers]
        seen: list[int] = []
        for number in range(stop):
            seen += uids([next(readings[0])])
            if number % 2:  # the second worker is slow
                seen += uids([next(readings[1])])
        # The datasets first, the list last: files that it assigns in between return to it on resume.
        state = json.loads(json.dumps({"readers": [each.state() for each in readers], "list": shared.state()}))
        for reading in readings:
            reading.close()
        _, again = shared_readers(files, state)
        for reader in again:
            seen += uids(reader)
        assert sorted(seen) == list(range(120)), f"stopped after {stop}"
