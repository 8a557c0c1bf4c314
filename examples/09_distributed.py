"""Trains on two parameter servers, and resumes from their checkpoint on three: same model, same rows.

Run it with ``python examples/09_distributed.py``. The servers are in this process to keep it short; ``monolith launch
local`` starts a process for each.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import monolith as mt
from monolith.demo.world import World
from monolith.ps import ParameterServer, RemoteStore, ServerConfig

CLICKS = World(users=500, items=200, seed=4).clicks(20_000)
STEPS = 60


def model() -> mt.Model:
    return mt.models.DeepFM(sparse={"user_id": 1, "item_id": 2, "category": 4}, dense=["price"], dim=8, hidden=[16])


def train(folder: Path, servers: int, max_steps: int) -> tuple[dict[str, float], np.ndarray]:
    """Train to a step on so many servers (0 = tables in this process); return the metrics and the rows of users."""
    config = mt.RunConfig(model_dir=folder, deterministic=True, seed=6)
    with ExitStack() as stack:
        started = [
            stack.enter_context(ParameterServer(ServerConfig(index=index, shards=servers))) for index in range(servers)
        ]
        addresses = [server.address for server in started]
        store = (lambda specs: stack.enter_context(RemoteStore(addresses, specs))) if servers else None
        est = mt.Estimator(model, config, store=store)
        metrics = est.train(CLICKS.dataset().shuffle(5_000, seed=1).batch(256), max_steps=max_steps)
        return metrics, est.store.pull({"user_id": np.unique(mt.fid.switch_slot(CLICKS.user_id, 1))})["user_id"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        metrics, here = train(folder / "local", 0, STEPS)
        print(f"tables in this process: auc {metrics['ctr/auc']:.4f}")

        _, _ = train(folder / "remote", 2, STEPS // 2)
        print(f"two servers to step {STEPS // 2}; the servers are stopped, and their checkpoint stays")
        metrics, there = train(folder / "remote", 3, STEPS)
        print(f"three servers from that checkpoint: auc {metrics['ctr/auc']:.4f}")
        same = np.array_equal(here, there)
        print(f"{len(here):,} rows of users {'the same' if same else 'DIFFERENT'} as without servers, bit for bit")
    print("Next: with processes, monolith launch local --num-ps 2 --num-workers 2 -- train --task deepfm --data ...")


if __name__ == "__main__":
    main()
