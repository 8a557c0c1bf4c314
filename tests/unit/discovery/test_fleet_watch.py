"""The servers of a fleet as their agents register them, with the real paths and records of the agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monolith.agent.node_paths import NodePaths
from monolith.agent.records import ModelState, ReplicaMeta
from monolith.core.errors import ConfigError
from monolith.discovery.fleet_watch import FleetWatch
from monolith.testing import eventually
from monolith.testing.fakes.memory_zookeeper import MemoryZooKeeper, MemoryZooKeeperClient

PATHS = NodePaths("ads")


@pytest.fixture
def client() -> Iterator[MemoryZooKeeperClient]:
    client = MemoryZooKeeper().client()
    client.start()
    yield client
    client.stop()


def register(
    client: MemoryZooKeeperClient, shard: int, replica: int, state: ModelState, location: str | None = None
) -> str:
    path = PATHS.replica("clicks", "ps", shard, replica, location)
    meta = ReplicaMeta(address=f"10.0.{shard}.{replica}:8500", stat=state.value, model_name="clicks", task=shard)
    client.ensure(path.rpartition("/")[0])
    client.create(path, meta.to_bytes())
    return path


@pytest.mark.parametrize("location", [None, "lf:default"])
def test_a_watch_follows_replicas_that_come_become_available_and_go(
    client: MemoryZooKeeperClient, location: str | None
) -> None:
    changes: list[None] = []
    watch = FleetWatch(client, "ads", "clicks", on_change=lambda: changes.append(None))
    try:
        assert watch.servers() == {}
        first = register(client, 0, 1, ModelState.AVAILABLE, location)
        register(client, 1, 1, ModelState.LOADING, location)
        second = register(client, 1, 2, ModelState.AVAILABLE, location)
        register_entry = PATHS.replica("clicks", "entry", 0, 1, location)
        client.ensure(register_entry)
        wanted = {0: ("10.0.0.1:8500",), 1: ("10.0.1.2:8500",)}
        eventually(lambda: watch.servers() == wanted, message="two available replicas")
        client.set(second, ReplicaMeta(address="10.0.1.2:8500", stat=ModelState.UNLOADING.value).to_bytes())
        eventually(lambda: watch.servers() == {0: ("10.0.0.1:8500",), 1: ()}, message="the replica that unloads")
        client.set(second, b"nonsense")
        client.delete(first)
        eventually(lambda: watch.servers() == {0: (), 1: ()}, message="the replica that left")
        assert changes
    finally:
        watch.close()


def test_names_that_cannot_be_paths_are_refused(client: MemoryZooKeeperClient) -> None:
    with pytest.raises(ConfigError, match="bzid is 'a/b'"):
        FleetWatch(client, "a/b", "clicks")
