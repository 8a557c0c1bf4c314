"""An agent that stops leaves the nodes that a successor with its name has taken over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from monolith.agent.bindings import Bindings
from monolith.agent.config import load_config
from monolith.agent.hosts import OwnHost
from monolith.agent.mirror import Mirror
from monolith.agent.own_replicas import OwnReplicas
from monolith.agent.records import Container, ContainerServiceInfo, ReplicaMeta, SavedModel
from monolith.discovery.zookeeper_session import ZooKeeperSession
from monolith.testing.suites.zookeeper_ensembles import MemoryEnsemble

HOST = OwnHost("10.0.0.7", "::", False)


@pytest.fixture
def ensemble() -> Iterator[MemoryEnsemble]:
    with MemoryEnsemble() as ensemble:
        yield ensemble


def owner(session: ZooKeeperSession, path: str) -> int | None:
    stat = session.exists(path)
    return None if stat is None else stat.ephemeralOwner


def test_bindings_of_a_successor_stay(ensemble: MemoryEnsemble) -> None:
    container, model = Container("default", "pod"), SavedModel("m", "ps_0")
    sessions = [ensemble.open(), ensemble.open()]
    old, new = (Bindings(session, "b") for session in sessions)
    try:
        for bindings in (old, new):
            bindings.report_service_info(container, ContainerServiceInfo(grpc="10.0.0.7:1"))
            bindings.sync_available_saved_models(container, [model])
        old.withdraw()
        for path in (f"/b/container_service/{container}", f"/b/binding/m/ps_0:{container}"):
            assert owner(sessions[1], path) == sessions[1].session_id
    finally:
        old.close()
        new.close()


def test_replicas_of_a_successor_stay(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    (tmp_path / "agent.conf").write_text(
        f"bzid b\nbase_name m\nbase_path {tmp_path}\nzk_servers 127.0.0.1:2181\ndeploy_type ps\n"
    )
    config = load_config(tmp_path / "agent.conf", {"MY_HOST_IP": "10.0.0.7", "REPLICA_ID": "2"})
    sessions = [ensemble.open(), ensemble.open()]
    old, new = (OwnReplicas(session, config, HOST) for session in sessions)
    try:
        old.start()
        new.start()
        old.withdraw()
        assert owner(sessions[1], f"{config.path_prefix}/ps:0/2") == sessions[1].session_id
    finally:
        old.close()
        new.close()


def test_services_of_a_successor_stay(ensemble: MemoryEnsemble) -> None:
    meta = ReplicaMeta(address="10.0.0.7:1", model_name="m", server_type="ps", task=0, replica=2)
    sessions = [ensemble.open(), ensemble.open()]
    old, new = (Mirror(session, "b", shard_id=0, replica_id=2) for session in sessions)
    try:
        old.update_service([meta])
        new.update_service([meta])
        old.update_service([])
        assert owner(sessions[1], meta.get_path("b")) == sessions[1].session_id
    finally:
        old.close()
        new.close()
