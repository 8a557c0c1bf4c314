from __future__ import annotations

import socket

import pytest

from asked_models import note_asked_models
from monolith.agent.fleet_view import read_fleet
from monolith.agent.records import ContainerServiceInfo
from monolith.discovery.zookeeper_nodes import put
from monolith.testing.suites.zookeeper_ensembles import MemoryEnsemble


def test_a_server_that_does_not_answer_is_asked_once_for_all_its_sub_models(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = note_asked_models(monkeypatch)
    with MemoryEnsemble() as ensemble, socket.create_server(("127.0.0.1", 0)) as silent:
        session = ensemble.open()
        info = ContainerServiceInfo(grpc=f"127.0.0.1:{silent.getsockname()[1]}")
        put(session, "/b/container_service/default:pod", info.to_bytes())
        for index in range(3):
            put(session, f"/b/binding/m/ps_{index}:default:pod", b"")
        rows = read_fleet(session, "b", now_s=0.0, timeout_s=0.1)
    assert asked == ["m:ps_0"]
    assert [(row.sub_model, row.version) for row in rows] == [("ps_0", None), ("ps_1", None), ("ps_2", None)]
