from __future__ import annotations

import threading

from monolith.agent.sync_targets import ServiceMapTargets
from monolith.testing.eventually import eventually
from monolith.testing.suites.zookeeper_ensembles import MemoryEnsemble


def count_threads() -> int:
    return sum(thread.name == "sync-targets-watches" for thread in threading.enumerate())


def test_closed_targets_leave_no_thread() -> None:
    with MemoryEnsemble() as ensemble:
        targets = ServiceMapTargets(ensemble.open(), "default")
        targets.subscribe_model("m")
        assert count_threads() == 1
        targets.close()
        eventually(lambda: count_threads() == 0, timeout_s=10)
