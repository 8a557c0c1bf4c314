"""The paper's experiments in a small form: shorter intervals are better, collisions cost, both on the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from monolith.cli.main import app
from monolith.core.errors import ConfigError, DataError
from monolith.data import Batch
from monolith.demo.experiments import measure_collisions, measure_file, measure_world
from monolith.demo.experiments.paired import difference_intervals, weighted_auc
from monolith.demo.experiments.plots import plot_collisions, plot_sync_interval
from monolith.demo.experiments.published_scores import score_published_versions
from monolith.demo.experiments.sync_interval import SyncIntervalReport
from monolith.demo.world import Drift, DriftingWorld
from monolith.demo.world.clicks import auc
from monolith.demo.world.files import write_parquet
from monolith.models import DeepFM
from monolith.training.config import RunConfig
from monolith.training.estimator import Estimator

INTERVALS_S = (10.0, 120.0, 600.0, 3600.0)


@pytest.fixture(scope="module")
def report() -> SyncIntervalReport:
    """The experiment with few items, so that a learner has enough events per item."""
    [found] = measure_world(
        [0], hours=1.0, intervals_s=INTERVALS_S, events_per_s=8, users=300, items=40, batch_s=10, threads=1
    )
    return found


def estimator(seed: int = 0) -> Estimator:
    config = RunConfig(seed=seed, threads=1, log_step_count_steps=0, save_summary_steps=0)
    return Estimator(lambda: DeepFM(sparse=["user_id", "item_id"], dim=4, hidden=[8]), config)


def batches(rows: int = 2000, size: int = 100) -> list[Batch]:
    world = DriftingWorld(users=50, items=20, events_per_s=1.0, drift=Drift.fast())
    return list(world.clicks(rows).dataset().batch(size))


def test_shorter_intervals_are_better_and_an_hour_costs_two_points(report: SyncIntervalReport) -> None:
    aucs = [each.auc for each in report.intervals]
    assert [each.interval_s for each in report.intervals] == list(INTERVALS_S)
    assert aucs[0] > aucs[2] > aucs[3]
    assert aucs[1] > aucs[2]
    assert aucs[0] - aucs[3] > 0.02
    assert report.best_auc is not None
    assert report.best_auc > aucs[0]
    hour = report.intervals[-1]
    assert hour.loss_low > 0, "the paired interval excludes no difference"
    assert hour.loss_low < hour.loss < hour.loss_high
    assert report.intervals[0].loss == 0


def test_a_version_scores_with_the_parameters_of_its_publish() -> None:
    rows = batches()
    found = score_published_versions(estimator(), rows, [100.0, 500.0])
    times = [int(batch.event_time_s.max()) for batch in rows]
    # The same training by hand: stop before a batch that begins a version, and score the rows of the version.
    for interval, scores in found.scores.items():
        begin = next(k for k in range(5, 20) if times[k] // interval != times[k - 1] // interval)
        end = next((k for k in range(begin, 20) if times[k] // interval != times[begin] // interval), 20)
        trained = estimator()
        trained.train(rows[:begin])
        expected = np.concatenate([heads["ctr"] for heads in trained.predict(rows[begin:end])])
        np.testing.assert_allclose(scores[begin * 100 : end * 100], expected, atol=1e-6)


def test_rows_without_times_or_out_of_order_are_refused() -> None:
    rows = batches(300)
    with pytest.raises(DataError, match="sort the rows by time"):
        score_published_versions(estimator(), rows[::-1], [60.0])
    timeless = [Batch.from_arrays(ids={"user_id": [[1]], "item_id": [[2]]}, label=[1])]
    with pytest.raises(DataError, match="event time in batch 0 is 0"):
        score_published_versions(estimator(), timeless, [60.0])
    with pytest.raises(DataError, match="no rows"):
        score_published_versions(estimator(), [], [60.0])
    with pytest.raises(ConfigError, match="intervals_s"):
        score_published_versions(estimator(), rows, [0.0])
    with pytest.raises(ConfigError, match="head is 'like'"):
        score_published_versions(estimator(), rows, [60.0], head="like")
    with pytest.raises(ConfigError, match="warm-up"):
        measure_file(estimator, rows, seeds=[0], intervals_s=[1e6])


@given(st.integers(0, 1000))
def test_the_weighted_auc_counts_a_row_as_often_as_its_weight(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores, label = rng.integers(0, 5, 40) / 4, rng.random(40) < 0.5
    weight = rng.integers(0, 3, 40)
    repeated = np.repeat(label, weight)
    if repeated.all() or not repeated.any():
        return
    assert weighted_auc(scores, label, weight.astype(float)) == pytest.approx(auc(np.repeat(scores, weight), repeated))


def test_the_bootstrap_tells_a_worse_score_from_an_equal_one() -> None:
    rng = np.random.default_rng(0)
    truth = rng.random(20_000)
    label = rng.random(20_000) < truth
    scores = {0.0: truth, 1.0: truth.copy(), 2.0: truth + 0.3 * rng.standard_normal(20_000)}
    found = difference_intervals(scores, label, np.arange(20_000) // 100)
    assert found[1.0][1:] == (0, 0)
    assert found[2.0][2] < 0


def test_hashed_ids_cost_more_the_more_ids_collide() -> None:
    [few] = measure_collisions([0], clicks=20_000, users=300, items=100, threads=1)
    [many] = measure_collisions([0], clicks=20_000, users=300, items=100, factor=8, threads=1)
    assert few.colliding_shares["user_id"] == pytest.approx(0.0773, abs=0.01)
    assert few.auc == many.auc
    assert few.auc - many.hashed_auc > few.auc - few.hashed_auc
    assert few.auc - many.hashed_auc > 0.01
    assert few.best_auc > few.auc


def test_plots_are_written_as_png_and_svg(report: SyncIntervalReport, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = plot_sync_interval([report], tmp_path / "new" / "sync")
    paths += plot_collisions(measure_collisions([0], clicks=1000, users=20, items=20, threads=1), tmp_path / "hashed")
    assert [path.suffix for path in paths] == [".png", ".svg"] * 2
    assert all(path.stat().st_size > 5000 for path in paths)
    assert "1 h" in paths[1].read_text()


def test_the_command_line_runs_on_the_world_and_on_a_file(tmp_path: Path) -> None:
    world = DriftingWorld(users=50, items=20, events_per_s=1.0, drift=Drift.fast())
    write_parquet(world.clicks(3000), tmp_path / "clicks.parquet")
    arguments = ["experiment", "sync-interval", "--intervals", "60,1200", "--seeds", "0", "--json", "--threads", "1"]
    on_file = [*arguments, "--data", str(tmp_path / "clicks.parquet"), "--label-features", "click"]
    result = CliRunner().invoke(app, [*on_file, "--task", "deepfm", "--rows", "2900"], catch_exceptions=False)
    [report] = json.loads(result.stdout.splitlines()[-1])["reports"]
    assert [each["interval_s"] for each in report["intervals"]] == [60, 1200]
    assert report["best_auc"] is None
    on_world = [*arguments, "--intervals", "60,240", "--hours", "0.1", "--events-per-s", "2"]
    result = CliRunner().invoke(app, on_world, catch_exceptions=False)
    assert json.loads(result.stdout.splitlines()[-1])["reports"][0]["best_auc"] > 0.5
    shown = CliRunner().invoke(app, ["experiment", "collisions", "--clicks", "1000", "--seeds", "0", "--threads", "1"])
    assert "hashed ids" in shown.stdout
    assert CliRunner().invoke(app, ["experiment", "collisions", "--seeds", "x"]).exit_code == 2
