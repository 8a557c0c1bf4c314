from __future__ import annotations

from typing import Any, cast

import numpy as np

from monolith.embedding import MultiTable, PolynomialDecay, Sgd, SliceSpec, TableSpec
from monolith.ps import RemoteStore
from monolith.training.cluster.cluster_store import ClusterStore


def test_schedules_go_by_the_steps_of_all_workers() -> None:
    rate = PolynomialDecay(1.0, 10, 0.0)
    tables = MultiTable([TableSpec("user", [SliceSpec(1, optimizer=Sgd(1.0), learning_rate=rate)])])
    beside = 0
    store = ClusterStore(cast(RemoteStore, tables), frozenset(), is_live=False, steps_beside=lambda: beside)

    def moved(step: int) -> float:
        ids: dict[str, Any] = {"user": np.array([7])}
        before = float(store.pull(ids)["user"][0, 0])
        store.push(ids, {"user": np.ones((1, 1), np.float32)}, step=step)
        return before - float(store.pull(ids)["user"][0, 0])

    assert np.isclose(moved(2), 0.8)
    beside = 5
    assert np.isclose(moved(2), 0.3)
