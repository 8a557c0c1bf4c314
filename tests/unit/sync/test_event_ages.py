"""Ages of events travel with the cuts, and servers count every row once, also when they skip cuts."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from monolith.artifacts.delta_log import Cut, read_cut
from monolith.artifacts.delta_log.event_ages import AGE_BOUNDS_S, MOST_CUTS, CutAges, count_ages
from monolith.core.errors import ManifestInvalid
from monolith.embedding import Adagrad, Fp32, MultiTable, SliceSpec, TableSpec
from monolith.serving.follow.following import Following
from monolith.sync import LocalRowLog, Publisher
from monolith.sync.event_ages import EventAges, TrainedRows
from monolith.telemetry import names
from monolith.testing.fakes.clock import FakeClock


def make_publisher(folder: Path, clock: FakeClock) -> tuple[Publisher, MultiTable]:
    tables = MultiTable([TableSpec("item", [SliceSpec(2, optimizer=Adagrad(0.1), compressor=Fp32())])])
    return Publisher(folder, LocalRowLog(folder, tables, clock=clock), dict, clock=clock), tables


def train(publisher: Publisher, tables: MultiTable, clock: FakeClock, ages_s: list[float]) -> None:
    tables.apply_gradients({"item": [7]}, {"item": [[1.0, 1.0]]})
    publisher.events.add(TrainedRows(clock.now_s(), clock.now_s() - np.array(ages_s)))


def test_buckets_hold_a_millisecond_to_an_hour_and_no_age_is_understated() -> None:
    assert len(AGE_BOUNDS_S) == 64
    assert AGE_BOUNDS_S[0] == 0.001
    assert 3400 < AGE_BOUNDS_S[-1] < 3700
    for age_s in (0.0004, 0.3, 1.0, 59.0):
        ((bucket, _),) = count_ages(np.array([age_s])).items()
        assert age_s <= AGE_BOUNDS_S[bucket] <= max(0.001, 1.27 * age_s)
    assert count_ages(np.array([1e9])) == {63: 1}


def test_a_cut_carries_the_ages_of_its_rows_and_of_the_cuts_before_it(tmp_path: Path) -> None:
    clock = FakeClock()
    publisher, tables = make_publisher(tmp_path, clock)
    waits: list[float] = []
    publisher.events.on_publish = waits.append
    train(publisher, tables, clock, [1.0, 1.0, 5.0])
    clock.advance_s(2.0)
    publisher.publish()
    train(publisher, tables, clock, [0.5])
    publisher.publish()
    cut = read_cut(tmp_path)
    assert cut is not None
    assert [each.number for each in cut.ages] == [1, 2]
    assert cut.ages[0].counts == count_ages(np.array([3.0, 3.0, 7.0]))
    assert cut.ages[1].counts == count_ages(np.array([0.5]))
    assert waits == [2.0, 0.0]


def test_rows_of_a_failed_publish_count_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    publisher, tables = make_publisher(tmp_path, clock)
    waits: list[float] = []
    publisher.events.on_publish = waits.append
    train(publisher, tables, clock, [1.0])

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("monolith.sync.publisher.publish", fail)
        with pytest.raises(OSError, match="disk full"):
            publisher.publish()
    publisher.publish()
    cut = read_cut(tmp_path)
    assert cut is not None
    assert [sum(each.counts.values()) for each in cut.ages] == [1]
    assert waits == [0.0]


def test_the_rows_that_wait_while_publishes_fail_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monolith.sync.event_ages.MOST_ROWS", 10)
    ages = EventAges()
    waiting: list[TrainedRows] = []
    for step in range(8):
        ages.add(TrainedRows(step, np.full(3, step)))
        waiting = ages.take()
        ages.put_back(waiting)
    assert [rows.trained_at_s for rows in waiting] == [5, 6, 7]
    ages.add(TrainedRows(8, np.full(20, 8)))
    assert [rows.trained_at_s for rows in ages.take()] == [8]
    ages.add(TrainedRows(9, np.full(3, 9)))
    assert [rows.trained_at_s for rows in ages.take()] == [9]


def test_a_cut_keeps_a_bounded_number_of_ages(tmp_path: Path) -> None:
    clock = FakeClock()
    publisher, tables = make_publisher(tmp_path, clock)
    for _ in range(MOST_CUTS + 3):
        train(publisher, tables, clock, [1.0])
        publisher.publish()
    cut = read_cut(tmp_path)
    assert cut is not None
    assert [each.number for each in cut.ages] == list(range(4, MOST_CUTS + 4))


def test_invalid_ages_are_an_invalid_cut(tmp_path: Path) -> None:
    clock = FakeClock()
    publisher, tables = make_publisher(tmp_path, clock)
    train(publisher, tables, clock, [1.0])
    publisher.publish()
    from monolith.artifacts.delta_log.publish import CUT, encoded_cut

    cut = read_cut(tmp_path)
    assert cut is not None
    (tmp_path / CUT).write_bytes(encoded_cut(dataclasses.replace(cut, ages=(CutAges(1, 0.0, {99: 1}),))))
    with pytest.raises(ManifestInvalid, match="99"):
        read_cut(tmp_path)


def test_a_server_counts_every_row_once_and_adds_its_own_wait() -> None:
    clock = FakeClock()
    following = Following(lambda folder: pytest.fail("nothing is loaded"), {}, clock=clock)
    now_s = clock.now_s()
    ages = tuple(CutAges(number, now_s - 3 + number, {40: 10 * number}) for number in (1, 2, 3))
    cut = Cut(sequences={0: 1}, dense=0, number=1, published_at_s=now_s - 2, ages=ages[:1])
    following._applied("clicks", cut)
    following._applied("clicks", dataclasses.replace(cut, number=3, published_at_s=now_s, ages=ages))
    samples = dict(following.samples())
    ((_, events),) = samples[names.EVENT_TO_SERVABLE_SECONDS]
    assert events["count"] == 10 + 20 + 30
    expected_s = AGE_BOUNDS_S[40] * 60 + 2 * 10 + 1 * 20
    assert events["sum_us"] == pytest.approx(expected_s * 1e6, rel=1e-3)
    ((labels, stage),) = samples[names.EVENT_STAGE_SECONDS]
    assert labels == ("apply",)
    assert stage["count"] == 1, "the first cut waited for the start of the server"


def test_a_second_version_that_shows_the_same_cuts_later_counts_no_row_again() -> None:
    clock = FakeClock()
    following = Following(lambda folder: pytest.fail("nothing is loaded"), {}, clock=clock)
    cuts: list[Cut] = []
    for number in (1, 2, 3):
        ages = (*(cuts[-1].ages if cuts else ()), CutAges(number, clock.now_s(), {40: 10}))
        cuts.append(Cut(sequences={0: 1}, dense=0, number=number, published_at_s=clock.now_s(), ages=ages))
        clock.advance_s(1.0)
    following._applied("clicks", cuts[0])
    following._applied("clicks", cuts[1])
    clock.advance_s(600.0)
    following._applied("clicks", cuts[0])
    following._applied("clicks", cuts[2])
    following._applied("clicks", cuts[2])
    samples = dict(following.samples())
    for metric, expected in ((names.EVENT_TO_SERVABLE_SECONDS, 30), (names.SYNC_PUBLISH_TO_SERVABLE_SECONDS, 3)):
        ((_, found),) = samples[metric]
        assert found["count"] == expected
    restarted = dataclasses.replace(cuts[0], published_at_s=clock.now_s(), ages=(CutAges(1, clock.now_s(), {40: 7}),))
    following._applied("clicks", restarted)
    ((_, found),) = dict(following.samples())[names.SYNC_PUBLISH_TO_SERVABLE_SECONDS]
    assert found["count"] == 4, "another publisher starts its numbers again"
