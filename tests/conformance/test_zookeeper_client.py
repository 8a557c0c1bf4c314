"""The client of real ZooKeeper servers and its in-memory twin pass one suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monolith.discovery.zookeeper_election import Election
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper
from monolith.testing.suites.zookeeper_ensembles import Ensemble, MemoryEnsemble, ServerEnsemble
from monolith.testing.suites.zookeeper_suite import ZooKeeperSuite, root

__all__ = ["root"]


class TestMemory(ZooKeeperSuite):
    @pytest.fixture
    def ensemble(self) -> Iterator[Ensemble]:
        with MemoryEnsemble() as ensemble:
            yield ensemble


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    if (reason := why_no_zookeeper()) is not None:
        pytest.skip(reason)
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'monolith[zookeeper]'")
    with ZooKeeperServer(tick_ms=500) as server:
        yield server


class TestServer(ZooKeeperSuite):
    @pytest.fixture
    def ensemble(self, server: ZooKeeperServer) -> Iterator[Ensemble]:
        with ServerEnsemble(server.address) as ensemble:
            yield ensemble

    def test_candidates_of_kazoo_and_ours_elect_one_leader(
        self, ensemble: Ensemble, server: ZooKeeperServer, root: str
    ) -> None:
        from kazoo.client import KazooClient

        theirs = KazooClient(server.address)
        theirs.start(timeout=30)
        lock = theirs.Lock(f"{root}/election", "theirs")
        assert lock.acquire(timeout=30)
        session = ensemble.open()
        election = Election(session, f"{root}/election", "ours")
        election.join()
        try:
            wait_until(lambda: lock.contenders() == ["theirs", "ours"])
            assert election.candidates() == ["theirs", "ours"]
            assert not election.is_leader
            lock.release()
            wait_until(lambda: election.is_leader)
        finally:
            election.leave()
            theirs.stop()
            theirs.close()


def wait_until(condition: object) -> None:
    from monolith.core.clock import Deadline, SystemClock

    clock = SystemClock()
    deadline = Deadline(clock, 60)
    while not condition():  # type: ignore[operator]
        assert not deadline.is_past, "the condition never became true"
        clock.sleep_s(0.02)
