"""Stops a run half-way and resumes from its checkpoint, with the same bytes as an uninterrupted run.

Run it with ``python examples/07_resume.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import monolith as mt
from monolith.demo.world import World

CLICKS = World(users=500, items=200, seed=4).clicks(30_000)
STEPS = 100


def dataset() -> mt.data.Dataset:
    return CLICKS.dataset().shuffle(5_000, seed=1).batch(256)


def estimator(folder: Path) -> mt.Estimator:
    """Return an estimator as a new process would build it: the folder holds the state of the run."""
    config = mt.RunConfig(model_dir=folder, save_checkpoints_steps=40, deterministic=True, seed=6)
    return mt.Estimator(
        lambda: mt.models.DeepFM(
            sparse={"user_id": 1, "item_id": 2, "category": 4}, dense=["price"], dim=8, hidden=[16]
        ),
        config,
    )


def rows_of(est: mt.Estimator) -> np.ndarray:
    return est.store.pull({"user_id": np.unique(mt.fid.switch_slot(CLICKS.user_id, 1))})["user_id"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        whole = estimator(Path(name) / "whole")
        whole.train(dataset(), max_steps=STEPS)

        first = estimator(Path(name) / "in_two")
        first.train(dataset(), max_steps=57)
        print(f"stopped at step {first.step}; the newest checkpoint is {first.latest_checkpoint().name}")
        del first

        second = estimator(Path(name) / "in_two")
        print(f"a new estimator in the same folder is at step {second.step}")
        second.train(dataset(), max_steps=STEPS)

        weights = all(
            np.array_equal(whole.get_variable_value(key), second.get_variable_value(key))
            for key in whole.get_variable_names()
        )
        rows = np.array_equal(rows_of(whole), rows_of(second))
        print(f"at step {second.step}: dense weights {'the same' if weights else 'DIFFERENT'}, bit for bit")
        print(f"{len(rows_of(whole)):,} rows of users {'the same' if rows else 'DIFFERENT'}, bit for bit")
        kept = sorted(path.name for path in (Path(name) / "in_two").iterdir())
        print("in the folder:", ", ".join(kept))
    print("Next: a custom layer, examples/08_custom_layer.py; or look inside: monolith inspect checkpoint DIR")


if __name__ == "__main__":
    main()
