from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typing_extensions import override

from asked_models import note_asked_models
from monolith.agent.config import AgentConfig, load_config
from monolith.agent.hosts import OwnHost
from monolith.agent.messages import ModelServerConfig, ModelVersionStatus
from monolith.agent.model_loader import ModelLoader
from monolith.agent.records import ModelState, PublishMeta
from monolith.agent.scheduled_agent import ScheduledAgent
from monolith.agent.server_monitor import ServerMonitor
from monolith.agent.server_process import ServerControl
from monolith.discovery.zookeeper_nodes import put
from monolith.testing.eventually import eventually
from monolith.testing.suites.zookeeper_ensembles import MemoryEnsemble

HOST = OwnHost("127.0.0.1", "::", False)


@pytest.fixture
def ensemble() -> Iterator[MemoryEnsemble]:
    with MemoryEnsemble() as ensemble:
        yield ensemble


def ps_config(folder: Path, bzid: str, **variables: str) -> AgentConfig:
    path = folder / "agent.conf"
    path.write_text(f"bzid {bzid}\nagent_version 2\ndeploy_type ps\nzk_servers 127.0.0.1:2181\n")
    return load_config(path, {"MY_HOST_IP": "127.0.0.1", "REPLICA_ID": "0", "SHARD_ID": "0", **variables})


class FullDisk(ServerControl):
    """A server whose first change of models finds no space."""

    def __init__(self) -> None:
        self.attempts = 0
        self.is_set = threading.Event()

    @override
    def start(self) -> None:
        return

    @override
    def set_models(self, config: ModelServerConfig) -> None:
        if not config.model_config_list.config:
            return
        self.attempts += 1
        if self.attempts == 1:
            raise OSError(28, "No space left on device", "/tmp/ps.models")
        self.is_set.set()

    @override
    def list_saved_models(self) -> list[str]:
        return []

    @override
    def list_saved_models_status(self) -> dict[str, ModelVersionStatus]:
        return {}

    @override
    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        return

    @property
    def counts(self) -> dict[str, int]:
        return {}


def test_a_publish_that_finds_a_full_disk_is_loaded_after_it(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    bzid, server = f"b{uuid.uuid4().hex}", FullDisk()
    config = ps_config(tmp_path, bzid)
    agent = ScheduledAgent(
        config,
        ensemble.open(),
        HOST,
        lambda *_: server,  # type: ignore[arg-type, return-value]
        addresses_file=tmp_path / "addresses.json",
    )
    agent.start()
    try:
        meta = PublishMeta(0, 0, "m", 1, 1, {"ps_0": "/x/ps_0/12"})
        put(ensemble.open(), meta.get_path(f"/{bzid}/publish"), meta.to_bytes())
        assert server.is_set.wait(60)
        eventually(lambda: "m" in agent.loader.expected)
    finally:
        agent.stop(is_urgent=lambda: True)


def test_a_server_that_does_not_answer_is_asked_twice_for_all_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = note_asked_models(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        config = ps_config(tmp_path, "b", PORT3=str(silent.getsockname()[1]))
        monitor = ServerMonitor(config, "127.0.0.1")
        server = FullDisk()
        server.attempts = 1
        loader = ModelLoader(config, HOST, monitor, {kind: server for kind in monitor.server_types})
        publishes = [PublishMeta(0, 0, name, 2, 1, {"ps_0": "/x/ps_0/12", "ps_1": "/x/ps_1/12"}) for name in ("m", "n")]
        loader.load({each.model_name or "": each for each in publishes})
        try:
            metas = loader.replica_metas(0, 0)
        finally:
            monitor.close()
    assert asked == ["m:ps_0", "m:ps_0"]
    assert [(each.model_name, each.task, each.stat) for each in metas] == [
        (name, task, ModelState.UNKNOWN.value) for name in ("m", "n") for task in (0, 1)
    ]
