from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.data.records.messages import Example, Instance
from monolith.data.transforms import InBatchNegatives, NegativeGen, pools_of


def feature(row: Any, name: str) -> list[int]:
    return [value for each in row.named_feature if each.name == name for value in each.feature.fid_v2_list.value]


def make_row(item: int, *, label: float = 0.0, user: int = 0, channel: int | None = None, **line_id: Any) -> Any:
    row = Example(label=[label, 7.0])
    row.line_id.item_id = item
    for name, value in line_id.items():
        if isinstance(value, list):
            getattr(row.line_id, name).extend(value)
        else:
            setattr(row.line_id, name, value)
    features = {"user": [user], "item": [item, item + 1000]}
    if channel is not None:
        features["channel"] = [channel]
    for name, ids in features.items():
        row.named_feature.add(name=name).feature.fid_v2_list.value.extend(ids)
    row.named_feature.add(name="price").feature.float_list.value.append(item / 4)
    return row


def negative_gen(**settings: Any) -> NegativeGen:
    return NegativeGen(**{"neg_num": 2, "item_features": ["item", "price"], "start_num": 3, **settings})


ITEMS = [make_row(item) for item in range(1, 6)]


def test_a_positive_is_preceded_by_negatives_with_its_own_user(bench: Any) -> None:
    positive = make_row(99, label=1.0, user=42, uid=7, actions=[1, 2], device_type="ios")
    result = bench.run(negative_gen(), [*ITEMS, positive])
    assert [row.line_id.item_id for row in result[:5]] == [1, 2, 3, 4, 5]
    *negatives, last = result[5:]
    assert len(negatives) == 2
    assert last.line_id == positive.line_id
    assert list(last.label) == [1, 7]
    for row in negatives:
        item = row.line_id.item_id
        assert item in range(1, 6)
        assert feature(row, "user") == [42]
        assert feature(row, "item") == [item, item + 1000]
        price = [value for each in row.named_feature if each.name == "price" for value in each.feature.float_list.value]
        assert price == [item / 4]
        assert list(row.label) == [-1, 7]
        assert (row.line_id.uid, row.line_id.device_type) == (7, "ios")
        assert list(row.line_id.actions) == [1, 2]


def test_nothing_is_drawn_until_a_channel_has_more_than_start_num(bench: Any) -> None:
    positives = [make_row(item, label=1.0) for item in range(1, 7)]
    result = bench.run(negative_gen(start_num=4), positives)
    # The fifth positive makes five items.
    assert Counter(row.label[0] for row in result) == {1: 6, -1: 4}
    assert [row.label[0] for row in result][-3:] == [-1, -1, 1]


def test_weights_follow_the_formula(bench: Any) -> None:
    bench.seed = 5
    step = negative_gen(neg_num=6, neg_sample_decay_factor=0.5, negative_label=-9)
    operation = step.build(bench.context)
    rows = bench.rows([*ITEMS, make_row(99, label=1.0)])
    operation.run(rows)
    (pool,) = pools_of([operation])
    places = {item.id: place for place, item in enumerate(pool.items(3))}
    assert list(places) == [1, 2, 3, 4, 5, 99]
    sampled: Counter[int] = Counter()
    negatives = [row for row in bench.examples(rows) if row.label[0] == -9]
    assert len(negatives) == 6
    for row in negatives:
        item = row.line_id.item_id
        sampled[item] += 1
        expected = 1 + 6 * ((places[item] + 1) / 6) ** 0.5 / sampled[item]
        assert row.instance_weight == pytest.approx(expected, rel=1e-6)
    assert {item.id: item.sampled for item in pool.items(3) if item.sampled} == dict(sampled)


def test_weights_may_be_given(bench: Any) -> None:
    rows = [*ITEMS, make_row(99, label=1.0)]
    result = bench.run(negative_gen(sampled_neg_instance_weight=0.25, real_neg_instance_weight=0.5), rows)
    assert {(row.label[0], row.instance_weight) for row in result} == {(0, 0.5), (-1, 0.25), (1, 1)}
    result = bench.run(negative_gen(unbias_sampled_neg=False, real_neg_instance_weight=0), rows)
    assert {(row.label[0], row.instance_weight) for row in result} == {(0, 1), (-1, 1), (1, 1)}


def test_the_first_sighting_counts_and_the_oldest_leaves(bench: Any) -> None:
    operation = negative_gen(max_item_num=4).build(bench.context)
    changed = make_row(2)
    changed.named_feature[1].feature.fid_v2_list.value[:] = [555]
    operation.run(bench.rows([*ITEMS[:3], changed, changed, ITEMS[3], ITEMS[4]]))
    (pool,) = pools_of([operation])
    assert [(item.id, item.seen) for item in pool.items(3)] == [(2, 3), (3, 1), (4, 1), (5, 1)]
    rows = bench.rows([make_row(99, label=1.0) for _ in range(30)])
    operation.run(rows)
    drawn = {row.line_id.item_id: feature(row, "item") for row in bench.examples(rows) if row.label[0] == -1}
    assert all(ids == [item, item + 1000] for item, ids in drawn.items())


def test_channels_are_kept_apart_and_rows_without_one_left_out(bench: Any) -> None:
    rows = [make_row(item, channel=5 + item % 2) for item in range(1, 21)]
    rows += [make_row(500), make_row(501, label=1.0)]  # no channel
    positives = [make_row(600 + i, label=1.0, channel=6) for i in range(20)]
    operation = negative_gen(per_channel=True, channel_feature="channel").build(bench.context)
    lot = bench.rows([*rows, *positives])
    operation.run(lot)
    (pool,) = pools_of([operation])
    assert pool.channels == [5, 6]
    assert 500 not in {item.id for channel in pool.channels for item in pool.items(channel)}
    result = bench.examples(lot)
    assert [row.label[0] for row in result[20:22]] == [0, 1]  # a positive without a channel gets no negative
    drawn = {row.line_id.item_id for row in result if row.label[0] == -1}
    assert drawn
    assert all(item % 2 == 1 or item >= 600 for item in drawn)


def test_easy_negatives_come_from_channels_by_size(bench: Any) -> None:
    rows = [make_row(item, channel=5) for item in range(1, 91)] + [
        make_row(item, channel=6) for item in range(101, 111)
    ]
    positives = [make_row(101, label=1.0, channel=6) for _ in range(500)]
    step = negative_gen(per_channel=True, channel_feature="channel", easy_hard_ratio=1.0)
    drawn = [row.line_id.item_id for row in bench.run(step, [*rows, *positives]) if row.label[0] == -1]
    assert sum(item <= 90 for item in drawn) / len(drawn) == pytest.approx(0.9, abs=0.05)


def test_draws_are_uniform_and_never_the_own_item(bench: Any) -> None:
    positives = [make_row(3, label=1.0) for _ in range(2000)]
    drawn = Counter(
        row.line_id.item_id for row in bench.run(negative_gen(), [*ITEMS, *positives]) if row.label[0] == -1
    )
    assert set(drawn) == {1, 2, 4, 5}
    assert min(drawn.values()) / max(drawn.values()) > 0.85
    drawn = Counter(
        row.line_id.item_id
        for row in bench.run(negative_gen(exclude_own_item=False), [*ITEMS, *positives])
        if row.label[0] == -1
    )
    assert set(drawn) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("settings", "pooled"),
    [
        ({}, [1, 2, 3]),
        ({"cache_only_pos": True}, [2]),
        ({"cache_only_pos": True, "cache_negative_actions": [8]}, [2, 3]),
        ({"origin_neg_in_pool_proba": 0.0}, [2]),
    ],
)
def test_positive_items_enter_the_pool(bench: Any, settings: dict[str, Any], pooled: list[int]) -> None:
    operation = negative_gen(**settings).build(bench.context)
    operation.run(bench.rows([make_row(1), make_row(2, label=1.0), make_row(3, actions=[8]), make_row(0)]))
    assert [item.id for item in pools_of([operation])[0].items(3)] == pooled


def test_originals_may_be_thrown_away(bench: Any) -> None:
    rows = [*ITEMS, make_row(9, label=1.0)]
    assert [row.label[0] for row in bench.run(negative_gen(throw_origin=True), rows)] == [-1, -1]
    assert [row.label[0] for row in bench.run(negative_gen(throw_origin_neg=True), rows)] == [-1, -1, 1]


@pytest.mark.parametrize(
    ("actions", "priority", "is_positive"),
    [
        ([2], "", True),
        ([1], "", False),
        ([], "", False),
        ([1, 2], "1,2", False),
        ([2, 1], "2,1", True),
        ([2], "5", True),
    ],
)
def test_positives_by_action(bench: Any, actions: list[int], priority: str, is_positive: bool) -> None:
    step = negative_gen(positive_actions=[2], action_priority=priority, negative_action=-5)
    result = bench.run(step, [*ITEMS, make_row(9, actions=actions)])
    assert len(result) == (8 if is_positive else 6)
    assert all(list(row.line_id.actions) == [-5] for row in result if row.label[0] == -1)


def test_an_item_may_be_named_by_a_feature(bench: Any) -> None:
    rows = [make_row(0) for _ in range(5)]
    for i, row in enumerate(rows):
        row.named_feature.add(name="gid").feature.fid_v2_list.value.extend([70 + i, 1])
    operation = negative_gen(index_feature="gid").build(bench.context)
    operation.run(bench.rows(rows))
    assert [item.id for item in pools_of([operation])[0].items(3)] == [70, 71, 72, 73, 74]


def test_items_of_an_instance_are_slots_of_its_flat_ids(make_bench: Any) -> None:
    bench = make_bench("instance")

    def instance(item: int, label: float = 0.0, user: int = 0) -> Any:
        row = Instance(fid=[fid.make_v1(1, user), fid.make_v1(200, item), fid.make_v1(201, item)], label=[label])
        row.line_id.item_id = item
        return row

    step = NegativeGen(neg_num=2, item_features=[200, "fc_slot_201"], start_num=3)
    result = bench.run(step, [*(instance(item) for item in range(1, 6)), instance(9, 1.0, user=4)])
    negatives = [row for row in result if row.label[0] == -1]
    assert len(negatives) == 2
    for row in negatives:
        ids = {each.name: list(each.feature.fid_v1_list.value) for each in row.named_feature}
        item = row.line_id.item_id
        assert item in range(1, 6)
        assert ids == {
            "fc_slot_1": [fid.make_v1(1, 4)],
            "fc_slot_200": [fid.make_v1(200, item)],
            "fc_slot_201": [fid.make_v1(201, item)],
        }


# --- resuming ---


def lots() -> list[list[Any]]:
    rng = np.random.default_rng(3)
    rows = [
        make_row(int(rng.integers(1, 40)), label=float(rng.random() < 0.4), user=i, channel=int(rng.integers(0, 4)))
        for i in range(300)
    ]
    return [rows[begin : begin + 25] for begin in range(0, 300, 25)]


def bytes_of(bench: Any, rows: Any) -> list[bytes]:
    return [row.SerializeToString(deterministic=True) for row in bench.examples(rows)]


SMALL = {"per_channel": True, "channel_feature": "channel", "max_item_num": 8, "easy_hard_ratio": 0.3, "start_num": 2}


@pytest.mark.parametrize("stop", range(0, 12, 3))
def test_after_a_restore_the_same_rows_give_the_same_negatives(make_bench: Any, stop: int) -> None:
    bench = make_bench(seed=1)
    operation = negative_gen(**SMALL).build(bench.context)
    outputs, marks, states, begins = [], [], [], []
    for lot in lots():
        marks.append(operation.mark())
        states.append(operation.state())
        begins.append(bench.parser.next_row)
        rows = bench.rows(lot)
        operation.run(rows)
        outputs.append(bytes_of(bench, rows))
    # The reader is twelve lots ahead; the oldest row in flight is of lot `stop`.
    state = operation.state_at(marks[stop])
    assert state == states[stop]

    other = make_bench(seed=1)
    resumed = negative_gen(**SMALL).build(other.context)
    resumed.restore(state)
    other.parser.next_row = begins[stop]
    for lot, expected in list(zip(lots(), outputs, strict=True))[stop:]:
        rows = other.rows(lot)
        resumed.run(rows)
        assert bytes_of(other, rows) == expected
    assert resumed.state() == operation.state()


def test_the_log_reaches_back_to_the_oldest_live_mark_only(bench: Any) -> None:
    operation = negative_gen(**SMALL).build(bench.context)
    (pool,) = operation.pools
    window: list[Any] = []
    sizes = []
    for lot in lots() * 5:
        window.append(operation.mark())
        if len(window) > 3:
            del window[0]
        operation.run(bench.rows(lot))
        sizes.append(pool.log_size)
    assert max(sizes) < 3 * 25 * 6
    assert sizes[-1] > 0
    window.clear()
    operation.run(bench.rows(lots()[0]))
    assert pool.log_size == 0


def test_marks_may_be_dropped_by_another_thread_while_rows_run(bench: Any) -> None:
    operation = negative_gen(**SMALL).build(bench.context)
    marks: list[Any] = []
    done = threading.Event()

    def drop() -> None:
        while not done.is_set():
            if len(marks) > 2:
                del marks[0]

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        for lot in lots() * 4:
            marks.append(operation.mark())
            operation.run(bench.rows(lot))
    finally:
        done.set()
        thread.join()
    last = operation.mark()
    assert operation.state_at(last) == operation.state()


def test_a_mark_of_another_operation_or_before_a_restore_is_refused(bench: Any) -> None:
    one, two = negative_gen().build(bench.context), negative_gen().build(bench.context)
    mark = one.mark()
    with pytest.raises(ConfigError, match="another operation"):
        two.state_at(mark)
    one.restore(one.state())
    with pytest.raises(ConfigError, match="mark 1 is not live"):
        one.state_at(mark)


# --- in-batch ---


def test_negatives_follow_their_positive_with_items_of_other_rows(bench: Any) -> None:
    rows = [make_row(item, label=float(item % 2), user=item * 10) for item in range(1, 9)]
    rows[0].instance_weight = 3.0
    result = bench.run(InBatchNegatives(num=2, item_features=["item", "price"], weight=0.5), rows)
    assert len(result) == 8 + 4 * 2
    assert [row.label[0] for row in result[:4]] == [1, 0, 0, 0]
    assert result[0].instance_weight == 3
    for row in result[1:3]:
        item = row.line_id.item_id
        assert item in range(2, 9)
        assert feature(row, "item") == [item, item + 1000]
        assert feature(row, "user") == [10]
        assert (row.instance_weight, list(row.label)) == (0.5, [0, 7])


def test_in_batch_draws_repeat_and_leave_the_own_item_out(make_bench: Any) -> None:
    rows = [make_row(1 + i % 3, label=1.0, user=i) for i in range(60)]
    step = InBatchNegatives(num=3, item_features=["item"], negative_label=-1)
    first = make_bench(seed=4).run(step, rows)
    assert first == make_bench(seed=4).run(step, rows)
    assert first != make_bench(seed=5).run(step, rows)
    for row in first:
        if row.label[0] == -1:
            assert row.line_id.item_id != 1 + feature(row, "user")[0] % 3


def test_a_batch_of_one_item_has_no_negatives(bench: Any) -> None:
    rows = [make_row(5, label=1.0) for _ in range(10)]
    assert len(bench.run(InBatchNegatives(num=3, item_features=["item"]), rows)) == 10
    assert len(bench.run(InBatchNegatives(num=3, item_features=["item"]), rows[:1])) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NegativeGen(neg_num=1), "item_features is empty"),
        (lambda: negative_gen(neg_num=-1), "NegativeGen.neg_num is -1"),
        (lambda: negative_gen(start_num=10, max_item_num=10), "make start_num smaller"),
        (lambda: negative_gen(per_channel=True), "per_channel needs channel_feature"),
        (lambda: negative_gen(easy_hard_ratio=0.5), "easy_hard_ratio needs per_channel"),
        (lambda: negative_gen(origin_neg_in_pool_proba=2), "origin_neg_in_pool_proba is 2"),
        (lambda: negative_gen(item_features=["a", "a"]), "a feature twice"),
        (lambda: negative_gen(item_features=[""]), "item_features has ''"),
        (lambda: InBatchNegatives(num=0, item_features=["a"]), "InBatchNegatives.num is 0"),
    ],
)
def test_bad_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
