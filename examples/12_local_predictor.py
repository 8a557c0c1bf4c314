"""Scores with an export inside this process, without a server, and shows rows that a training publishes.

Run it with ``python examples/12_local_predictor.py``. A batch job, a notebook or a test uses a model like this.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import monolith as mt
from monolith.core.clock import SystemClock
from monolith.demo.world import World
from monolith.serving import Servable
from monolith.sync import Follower

CLICKS = World(users=200, items=100, seed=4).clicks(5_000)
ROWS = 3


def model() -> mt.Model:
    return mt.models.DeepFM(
        sparse={"user_id": 1, "item_id": 2}, dense=["price"], dim=4, hidden=[8], vec_compressor=mt.Fp32()
    )


def score(predictor: Servable) -> np.ndarray:
    """Score the first rows; features are plain values by name."""
    features = {name: getattr(CLICKS, name)[:ROWS].tolist() for name in ("user_id", "item_id", "price")}
    return next(iter(predictor.predict_features(features).values()))


def show(name: str, scores: np.ndarray) -> None:
    print(f"{name}: {', '.join(f'{each:.4f}' for each in scores)}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        estimator = mt.Estimator(model, mt.RunConfig(seed=6, publish_dir=folder / "published"))
        estimator.train(CLICKS.rows(0, 1_000).dataset().batch(250))
        predictor = Servable.load(estimator.export(folder / "clicks", version=1))
        try:
            before = score(predictor)
            show("exported after 1,000 rows", before)
            estimator.train(CLICKS.rows(1_000, 5_000).dataset().batch(250), resume_data=False)
            Follower(folder / "published", predictor, clock=SystemClock()).step()
            after = score(predictor)
            show("same export at the newest cut", after)
            trained = next(iter(next(estimator.predict(CLICKS.dataset().batch(ROWS))).values()))
            is_same = np.abs(after - trained).max() < 1e-6 < np.abs(after - before).max()
            print(f"these are {'the same' if is_same else 'NOT the same'} as the scores of the trainer within 1e-6")
        finally:
            predictor.close()
    print("Next: examples/13_grpc_client.py asks a server; docs/guide/freshness.md has cuts and followers")


if __name__ == "__main__":
    main()
