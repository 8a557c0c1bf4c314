"""Collisionless tables against hashed tables: AUC on later rows of a world, with the collision rates of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from monolith.demo.experiments.colliding_ids import collide
from monolith.demo.world import Clicks, World
from monolith.models import DeepFM
from monolith.training.config import RunConfig
from monolith.training.estimator import Estimator

__all__ = ["PAPER_SHARES", "CollisionResult", "measure_collisions"]

PAPER_SHARES: Mapping[str, float] = {"user_id": 0.0773, "item_id": 0.0286}
"""Shares of ids that collide in the paper's experiment on MovieLens-25M."""

_BATCH_ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class CollisionResult:
    """One seed."""

    seed: int
    rows: int
    """Rows that were scored, later than all training rows."""
    auc: float
    """AUC with one row per id."""
    hashed_auc: float
    """AUC with hashed ids."""
    best_auc: float
    """AUC of the true probabilities."""
    colliding_shares: Mapping[str, float]
    """Share of the ids of each feature that meet another id."""


def measure_collisions(
    seeds: Sequence[int] = (0, 1, 2),
    *,
    clicks: int = 300_000,
    users: int = 5_000,
    items: int = 1_000,
    factor: float = 1.0,
    threads: int | None = None,
    progress: Callable[[int, float], None] = lambda seed, share: None,
) -> list[CollisionResult]:
    """Train the same model on the same rows with exact and with hashed ids, once per seed.

    Args:
        seeds: Seeds of world and model.
        clicks: Impressions to train on; a fifth as many, later in time, are scored.
        users: Number of users.
        items: Number of items.
        factor: Multiplies the collision rates of the paper.
        threads: Threads of training; None = as many as cores.
        progress: Called with the seed and the share of its trainings that is done.
    """
    counts = {"user_id": users, "item_id": items}
    hashed = {name: collide(count, min(0.95, factor * PAPER_SHARES[name])) for name, count in counts.items()}
    results = []
    for seed in seeds:
        rows = World(users=users, items=items, seed=seed).clicks(clicks + clicks // 5)
        exact = _train_and_score(rows, clicks, seed, threads)
        progress(seed, 0.5)
        merged = replace(
            rows,
            user_id=hashed["user_id"].ids[rows.user_id - 1] + 1,
            item_id=hashed["item_id"].ids[rows.item_id - 1] + 1,
        )
        collided = _train_and_score(merged, clicks, seed, threads)
        progress(seed, 1.0)
        test = rows.rows(clicks)
        results.append(
            CollisionResult(
                seed=seed,
                rows=len(test),
                auc=exact,
                hashed_auc=collided,
                best_auc=test.best_auc,
                colliding_shares={name: each.share for name, each in hashed.items()},
            )
        )
    return results


def _train_and_score(rows: Clicks, trained: int, seed: int, threads: int | None) -> float:
    estimator = Estimator(
        lambda: DeepFM(sparse=["user_id", "item_id"], dim=8, hidden=[32]),
        RunConfig(seed=seed, threads=threads, log_step_count_steps=0, save_summary_steps=0),
    )
    estimator.train(rows.rows(0, trained).dataset().batch(_BATCH_ROWS))
    return estimator.evaluate(rows.rows(trained).dataset().batch(8192))["ctr/auc"]
