"""Cases about ranking quality: DeepFM on MovieLens-1M, beside plain PyTorch, with colliding ids, and as a job."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from measure.results import PeerMissing, Result, skipped
from monolith.demo.experiments.colliding_ids import collide
from quality.batches import Renamed
from quality.job import SERVERS, WORKERS, train_job
from quality.models import train_ours, train_peer
from quality.movielens import Ratings, load, split_last
from quality.results import progress
from quality.workload import TEST_SHARE, Sizes

__all__ = ["COLLIDING", "ranking_cases"]

COLLIDING: Mapping[str, float] = {"user": 0.0773, "movie": 0.0286}
"""Share of ids that collide, as in the paper's experiment."""


def ranking_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Train once per seed and contestant, and compare."""
    try:
        ratings = load()
    except PeerMissing as error:
        yield from (skipped(case, error) for case in cases)
        return
    if sizes.users is not None:
        ratings = ratings.take(np.flatnonzero(ratings.user < sizes.users))
    train, test = split_last(ratings, TEST_SHARE)
    aucs, seconds = _ours(train, test, sizes)
    if "distributed_gap_auc" in cases:
        try:
            yield _as_job(train, test, sizes, aucs)
        except PeerMissing as error:
            yield skipped("distributed_gap_auc", error)
    if "ml1m_deepfm_auc" in cases:
        yield _beside_torch(train, test, sizes, aucs, seconds)
    if "collision_gap_auc" in cases:
        yield _with_collisions(train, test, sizes, aucs)


def _ours(
    train: Ratings, test: Ratings, sizes: Sizes, renamed: Renamed | None = None
) -> tuple[list[float], list[float]]:
    """Return the AUC and the seconds of every seed."""
    aucs, seconds = [], []
    for seed in sizes.seeds:
        progress(f"monolith, seed {seed}{', colliding ids' if renamed else ''}")
        start = time.perf_counter()
        aucs.append(train_ours(train, test, seed=seed, epochs=sizes.epochs, threads=sizes.threads, renamed=renamed))
        seconds.append(time.perf_counter() - start)
        progress(f"AUC {aucs[-1]:.4f}")
    return aucs, seconds


def _beside_torch(
    train: Ratings, test: Ratings, sizes: Sizes, aucs: Sequence[float], seconds: Sequence[float]
) -> Result:
    peers, peer_seconds = [], []
    for seed in sizes.seeds:
        progress(f"plain torch, seed {seed}")
        start = time.perf_counter()
        peers.append(train_peer(train, test, seed=seed, epochs=sizes.peer_epochs, threads=sizes.threads))
        peer_seconds.append(time.perf_counter() - start)
        progress(f"AUC {peers[-1]:.4f}")
    auc = float(np.mean(aucs))
    extra: dict[str, Any] = {
        "peer_name": "a perfect ranking, so that the ratio is the AUC itself",
        "ratio_low": min(aucs),
        "ratio_high": max(aucs),
        "aucs": _digits(aucs),
        "seconds": max(seconds),
        "torch_auc": float(np.mean(peers)),
        "torch_aucs": _digits(peers),
        "torch_seconds": max(peer_seconds),
        "over_torch": auc / float(np.mean(peers)),
        "train": len(train),
        "test": len(test),
    }
    return Result(case="ml1m_deepfm_auc", ours=auc, peer=1.0, ratio=auc, unit="AUC", rounds=len(aucs), extra=extra)


def _with_collisions(train: Ratings, test: Ratings, sizes: Sizes, aucs: Sequence[float]) -> Result:
    """The same model without and with collisions; ours is the one without."""
    hashed = {name: collide(train.counts[name], share) for name, share in COLLIDING.items()}
    collided, _ = _ours(train, test, sizes, {name: each.ids for name, each in hashed.items()})
    gaps = np.subtract(aucs, collided)
    extra: dict[str, Any] = {
        "peer_name": "the same model with colliding ids",
        "gap": float(gaps.mean()),
        "gaps": _digits(gaps),
        "aucs": _digits(aucs),
        "collided_aucs": _digits(collided),
        **{f"{name}_collisions": each.share for name, each in hashed.items()},
        **{f"{name}_table_size": each.table_size for name, each in hashed.items()},
    }
    ours, peer = float(np.mean(aucs)), float(np.mean(collided))
    return Result(
        case="collision_gap_auc",
        ours=ours,
        peer=peer,
        ratio=ours / peer,
        unit="AUC",
        rounds=len(aucs),
        extra=extra,
    )


def _as_job(train: Ratings, test: Ratings, sizes: Sizes, alone: Sequence[float]) -> Result:
    """The same model trained by servers and workers; the ratio is the largest distance to the one process."""
    aucs, seconds = [], []
    for seed in sizes.seeds:
        progress(f"{SERVERS} servers and {WORKERS} workers, seed {seed}")
        start = time.perf_counter()
        aucs.append(train_job(train, test, seed=seed, epochs=sizes.epochs, threads=sizes.threads))
        seconds.append(time.perf_counter() - start)
        progress(f"AUC {aucs[-1]:.4f}")
    gaps = np.subtract(aucs, alone)
    gap = float(np.abs(gaps).max())
    extra: dict[str, Any] = {
        "peer_name": "the same model trained in one process; the ratio is the largest gap of a seed",
        "ratio_low": float(np.abs(gaps).min()),
        "ratio_high": gap,
        "gap": gap,
        "gaps": _digits(gaps),
        "mean_gap": float(gaps.mean()),
        "aucs": _digits(aucs),
        "one_process_aucs": _digits(alone),
        "seconds": max(seconds),
        "servers": SERVERS,
        "workers": WORKERS,
    }
    return Result(
        case="distributed_gap_auc",
        ours=float(np.mean(aucs)),
        peer=float(np.mean(alone)),
        ratio=gap,
        unit="AUC",
        rounds=len(aucs),
        extra=extra,
    )


def _digits(values: Sequence[float] | np.ndarray[Any, Any]) -> list[float]:
    return [round(float(value), 5) for value in values]
