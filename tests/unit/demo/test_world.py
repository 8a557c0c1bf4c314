from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith import data
from monolith.core.errors import ConfigError
from monolith.demo.world import START_S, World
from monolith.demo.world.bars import bars
from monolith.demo.world.clicks import Clicks, auc
from monolith.demo.world.files import ClickRecord, write_parquet, write_records

COLUMNS = [name for name in Clicks.__dataclass_fields__]


def history_of(clicks: Clicks, row: int) -> list[int]:
    return clicks.history[clicks.history_offsets[row] : clicks.history_offsets[row + 1]].tolist()


@pytest.fixture(scope="module")
def world() -> World:
    return World(users=300, items=80, seed=3, drift=0.5)


@pytest.fixture(scope="module")
def clicks(world: World) -> Clicks:
    return world.clicks(20_000)


def test_a_seed_gives_the_same_rows_every_time_and_another_seed_others(clicks: Clicks) -> None:
    again = World(users=300, items=80, seed=3, drift=0.5).clicks(20_000)
    other = World(users=300, items=80, seed=4, drift=0.5).clicks(20_000)
    assert all(np.array_equal(getattr(clicks, name), getattr(again, name)) for name in COLUMNS)
    assert not np.array_equal(clicks.user_id, other.user_id)
    assert not np.allclose(clicks.click_probability, other.click_probability)


def test_clicks_and_likes_are_as_frequent_as_their_probabilities(clicks: Clicks) -> None:
    for label, chance in ((clicks.click, clicks.click_probability), (clicks.like, clicks.like_probability)):
        for low, high in ((0.0, 0.2), (0.2, 0.5), (0.5, 1.0)):
            inside = (chance >= low) & (chance < high)
            error = np.sqrt((chance[inside] * (1 - chance[inside])).sum())
            assert abs(label[inside].sum() - chance[inside].sum()) < 4 * error
    assert not (clicks.like > clicks.click).any()


def test_the_best_auc_leaves_room_to_learn_and_no_noisier_score_reaches_it(clicks: Clicks) -> None:
    noise = np.random.default_rng(0).standard_normal(len(clicks))
    assert 0.78 < clicks.best_auc < 0.88
    assert 0.5 < clicks.auc(clicks.click_probability + 0.3 * noise) < clicks.best_auc - 0.02


def test_popular_items_are_shown_far_more_often_than_others(clicks: Clicks) -> None:
    shown = np.sort(np.bincount(clicks.item_id))[::-1]
    assert shown[0] > 5 * np.median(shown)


def test_a_history_holds_the_earlier_clicks_of_the_user_oldest_first(clicks: Clicks) -> None:
    seen: dict[int, list[int]] = {}
    for row in range(2_000):
        user, history = int(clicks.user_id[row]), history_of(clicks, row)
        known = seen.setdefault(user, history)
        assert history == known[-10:]
        if clicks.click[row]:
            known.append(int(clicks.item_id[row]))


def test_users_of_one_gender_and_items_of_one_category_keep_them(clicks: Clicks) -> None:
    assert len(np.unique(np.stack([clicks.user_id, clicks.gender]), axis=1).T) == len(np.unique(clicks.user_id))
    assert len(np.unique(np.stack([clicks.item_id, clicks.category]), axis=1).T) == len(np.unique(clicks.item_id))


def test_tastes_drift_with_time_and_stay_constant_without_drift() -> None:
    def mean_chances(clicks: Clicks) -> np.ndarray:
        pair = clicks.user_id * 10 + clicks.item_id - 11
        return np.bincount(pair, clicks.click_probability, 200) / np.bincount(pair, minlength=200)

    def agreement(drift: float) -> float:
        world = World(users=20, items=10, drift=drift, events_per_s=1_000)
        now, later = (world.clicks(20_000, START_S + days * 86_400) for days in (0, 3))
        return float(np.corrcoef(mean_chances(now), mean_chances(later))[0, 1])

    assert agreement(0.0) > 0.99
    assert agreement(0.5) < 0.6


def test_times_follow_the_rate_of_events(clicks: Clicks) -> None:
    assert clicks.event_time_s[0] >= START_S
    assert (np.diff(clicks.event_time_s) >= 0).all()
    assert clicks.event_time_s[-1] - START_S == pytest.approx(20_000 / 20, rel=0.02)


def test_rows_cuts_every_column_the_history_too(clicks: Clicks) -> None:
    cut = clicks.rows(100, 200)
    assert len(cut) == 100
    assert history_of(cut, 7) == history_of(clicks, 107)
    assert cut.price[7] == clicks.price[107]
    assert len(clicks.rows(-50)) == 50


def test_a_dataset_out_of_memory_has_ids_of_the_slots_labels_and_times(clicks: Clicks) -> None:
    batch = next(iter(clicks.rows(500, 600).dataset(labels=2).batch(100)))
    assert batch.label.tolist() == np.stack([clicks.click, clicks.like], 1)[500:600].tolist()
    assert batch.uid.tolist() == clicks.user_id[500:600].tolist()
    assert batch.event_time_s.tolist() == clicks.event_time_s[500:600].tolist()
    assert batch.ids["user_id"].values.tolist() == [(1 << 48) + user for user in clicks.user_id[500:600].tolist()]
    assert batch.ids["history"][3].tolist() == [(2 << 48) + item for item in history_of(clicks, 503)]
    assert batch.dense["price"][:, 0].tolist() == clicks.price[500:600].tolist()


@pytest.mark.parametrize("record", ["example_batch", "example", "instance"])
def test_record_files_hold_the_rows_that_memory_has(clicks: Clicks, record: ClickRecord, tmp_path: Path) -> None:
    some = clicks.rows(0, 300)
    with data.RecordWriter(tmp_path / "part.pb") as writer:
        assert write_records(some, writer, record, batch_rows=128) == (3 if record == "example_batch" else 300)
    ds = data.files(tmp_path / "part.pb", record=record, schema=some.schema(2)).batch(300)
    from_file, from_memory = next(iter(ds)), next(iter(some.dataset(labels=2).batch(300)))
    for name in from_memory.ids:
        assert from_file.ids[name].tolist() == from_memory.ids[name].tolist()
    for name in ("label", "uid", "event_time_s", "price"):
        assert from_file[name].tolist() == from_memory[name].tolist()


def test_a_parquet_file_has_plain_columns_and_the_label_by_its_name(clicks: Clicks, tmp_path: Path) -> None:
    some = clicks.rows(0, 300)
    write_parquet(some, tmp_path / "clicks.parquet")
    schema = data.Schema(sparse=some.schema().sparse, label_features=["click"])
    batch = next(iter(data.parquet(tmp_path / "clicks.parquet", schema=schema).batch(300)))
    assert batch.label[:, 0].tolist() == some.click.tolist()
    assert batch.ids["item_id"].values.tolist() == [(2 << 48) + item for item in some.item_id.tolist()]


def test_an_unknown_record_is_refused(clicks: Clicks, tmp_path: Path) -> None:
    with data.RecordWriter(tmp_path / "part.pb") as writer, pytest.raises(ConfigError, match="'tf_example'"):
        write_records(clicks, writer, "tf_example")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"users": 0}, "World.users is 0"),
        ({"history_length": 0}, "World.history_length is 0"),
        ({"zipf": -1.0}, "World.zipf is -1.0"),
        ({"drift": float("nan")}, "World.drift is nan"),
        ({"events_per_s": 0.0}, "World.events_per_s is 0.0"),
    ],
)
def test_a_wrong_setting_of_the_world_is_named(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        World(**settings)  # type: ignore[arg-type]


def test_no_rows_and_a_time_before_the_world_are_refused(world: World) -> None:
    with pytest.raises(ConfigError, match="n is 0"):
        world.clicks(0)
    with pytest.raises(ConfigError, match="begins at 1700000000"):
        world.clicks(1, 5)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40))
def test_auc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, bool]]) -> None:
    positive = [score for score, label in rows if label]
    negative = [score for score, label in rows if not label]
    if not positive or not negative:
        with pytest.raises(ConfigError, match="needs both kinds"):
            auc([score for score, _ in rows], [label for _, label in rows])
        return
    wins = sum((p > q) + 0.5 * (p == q) for p in positive for q in negative)
    found = auc([score for score, _ in rows], [label for _, label in rows])
    assert found == pytest.approx(wins / (len(positive) * len(negative)))


def test_auc_wants_one_score_per_row(clicks: Clicks) -> None:
    with pytest.raises(ConfigError, match="3 scores for 20000 labels"):
        clicks.auc([1, 2, 3])


@pytest.mark.parametrize("seed", [0, 1])
def test_bars_are_well_formed_and_their_hidden_factors_tell_of_the_next_return(seed: Literal[0, 1]) -> None:
    some = bars(2_000, tickers=5, seed=seed)
    assert some.close.shape == some.volume.shape == (5, 2_000)
    assert (some.low <= np.minimum(some.open, some.close)).all()
    assert (some.high >= np.maximum(some.open, some.close)).all()
    assert (np.diff(some.time_s) == 300).all()
    next_return = np.diff(np.log(some.close), axis=1)
    known = np.corrcoef(some.expected_return[:, :-1].ravel(), next_return.ravel())[0, 1]
    assert 0.35 < known < 0.55
    recent = np.log(some.close[:, 10:-1] / some.close[:, :-11])
    assert np.corrcoef(recent.ravel(), next_return[:, 10:].ravel())[0, 1] > 0.15
    assert np.array_equal(some.close, bars(2_000, tickers=5, seed=seed).close)


def test_no_bars_are_refused() -> None:
    with pytest.raises(ConfigError, match="n of bars is 0"):
        bars(0)
