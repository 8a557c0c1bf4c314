"""States that are tried before they are shown: a small export, and tables that publish to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.core.errors import ConfigError, CutRefused
from monolith.data import RecordWriter
from monolith.embedding import MultiTable
from monolith.serving import Servable
from monolith.serving.follow.canary import Canary, CanaryLimits, CanarySettings
from monolith.serving.follow.following import Following
from monolith.serving.follow.measures import measure
from monolith.serving.follow.sample import RecordSample
from monolith.sync import Follower, LocalRowLog, Publisher
from monolith.telemetry.text import render
from monolith.testing.fakes.clock import FakeClock
from monolith.testing.fakes.linear_model import example_batch
from small_export import WEIGHT, declared, example, fid_of, make_export

ASKED = [example([user], [item], 0.25).SerializeToString() for user in (7, 8, 9) for item in (7, 8, 9)]
LOOSE = CanaryLimits(score_shift=1.0, mean_shift=0.8, calibration_error=0.5)


class Trainer:
    """Holds the rows of the export, and publishes the changes of a test."""

    def __init__(self, root: Path) -> None:
        self.tables = MultiTable(declared().table_specs())
        self.tables["user"].assign([fid_of(1, 7), fid_of(1, 8)], [[1], [2]])
        self.tables["item"].assign([fid_of(2, 7), fid_of(2, 9)], [[3], [4]])
        self.weight = WEIGHT
        rows = LocalRowLog(root, self.tables, clock=FakeClock())
        self.publisher = Publisher(root, rows, lambda: {"w": self.weight.copy()}, clock=FakeClock())
        self.publisher.publish()

    def publish(self, user: dict[int, float] | None = None, weight: Any = None) -> None:
        for value, row in (user or {}).items():
            self.tables["user"].assign([fid_of(1, value)], [[row]])
        if weight is not None:
            self.weight = np.array(weight, np.float32).reshape(2, 1)
        self.publisher.publish()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_export(tmp_path_factory.mktemp("export") / "12")


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "published")


class World:
    """A version that follows behind a canary, step by step."""

    def __init__(self, folder: Path, published: Path, **settings: Any) -> None:
        self.canary = Canary(CanarySettings(**{"limits": LOOSE, "min_rows": 4, **settings}))
        self.servable = Servable.load(folder)
        self.follower = Follower(published, self.canary.guarded(self.servable), clock=FakeClock())
        self.follower.step()
        self.canary.admit(self.servable)

    def scores(self) -> list[float]:
        return list(self.servable.predict(ASKED, "example")["score"].tolist())

    def number(self, start: str) -> float:
        (line,) = [line for line in render(self.canary.samples()).splitlines() if line.startswith(start)]
        return float(line.rpartition(" ")[2])


@pytest.fixture
def world(folder: Path, trainer: Trainer, tmp_path: Path) -> Iterator[World]:
    made = World(folder, tmp_path / "published")
    for record in ASKED:  # of several in one request only one would be kept, whichever it is
        made.servable.predict([record], "example")
    yield made
    made.servable.close()


def test_a_model_beside_scores_as_the_move_will_make_it_score(folder: Path, trainer: Trainer, tmp_path: Path) -> None:
    servable, seen = Servable.load(folder), []

    class Compared:
        """Moves the version, and compares its scores with the preview."""

        tables, shard, has_weights = servable.tables, servable.shard, True

        def apply(self, update: Any = None, *, weights: Any = None, tables: Any = None, **more: Any) -> None:
            batch = servable.read(ASKED, "example")
            before = servable.predict_batch(batch)["score"].tolist()
            beside = servable.preview([batch], update, weights=weights, tables=tables)
            preview = beside.predict_batch(batch)["score"].tolist()
            assert servable.predict_batch(batch)["score"].tolist() == before
            servable.apply(update, weights=weights, tables=tables, **more)
            assert servable.predict_batch(batch)["score"].tolist() == preview
            seen.append(preview != before)

    follower = Follower(tmp_path / "published", Compared(), clock=FakeClock())
    follower.step()
    for change in ({"user": {7: 5.0, 50: 1.0}}, {"weight": [2, 3]}, {"user": {9: -1.0}, "weight": [1, 1]}):
        trainer.publish(**change)
        follower.step()
    trainer.tables["user"].delete([fid_of(1, 8)])
    trainer.publish()
    follower.step()
    assert seen == [False, True, True, True, True]


def test_a_poisoned_cut_is_never_shown_and_a_repaired_one_is(
    world: World, trainer: Trainer, caplog: pytest.LogCaptureFixture
) -> None:
    trainer.publish({7: 1.5})
    assert world.follower.step()
    good = world.scores()
    assert world.number("monolith_canary_held{") == 0
    trainer.publish({8: 2.5}, weight=[np.nan, 10])
    for _ in range(3):
        assert not world.follower.try_step()
    assert world.scores() == good
    assert world.number("monolith_canary_held{") == 1
    assert world.number('monolith_canary_measure{model="prices",version="12",measure="nan_rate"}') == 1
    assert world.number('monolith_canary_trials_total{model="prices",outcome="refused"}') == 1
    assert world.follower.status.cuts_behind == 1
    (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "nan_rate of 'score' is 1 (limit 0)" in told

    trainer.publish({9: 0.5})  # the weights are as bad as before
    assert not world.follower.try_step()
    assert world.scores() == good
    trainer.publish(weight=WEIGHT)
    assert world.follower.step()
    assert world.number("monolith_canary_held{") == 0
    assert world.scores() != good
    assert world.servable.lookup("user", [fid_of(1, value) for value in (7, 8, 9)]).tolist() == [[1.5], [2.5], [0.5]]


@pytest.mark.parametrize(
    ("change", "measure"),
    [
        ({"user": {7: np.nan}}, "nan_rate"),
        ({"user": {7: np.inf}}, "nan_rate"),
        ({"user": {7: 4.0}}, "mean_shift"),
        ({"user": {7: 4.0, 8: 0.0}}, "score_shift"),
    ],
)
def test_rows_that_move_scores_too_far_are_refused(world: World, trainer: Trainer, change: Any, measure: str) -> None:
    good = world.scores()
    trainer.publish(**change)
    with pytest.raises(CutRefused, match=f"{measure} of 'score'"):
        world.follower.step()
    assert world.scores() == good
    trainer.publish({7: 1.2, 8: 2.0})
    assert world.follower.step()


def test_a_rebuilt_state_is_checked_too(world: World, trainer: Trainer, tmp_path: Path) -> None:
    good = world.scores()
    trainer.publisher.close()
    trainer.weight = -WEIGHT
    again = LocalRowLog(tmp_path / "published", trainer.tables, clock=FakeClock())
    trainer.publisher = Publisher(
        tmp_path / "published", again, lambda: {"w": trainer.weight.copy()}, clock=FakeClock()
    )
    trainer.publish({7: 100.0})
    with pytest.raises(CutRefused, match="score_shift"):
        world.follower.step()
    assert world.scores() == good
    trainer.publish({7: 1.1}, weight=WEIGHT)
    assert world.follower.step()


def test_with_too_few_requests_everything_is_shown_and_counted(folder: Path, trainer: Trainer, tmp_path: Path) -> None:
    world = World(folder, tmp_path / "published")
    world.servable.predict(ASKED[:1], "example")
    trainer.publish({7: np.nan})
    assert world.follower.step()
    assert world.number('monolith_canary_trials_total{model="prices",outcome="no_sample"}') == 2


def labelled(path: Path, labels: list[float]) -> Path:
    with RecordWriter(path) as writer:
        for number, label in enumerate(labels):
            record = example([7 + number % 2], [], 0.0)
            record.label.append(label)
            writer.write(record.SerializeToString())
    return path


def test_records_with_labels_tell_of_calibration(folder: Path, trainer: Trainer, tmp_path: Path) -> None:
    records = labelled(tmp_path / "records.pb", [1.0, 2.0] * 8)
    limits = CanaryLimits(score_shift=None, mean_shift=None, calibration_error=0.3)
    world = World(folder, tmp_path / "published", records=records, record_kind="example", limits=limits)
    trainer.publish({7: 1.5})
    assert world.follower.step()
    trainer.publish({7: 2.5})
    with pytest.raises(CutRefused, match=r"calibration_error of 'score' is 0\.5 \(limit 0\.3\)"):
        world.follower.step()
    assert world.number('monolith_canary_measure{model="prices",version="12",measure="calibration_error"}') == 0.5
    trainer.publish({7: 1.0})
    assert world.follower.step()


def test_a_bad_state_that_is_better_than_the_served_one_passes(folder: Path, trainer: Trainer, tmp_path: Path) -> None:
    trainer.publish({7: 9.0})
    records = labelled(tmp_path / "records.pb", [1.0, 2.0] * 8)
    limits = CanaryLimits(score_shift=None, mean_shift=None, calibration_error=0.3)
    world = World(folder, tmp_path / "published", limits=limits)  # nothing was asked: it is shown
    guarded = Canary(CanarySettings(records=records, record_kind="example", limits=limits)).guarded(world.servable)
    follower = Follower(tmp_path / "published", guarded, clock=FakeClock())
    trainer.publish({7: 5.0})
    assert follower.step()
    trainer.publish({7: 6.0})
    with pytest.raises(CutRefused):
        follower.step()


def test_records_that_cannot_be_used_are_refused(folder: Path, trainer: Trainer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"canary_records is '.*absent.pb', expected records"):
        Canary(CanarySettings(records=tmp_path / "absent.pb"))
    RecordWriter(tmp_path / "none.pb").close()
    with pytest.raises(ConfigError, match="expected example_batch records"):
        Canary(CanarySettings(records=tmp_path / "none.pb"))
    with RecordWriter(tmp_path / "other.pb") as writer:
        writer.write(b"\xff\xff\xff")
    with pytest.raises(ConfigError, match=r"other\.pb', expected records for 'prices'"):
        World(folder, tmp_path / "published", records=tmp_path / "other.pb", record_kind="example")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_rows": 0}, "max_rows is 0"),
        ({"min_rows": 9, "max_rows": 8}, "min_rows is 9, expected at most max_rows"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        CanarySettings(**settings)
    with pytest.raises(ConfigError, match="limit score_shift is -1"):
        CanaryLimits(score_shift=-1)


def test_a_version_that_scores_otherwise_is_reported_and_not_served(tmp_path: Path, folder: Path) -> None:
    canary = Canary(CanarySettings(limits=LOOSE, min_rows=4))
    following = Following(Servable.load, {}, clock=FakeClock(), canary=canary)
    served = following(folder)
    served.predict(ASKED, "example")
    for _ in range(5):
        served.predict(ASKED, "example")
    same = following(make_export(tmp_path / "13", version=13))
    same.close()
    other = make_export(tmp_path / "14", version=14)
    loaded: list[Servable] = []

    def load_changed(path: Path) -> Servable:
        loaded.append(Servable.load(path))
        loaded[-1].apply(weights={"w": WEIGHT * 2})
        return loaded[-1]

    following._load = load_changed
    with pytest.raises(CutRefused, match=r"version 14.*score_shift"):
        following(other)
    assert loaded[0].tables is None, "it is closed"
    with pytest.raises(CutRefused):  # again: compared with the served state, not with the refused one
        following(other)
    assert served.predict(ASKED[:1], "example")["score"].tolist() == [31.25]
    assert 'monolith_canary_held{model="prices",version="14"} 1' in render(following.samples())
    served.close()


def test_sub_models_that_cannot_score_are_not_tried(folder: Path, trainer: Trainer, tmp_path: Path) -> None:
    export = make_export(tmp_path / "15", declaration=None, sub_model="ps", shard=(0, 1), dense=None)
    world = World(export, tmp_path / "published")
    trainer.publish({7: np.nan})
    assert world.follower.step()
    assert not world.servable.can_score


LOTS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 40)), max_size=60)


@given(LOTS, st.integers(1, 30))
def test_a_sample_is_never_larger_than_it_may_be(lots: list[tuple[int, int]], max_rows: int) -> None:
    sample = RecordSample(max_rows, seed=1)
    for records, rows in lots:
        sample.add([example_batch(range(1, rows + 1))] * records, "example_batch")
        assert sample.rows <= max_rows
    assert bool(sample.rows) == any(rows <= max_rows for _, rows in lots)
    kept = [len(record) for each in sample.by_kind().values() for record in each]
    assert len(kept) <= max_rows


def test_recent_requests_take_the_place_of_old_ones() -> None:
    sample = RecordSample(50, seed=3)
    for number in range(2000):
        sample.add([str(number).encode()], "example")
    (kept,) = sample.by_kind().values()
    assert len(kept) == 50
    assert sum(int(record) >= 1800 for record in kept) > 40


def test_the_measures_are_of_the_worst_output_and_of_finite_scores() -> None:
    old = {"a": np.array([0.1, 0.2, np.nan]), "b": np.array([0.5, 0.5, 0.5]), "vector": np.zeros((3, 2))}
    new = {"a": np.array([0.2, 0.1, 0.3]), "b": np.array([0.9, 0.5, np.inf]), "vector": np.ones((3, 2)), "c": [1]}
    label = np.array([[1, 0], [0, 1], [0, 0]], np.float32)
    there = np.array([[True, False], [True, True], [True, False]])
    found = measure(old, {name: np.asarray(value) for name, value in new.items()}, label, there)
    assert found.outputs == {
        "nan_rate": "b",
        "score_shift": "vector",
        "mean_shift": "vector",
        "calibration_error": "b",
    }
    assert found.new["nan_rate"] == pytest.approx(1 / 3)
    assert found.new["score_shift"] == 1
    assert found.new["calibration_error"] == pytest.approx(0.5)
    assert found.over(CanaryLimits(score_shift=None, mean_shift=2.0, nan_rate=0.5)) == []


def loading(path: Path, scale: float) -> Servable:
    servable = Servable.load(path)
    servable.apply(weights={"w": (WEIGHT * scale).astype(np.float32)})
    return servable


def test_an_output_that_was_bad_before_hides_no_other_output() -> None:
    old = {"bad": np.array([np.nan, np.nan, 1.0, 1.0], np.float32), "good": np.ones(4, np.float32)}
    new = {"bad": old["bad"], "good": np.array([np.nan, 1.0, 1.0, 1.0], np.float32)}
    found = measure(old, new, np.ones((4, 2), np.float32), np.ones((4, 2), np.bool_))
    assert found.new["nan_rate"] == 0.5
    assert found.over(CanaryLimits()) == ["nan_rate of 'good' is 0.25 (limit 0)"]
    label = np.array([[10.0, 1.0]] * 4, np.float32)
    new = {"bad": np.ones(4, np.float32), "good": np.full(4, 1.8, np.float32)}
    found = measure({name: np.ones(4, np.float32) for name in new}, new, label, np.ones((4, 2), np.bool_))
    limits = CanaryLimits(score_shift=None, mean_shift=None)
    assert found.new["calibration_error"] == pytest.approx(0.9)
    assert found.over(limits) == ["calibration_error of 'good' is 0.8 (limit 0.5)"]


def test_a_version_is_compared_with_the_newest_served_one(tmp_path: Path) -> None:
    canary = Canary(CanarySettings(limits=CanaryLimits(score_shift=4.0, mean_shift=4.0), min_rows=4))
    served = []
    for version, scale in ((12, 1.0), (13, 1.1), (14, 1.2), (15, 1.3)):  # each step is small, all together are not
        servable = loading(make_export(tmp_path / str(version), version=version), scale)
        canary.admit(servable)
        for record in ASKED:
            servable.predict([record], "example")
        served.append(servable)
    back = loading(make_export(tmp_path / "16", version=16), 1.0)
    with pytest.raises(CutRefused, match="version 16"):
        canary.admit(back)  # near the oldest version, far from the newest
    for servable in (*served, back):
        servable.close()


def test_closing_a_replaced_copy_of_a_version_keeps_the_one_that_is_served(tmp_path: Path) -> None:
    canary = Canary(CanarySettings(limits=LOOSE, min_rows=4))
    path = make_export(tmp_path / "12", version=12)
    first, again = loading(path, 1.0), loading(path, 1.0)
    canary.admit(first)
    for record in ASKED:
        first.predict([record], "example")
    canary.admit(again)  # the version was overwritten and loaded again
    first.close()
    poisoned = loading(make_export(tmp_path / "13", version=13), 9.0)
    with pytest.raises(CutRefused, match="version 13"):
        canary.admit(poisoned)
    for servable in (again, poisoned):
        servable.close()
