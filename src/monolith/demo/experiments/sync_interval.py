"""AUC under publish intervals: how much a model loses when servers get its parameters late.

``measure_world`` runs on a drifting world, where the best possible AUC is known. ``measure_file`` runs on any data with
event times. Both train once per seed and score every row by the version of each interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from monolith.core.errors import ConfigError
from monolith.data import Batch
from monolith.demo.experiments.paired import Floats, difference_intervals, weighted_auc
from monolith.demo.experiments.published_scores import PublishedScores, score_published_versions
from monolith.demo.world import Drift, DriftingWorld
from monolith.features import Model
from monolith.models import DeepFM
from monolith.training.config import RunConfig
from monolith.training.estimator import Estimator

__all__ = ["INTERVALS_S", "IntervalResult", "SyncIntervalReport", "measure_file", "measure_world"]

INTERVALS_S = (1.0, 60.0, 600.0, 3600.0)
"""Publish intervals of the experiment: a second, a minute, ten minutes, an hour."""

_BLOCK_S = 60

Progress = Callable[[int, float], None]
"""Called with the seed and the share of its training that is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalResult:
    """One interval with one seed."""

    interval_s: float
    auc: float
    loss: float
    """AUC of the shortest interval less this AUC."""
    loss_low: float
    """Lower end of the 95 % interval of ``loss``, by a paired bootstrap over minutes."""
    loss_high: float
    best_auc: float | None = None
    """AUC of a perfect model with this interval; None for files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncIntervalReport:
    """All intervals with one seed."""

    seed: int
    rows: int
    """Rows that were scored, after the warm-up."""
    warm_up_s: float
    best_auc: float | None
    """AUC of the true probabilities; None for files."""
    intervals: tuple[IntervalResult, ...]


def measure_world(
    seeds: Sequence[int] = (0, 1, 2),
    *,
    hours: float = 4.0,
    intervals_s: Sequence[float] = INTERVALS_S,
    events_per_s: int = 50,
    users: int = 5_000,
    items: int = 300,
    drift: Drift | None = None,
    batch_s: float = 1.0,
    threads: int | None = None,
    progress: Progress = lambda seed, share: None,
) -> list[SyncIntervalReport]:
    """Train a DeepFM on a drifting world, once per seed, and compare publish intervals.

    Args:
        seeds: Seeds of world and model.
        hours: Event time that is scored, after a warm-up of the longest interval.
        intervals_s: Publish intervals.
        events_per_s: Impressions per second of event time.
        users: Number of users.
        items: Number of items at a time.
        drift: Speeds of change; None = ``Drift.fast()``.
        batch_s: Event time of one batch; no version changes within it.
        threads: Threads of training; None = as many as cores.
        progress: Called during training.
    """
    if not hours > 0:
        raise ConfigError(f"hours is {hours}, expected a number above 0")
    warm_up_s = max(intervals_s)
    reports = []
    for seed in seeds:
        world = DriftingWorld(
            users=users, items=items, events_per_s=events_per_s, drift=drift or Drift.fast(), seed=seed
        )
        clicks = world.clicks(int((hours * 3600 + warm_up_s) * events_per_s))
        batches = list(clicks.dataset().batch(max(1, int(events_per_s * batch_s))))
        estimator = Estimator(_make_model, _quiet(seed, threads))
        scores = score_published_versions(estimator, batches, intervals_s, progress=partial(progress, seed))
        kept = scores.after(warm_up_s)
        rows = slice(len(clicks) - len(kept.label), None)
        best = {interval: world.stale_probability(clicks, interval)[rows] for interval in intervals_s}
        reports.append(_report(seed, kept, warm_up_s, clicks.click_probability[rows], best))
    return reports


def measure_file(
    make_estimator: Callable[[int], Estimator],
    batches: Iterable[Batch],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    intervals_s: Sequence[float] = INTERVALS_S,
    head: str | None = None,
    progress: Progress = lambda seed, share: None,
) -> list[SyncIntervalReport]:
    """Train a model on batches in the order of time, once per seed, and compare publish intervals.

    Args:
        make_estimator: Returns a new estimator for a seed.
        batches: Rows with event times; all batches are held in memory.
        seeds: Seeds of the estimators.
        intervals_s: Publish intervals; the rows of the first, longest interval are the warm-up.
        head: Head to score; None = the only one.
        progress: Called during training.

    Raises:
        DataError: The rows have no event times, are not sorted by time, or end before the warm-up does.
    """
    rows = list(batches)
    reports = []
    for seed in seeds:
        scores = score_published_versions(
            make_estimator(seed),
            rows,
            intervals_s,
            head=head,
            progress=partial(progress, seed),
        )
        reports.append(_report(seed, scores.after(max(intervals_s)), max(intervals_s)))
    return reports


def _report(
    seed: int,
    scores: PublishedScores,
    warm_up_s: float,
    truth: Floats | None = None,
    best: dict[float, Floats] | None = None,
) -> SyncIntervalReport:
    label = scores.label
    if not label.any() or label.all():
        raise ConfigError(
            f"{int(label.sum())} of {len(label)} rows after the warm-up of {warm_up_s:g} s are positive, expected rows "
            "of both labels; give more data, or shorter intervals"
        )
    ones = np.ones(len(label))
    found = difference_intervals(scores.scores, label, scores.time_s // _BLOCK_S, seed=seed)
    first = next(iter(found.values()))[0]
    return SyncIntervalReport(
        seed=seed,
        rows=len(label),
        warm_up_s=warm_up_s,
        best_auc=None if truth is None else weighted_auc(truth, label, ones),
        intervals=tuple(
            IntervalResult(
                interval_s=interval,
                auc=auc,
                loss=first - auc,
                loss_low=-high,
                loss_high=-low,
                best_auc=None if best is None else weighted_auc(best[interval], label, ones),
            )
            for interval, (auc, low, high) in found.items()
        ),
    )


def _make_model() -> Model:
    return DeepFM(
        sparse=["user_id", "item_id", "gender", "category"],
        dense=["price"],
        dim=8,
        hidden=[32],
    )


def _quiet(seed: int, threads: int | None) -> RunConfig:
    return RunConfig(seed=seed, threads=threads, log_step_count_steps=0, save_summary_steps=0)
