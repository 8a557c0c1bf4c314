"""Parts of GPU tables that need no GPU: stamps of times, admission, and the words of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.core.errors import CapacityExceeded, ConfigError
from monolith.nn.gpu.admission import Doorkeeper
from monolith.nn.gpu.event_stamps import EventStamps
from monolith.nn.gpu.host_tier import HostTier, choose_cold
from monolith.nn.gpu.source import RowLayout, kernel_text
from rule_choices import CHOICES

# --- times ---


def test_stamps_rise_with_their_times() -> None:
    times = EventStamps()
    stamps = [times.stamp(each)[0] for each in (0, 50, 50, 60, 70)]
    assert stamps == [0, 1, 1, 2, 3]
    assert times.seconds.tolist() == [0, 50, 60, 70]


def test_a_late_time_gets_the_stamp_of_the_next_known_time() -> None:
    times = EventStamps()
    for each in (50, 70):
        times.stamp(each)
    stamp, replacements = times.stamp(60)
    assert times.seconds[stamp] == 70
    assert replacements is None


def test_stamps_that_run_out_join_close_times_and_no_row_gets_an_older_time() -> None:
    random = np.random.default_rng(1)
    times = EventStamps(most=64)
    expected = np.zeros(500, np.int64)  # exact times of rows
    stamps = np.zeros(500, np.int32)
    now, renumbered = 1_000, 0
    for _ in range(1000):
        now += int(random.integers(0, 30))
        stamp, replacements = times.stamp(now)
        if replacements is not None:
            renumbered += 1
            stamps = replacements[stamps]
        rows = random.integers(0, 500, 3)
        stamps[rows] = np.maximum(stamps[rows], stamp)
        expected[rows] = now
        assert len(times.seconds) <= 64
        assert (np.diff(times.seconds) > 0).all()
    late = times.seconds[stamps] - expected
    assert renumbered > 3
    assert (late >= 0).all()
    assert late.max() < 1024  # a period: 15,000 seconds in 16 or more of them
    assert (times.seconds[stamps[expected == 0]] == 0).all()


def test_times_of_a_snapshot_are_known_exactly_and_earlier_stamps_move() -> None:
    times = EventStamps()
    for each in (50, 70):
        times.stamp(each)
    stamps, replacements = times.stamp_all(np.array([60, 0, 90], np.uint32))
    assert times.seconds[stamps].tolist() == [60, 0, 90]
    assert replacements is not None
    assert times.seconds[replacements].tolist() == [0, 50, 70]
    assert times.stamp_all(np.array([60], np.uint32))[1] is None


def test_more_times_than_stamps_in_a_snapshot_are_rounded_up() -> None:
    times = EventStamps(most=16)
    given = np.arange(1, 101, dtype=np.uint32)
    stamps, _ = times.stamp_all(given)
    assert len(times.seconds) <= 16
    assert (times.seconds[stamps] >= given).all()
    assert times.seconds[0] == 0


# --- admission ---


@pytest.mark.parametrize(
    "settings",
    [
        {"admission": mt.SlidingHashFilter(1000), "occurrence_threshold": 3},
        {"admission": mt.SlidingHashFilter(1000), "slot_thresholds": {0: 2, 5: 1}},
        {"admission": mt.ProbabilisticFilter(), "occurrence_threshold": 40},
    ],
    ids=["count", "by_slot", "chance"],
)
def test_a_doorkeeper_admits_the_ids_that_a_table_admits(settings: dict[str, Any]) -> None:
    spec = mt.TableSpec("t", [mt.SliceSpec(2, optimizer=mt.Sgd(1.0))], deterministic=True, seed=4, **settings)
    table, doorkeeper = mt.Table(spec), Doorkeeper(spec)
    random = np.random.default_rng(2)
    rows: set[int] = set()
    for _ in range(30):
        ids = random.integers(0, 60, 40) | (random.integers(0, 2, 40) * 5 << 48)
        table.apply_gradients(ids, np.ones((40, 2), np.float32))
        absent = ids[[each not in rows for each in ids.tolist()]]
        rows |= set(absent[doorkeeper.admit(absent)].tolist())
    present = {int(each) for ids, _ in table.items() for each in ids}
    if isinstance(spec.admission, mt.ProbabilisticFilter):
        assert 0 < len(rows) < 120
    else:
        assert rows == present
        assert rows


def test_admission_counts_move_to_a_table_and_back() -> None:
    spec = mt.TableSpec(
        "t",
        [mt.SliceSpec(1, optimizer=mt.Sgd(1.0)), mt.SliceSpec(2, optimizer=mt.Adagrad(1.0))],
        admission=mt.SlidingHashFilter(1000),
        occurrence_threshold=4,
        expire_days=3,
    )
    doorkeeper, table, other = Doorkeeper(spec), mt.Table(spec), Doorkeeper(spec)
    assert not doorkeeper.admit(np.array([1, 2]), [3, 1]).any()
    doorkeeper.copy_counts_to(table)
    table.apply_gradients([1, 2], np.ones((2, 3)))
    assert not table.contains([1, 2]).any()
    other.take_counts_of(table)
    assert other.admit(np.array([1, 2])).tolist() == [True, False]


def test_admission_counts_of_another_filter_are_refused() -> None:
    def make(capacity: int) -> mt.Table:
        piece = mt.SliceSpec(1, optimizer=mt.Sgd(1.0))
        return mt.Table(mt.TableSpec("t", [piece], admission=mt.SlidingHashFilter(capacity), occurrence_threshold=2))

    with pytest.raises(ConfigError, match="capacity"):
        make(1000).copy_admission_of(make(2000))


# --- host tier ---


def test_the_oldest_rows_leave_and_needed_rows_stay() -> None:
    stamps = torch.tensor([7, 0, 3, 0, 9, 1])
    is_needed = torch.tensor([False, True, False, False, False, False])
    assert choose_cold(stamps, is_needed, 3).tolist() == [False, False, True, True, False, True]
    assert choose_cold(stamps, is_needed, 100).sum() == 5
    assert not choose_cold(stamps, is_needed, 0).any()


def test_a_tier_returns_the_rows_that_it_took() -> None:
    spec = mt.TableSpec("t", [mt.SliceSpec(4, optimizer=mt.Adagrad(0.1))], expire_days=5)
    table, tier = mt.Table(spec), HostTier(spec, 64 << 20)
    table.apply_gradients(np.arange(100), np.ones((100, 4)), time_s=86400 * 20)
    table.apply_gradients(np.arange(50), np.ones((50, 4)), time_s=86400 * 24)
    tier.put(table.read_entries(np.arange(100)))
    for actual, expected in zip(tier.read(np.array([3, 700, 5])), table.read_entries(np.array([3, 5])), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert tier.remove(np.array([3, 700])).tolist() == [3]
    assert len(tier) == 99
    assert sorted(tier.evict(86400 * 26).tolist()) == list(range(50, 100))
    assert sorted(tier.ids().tolist()) == [each for each in range(50) if each != 3]
    assert sum(len(ids) for ids, _, _ in tier.export_entries(10)) == 49


def test_a_full_tier_refuses_rows() -> None:
    spec = mt.TableSpec("t", [mt.SliceSpec(64, optimizer=mt.Sgd(0.1))])
    table, tier = mt.Table(spec), HostTier(spec, 1 << 20)
    ids = np.arange(50_000)
    table.assign(ids, np.ones((len(ids), 64)))
    with pytest.raises(CapacityExceeded, match="'t'"):
        tier.put(table.read_entries(ids))
    assert len(tier) == 0


# --- rows ---


@pytest.mark.parametrize("optimizer", CHOICES, ids=str)
def test_the_words_of_a_row_in_host_memory_have_distinct_places_on_the_device(optimizer: Any) -> None:
    dim = 1 if optimizer.base.kind == "batch_softmax" else 5
    slices = [
        mt.SliceSpec(3, optimizer=mt.Adam(0.1)),
        mt.SliceSpec(dim, optimizer=optimizer),
        mt.SliceSpec(1, optimizer=mt.Sgd(0.1)),
    ]
    spec = mt.TableSpec("t", slices)
    layout = RowLayout.of(spec)
    words = layout.host_words()
    table = mt.Table(spec)
    table.reinitialize([1])
    (_, _, rows) = next(table.export_entries())
    assert len(words) == rows.shape[1]
    assert len(np.unique(words)) == len(words)
    assert words.max() < layout.stride
    assert layout.stride % 4 == 0


def test_every_slice_has_its_own_rule_in_the_text_of_the_kernels() -> None:
    slices = [mt.SliceSpec(1, optimizer=mt.Ftrl(0.1)), mt.SliceSpec(16, optimizer=mt.Adam(0.1))]
    text = kernel_text(mt.TableSpec("t", slices))
    assert text.index("#define RULE_FTRL 1") < text.index("namespace slice_0") < text.index("#undef RULE_FTRL")
    assert text.index("#undef RULE_FTRL") < text.index("#define RULE_ADAM 1") < text.index("namespace slice_1")


def test_a_table_wider_than_a_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="dim is 1025"):
        kernel_text(mt.TableSpec("t", [mt.SliceSpec(1025, optimizer=mt.Sgd(0.1))]))
    with pytest.raises(ConfigError, match="17 slices"):
        kernel_text(mt.TableSpec("t", [mt.SliceSpec(1, optimizer=mt.Sgd(0.1)) for _ in range(17)]))
