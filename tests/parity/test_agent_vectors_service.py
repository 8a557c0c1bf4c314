"""Vectors of the original for AgentService, its client, the heartbeat map and the layout agent."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from monolith.agent.address_client import AddressClient, HeartbeatMap, served_name
from monolith.agent.address_messages import HeartBeatResponse
from monolith.agent.address_service import AddressService, LayoutAddressBook
from monolith.agent.bindings import Bindings
from monolith.agent.config import AgentConfig, load_config, resolve
from monolith.agent.environment import read_environment
from monolith.agent.hosts import OwnHost
from monolith.agent.layout_agent import LayoutAgent
from monolith.agent.layouts import Layouts
from monolith.agent.messages import ModelServerConfig, ModelVersionStatus, make_version_status
from monolith.agent.mirror import Mirror
from monolith.agent.model_configs import make_server_config
from monolith.agent.prediction import PredictionClient, random_instances
from monolith.agent.records import (
    ContainerServiceInfo,
    ModelState,
    ReplicaMeta,
    ResourceSpec,
    SavedModel,
    SavedModelDeployConfig,
)
from monolith.agent.replica_map import ReplicaMap
from monolith.agent.replicas import FixedAddressBook
from monolith.agent.scheduled_agent import ScheduledAddressBook
from monolith.agent.server_process import ServerControl
from monolith.agent.settings import DeployType
from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import ClusterError, ShardUnavailable
from monolith.discovery.zookeeper_nodes import put
from monolith.discovery.zookeeper_session import ZooKeeperSession
from monolith.testing.fakes.fake_model_server import FakeModelServer
from monolith.testing.suites.zookeeper_ensembles import MemoryEnsemble

MODEL = "test_ffm_model"
HOST = OwnHost("127.0.0.1", "::", False)


def wait_until(is_true: Callable[[], object], patience_s: float = 60.0) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, patience_s)
    while not is_true():
        assert not deadline.is_past, "the condition never became true"
        clock.sleep_s(0.01)


@pytest.fixture
def ensemble() -> Iterator[MemoryEnsemble]:
    with MemoryEnsemble() as memory:
        yield memory


@pytest.fixture
def session(ensemble: MemoryEnsemble) -> ZooKeeperSession:
    return ensemble.open()


class LocalReplicas:
    """The map of a version 1 model without own servers."""

    def __init__(self, replicas: ReplicaMap, location: tuple[str | None, str | None]) -> None:
        self.map = replicas
        self.own_location = location


@pytest.fixture
def fixed(session: ZooKeeperSession) -> Iterator[AddressClient]:
    """A version 1 service: 20 PS tasks and an entry with two replicas each, in lf:default."""
    bzid = f"b{uuid.uuid4().hex}"
    config = AgentConfig(bzid=bzid, base_name="m")
    for task, location in [(f"ps:{i}", "lf:default") for i in range(20)] + [("entry:0", "lf:default")]:
        for replica in range(2):
            meta = ReplicaMeta(address=f"10.0.{replica}.1:{abs(hash(task)) % 9999}", stat=ModelState.AVAILABLE.value)
            put(session, f"/{bzid}/service/m/{location}/{task}/{replica}", meta.to_bytes())
    other = ReplicaMeta(address="10.9.9.9:1", stat=ModelState.AVAILABLE.value).to_bytes()
    put(session, f"/{bzid}/service/m/hl:default/ps:0/7", other)
    replicas = ReplicaMap(session, config.paths, "m", dc_aware=True)
    replicas.start()
    book = FixedAddressBook(LocalReplicas(replicas, ("lf", "default")))  # type: ignore[arg-type]
    service = AddressService(book, "127.0.0.1:0")
    service.start()
    wait_until(lambda: sum(map(len, replicas.get_all_replicas("ps").values())) == 41)
    wait_until(lambda: sum(map(len, replicas.get_all_replicas("entry").values())) == 2)
    with AddressClient(f"127.0.0.1:{service.port}", timeout_s=30) as client:
        client.session, client.bzid = session, bzid  # type: ignore[attr-defined]
        yield client
    service.stop()
    replicas.close()


# T30, T31, D45
def test_t30_t31_d45_a_fixed_agent_answers_the_tasks_of_its_location(fixed: AddressClient) -> None:
    answer = fixed.heart_beat("ps").addresses
    assert set(answer) == {f"ps:{index}" for index in range(20)}
    assert len(fixed.get_replicas("ps", 1).address_list.address) == 2
    assert "10.9.9.9:1" not in {address for listed in answer.values() for address in listed.address}
    entry = fixed.heart_beat("entry").addresses
    assert {key: len(listed.address) for key, listed in entry.items()} == {"entry:0": 2}
    assert dict(fixed.heart_beat("dense").addresses) == {}
    resource = fixed.get_resource()
    assert (resource.address, resource.memory) == ("", 0)


# D45
def test_d45_an_unknown_replica_leaves_its_list_and_the_key_stays(fixed: AddressClient) -> None:
    session, bzid = fixed.session, fixed.bzid  # type: ignore[attr-defined]
    for replica in range(2):
        put(session, f"/{bzid}/service/m/lf:default/ps:3/{replica}", ReplicaMeta(address="10.0.0.1:1").to_bytes())
        left = 1 - replica
        wait_until(lambda left=left: len(fixed.heart_beat("ps").addresses["ps:3"].address) == left)
    assert "ps:3" in fixed.heart_beat("ps").addresses


# D46
def test_d46_a_scheduled_agent_answers_by_model_type_and_task(session: ZooKeeperSession) -> None:
    mirror = Mirror(session, "b", replica_id=1)
    mirror.start()
    book = ScheduledAddressBook(mirror, lambda: ResourceSpec("10.0.0.7:1", 2, 799262774729, 5))
    service = AddressService(book, "127.0.0.1:0")
    service.start()
    mirror.update_service(
        ReplicaMeta(f"10.0.0.7:{port}", None, 30, model, "ps", 0, 1) for model, port in (("m", 1), ("n", 2))
    )
    with AddressClient(f"127.0.0.1:{service.port}", timeout_s=30) as client:
        wait_until(lambda: set(client.heart_beat("ps").addresses) == {"m:ps:0", "n:ps:0"})
        assert list(client.get_replicas("ps", 0, "n").address_list.address) == ["10.0.0.7:2"]
        resource = client.get_resource()
        assert (resource.address, resource.shard_id, resource.replica_id) == ("10.0.0.7:1", 2, -1)
        assert (resource.memory, resource.cpu) == (5, -1.0)
    service.stop()
    mirror.close()


class GivenMap:
    """A service map that a test sets."""

    def __init__(self, services: dict[str, dict[str, list[ContainerServiceInfo]]]) -> None:
        self._services = services

    def get_service_map(self) -> dict[str, dict[str, list[ContainerServiceInfo]]]:
        return self._services


# D46, D47
def test_d46_d47_a_layout_agent_answers_by_model_and_sub_graph() -> None:
    info = ContainerServiceInfo(grpc="h:1", archon="h:2")
    services = GivenMap({"m": {"entry": [info], "ps_0": [info, ContainerServiceInfo(grpc="g:1", archon="g:2")]}})
    book = LayoutAddressBook(services, resource=lambda: ResourceSpec("h:9", 0, 1, 10))
    service = AddressService(book, "127.0.0.1:0")
    service.start()
    with AddressClient(f"127.0.0.1:{service.port}", timeout_s=30) as client:
        answer = {key: list(value.address) for key, value in client.heart_beat("dense").addresses.items()}
        assert answer == {"m:entry": ["h:1"], "m:ps_0": ["g:1", "h:1"]}
        assert list(client.get_replicas("ps", 0, "m").address_list.address) == ["g:1", "h:1"]
        assert list(client.get_replicas("entry", 0, "m").address_list.address) == ["h:1"]
        assert list(client.get_replicas("ps", 4, "m").address_list.address) == []
        with pytest.raises(ClusterError, match="not implement for agent v3"):
            client.get_replicas("ps", 0)
        resource = client.get_resource()
        assert (resource.address, resource.memory, resource.cpu) == ("h:9", 10, -1.0)
        assert service.seconds_since_heartbeat is not None
    service.stop()
    with pytest.raises(ShardUnavailable), AddressClient(f"127.0.0.1:{service.port}", timeout_s=5) as client:
        client.heart_beat("ps")
    assert LayoutAddressBook(services, use_archon=True).addresses()["m:entry"] == ["h:2"]


# --- heartbeat map ---


def answer_of(addresses: dict[str, list[str]]) -> HeartBeatResponse:
    response = HeartBeatResponse()
    for key, listed in addresses.items():
        response.addresses[key].address.extend(listed)
    return response


# T53, T54, D74
def test_t53_t54_d74_a_heartbeat_map_follows_the_agent_and_survives_a_failure() -> None:
    state = {"n": 1, "fails": False}

    def ask(server_type: str) -> HeartBeatResponse:
        if state["fails"]:
            raise ClusterError("away")
        return answer_of({"model_name": [f"localhost:{state['n']}"]})

    changes: list[dict[str, tuple[str, ...]]] = []
    heartbeats = HeartbeatMap(ask, interval_s=0.0, on_change=lambda new: changes.append(dict(new)))
    heartbeats.start()
    assert heartbeats.addresses() == {"model_name": ("localhost:1",)}
    state["n"] = 2
    wait_until(lambda: heartbeats.addresses() == {"model_name": ("localhost:2",)}, 10)
    state["fails"] = True
    heartbeats.update()
    assert heartbeats.addresses() == {"model_name": ("localhost:2",)}
    assert heartbeats.age_s is not None
    heartbeats.stop()
    assert changes == [{"model_name": ("localhost:1",)}, {"model_name": ("localhost:2",)}]


# T57, T58
def test_t57_t58_a_key_names_its_model_on_the_servers() -> None:
    assert served_name("ps:0") == "ps_0"
    assert served_name("model_name:ps_0") == "model_name:ps_0"


# T55
def test_t55_port2_is_the_address_of_the_agent() -> None:
    config = resolve(AgentConfig(deploy_type=DeployType.ENTRY), read_environment({"PORT2": "1234"}))
    assert config.ports.agent_port == 1234
    with AddressClient(f"localhost:{config.ports.agent_port}") as client:
        assert HeartbeatMap(client.heart_beat).addresses() == {}


# T56
def test_t56_a_predict_goes_to_the_address_of_its_key() -> None:
    inputs = ("instances", random_instances(2))
    with FakeModelServer.with_model("m:ps_0", 1) as first, FakeModelServer.with_model("m:ps_1", 1) as second:
        services = GivenMap(
            {
                "m": {
                    "ps_0": [ContainerServiceInfo(grpc=first.address)],
                    "ps_1": [ContainerServiceInfo(grpc=second.address)],
                }
            }
        )
        service = AddressService(LayoutAddressBook(services), "127.0.0.1:0")
        service.start()
        with AddressClient(f"127.0.0.1:{service.port}", timeout_s=30) as client:
            heartbeats = HeartbeatMap(client.heart_beat)
            heartbeats.update()
        service.stop()

        def predict(key: str) -> None:
            (address,) = heartbeats.addresses()[key]
            with PredictionClient(address, timeout_s=30) as client:
                assert client.status(served_name(key)).model_version_status[0].version == 1
                client.predict(served_name(key), inputs)

        predict("m:ps_0")
        predict("m:ps_1")
        first.close()
        with pytest.raises(ShardUnavailable):
            predict("m:ps_0")
        predict("m:ps_1")


# --- layout agent ---


class FakeControl(ServerControl):
    """A server without a process; every model is AVAILABLE."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.config = make_server_config([])
        self.state = ModelState.AVAILABLE

    def start(self) -> None:
        pass

    def set_models(self, config: ModelServerConfig) -> None:
        with self._lock:
            self.config = config

    def list_saved_models(self) -> list[str]:
        with self._lock:
            return [each.name for each in self.config.model_config_list.config]

    def list_saved_models_status(self) -> dict[str, ModelVersionStatus]:
        return {name: make_version_status(1, self.state) for name in self.list_saved_models()}

    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        pass


# T32, T33, T34, T35, T36, T37, D47
def test_t32_to_t37_a_layout_agent_serves_binds_and_releases(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    conf = tmp_path / "agent.conf"
    conf.write_text(
        "bzid gip\ndeploy_type unified\nagent_version 3\nlayout_pattern /gip/layout\nzk_servers 127.0.0.1:2181\n"
    )
    config = load_config(conf, {"MY_HOST_IP": "127.0.0.1", "MY_POD_NAME": "pod"})
    session, outside = ensemble.open(), ensemble.open()
    layouts = Layouts(outside, "gip")
    for name in ("entry", "ps_0", "ps_1", "ps_2"):
        layouts.declare(SavedModel(MODEL, name), SavedModelDeployConfig(str(tmp_path / name), "latest"))
    server = FakeControl()
    addresses = tmp_path / "addresses.json"
    agent = LayoutAgent(config, session, HOST, lambda on_end, on_final: server, addresses_file=addresses, notice_s=0.01)
    agent.start()
    try:
        info = agent.service_info
        assert agent.bindings.get_service_info(agent.container) == info
        assert server.list_saved_models() == []
        for name in ("entry", "ps_0"):
            layouts.add_to_layout("/gip/layout", SavedModel(MODEL, name))
        wait_until(lambda: server.list_saved_models() == [f"{MODEL}:entry", f"{MODEL}:ps_0"])
        agent.sync_available()
        wait_until(lambda: agent.bindings.get_service_map() == {MODEL: {"entry": [info], "ps_0": [info]}})
        expected = {f"{MODEL}:entry": [info.grpc], f"{MODEL}:ps_0": [info.grpc]}
        wait_until(lambda: json.loads(addresses.read_text()) == expected)
        layouts.remove_from_layout("/gip/layout", SavedModel(MODEL, "ps_0"))
        wait_until(lambda: server.list_saved_models() == [f"{MODEL}:entry"])
        wait_until(lambda: agent.bindings.get_service_map() == {MODEL: {"entry": [info]}})
    finally:
        agent.stop()
    assert outside.children("/gip/container_service") == []
    assert outside.children(f"/gip/binding/{MODEL}") == []


def test_a_followed_model_is_in_the_service_map_without_a_layout(ensemble: MemoryEnsemble) -> None:
    session = ensemble.open()
    bindings = Bindings(session, "b")
    container_path = "/b/container_service/c:1"
    put(session, container_path, ContainerServiceInfo(grpc="h:1").to_bytes())
    put(session, "/b/binding/m/ps_0:c:1", b"")
    bindings.follow_models({"m"})
    bindings.follow_models({"m"})
    wait_until(lambda: bindings.get_addresses(SavedModel("m", "ps_0")) == ["h:1"])
    bindings.close()


def test_a_unified_agent_without_a_layout_serves_all_of_its_base_path(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    base = tmp_path / "models"
    for name in ("entry/1", "ps_0/1", "ps_1/2", "ps_1/10", "empty"):
        (base / name).mkdir(parents=True)
    conf = tmp_path / "agent.conf"
    conf.write_text(
        f"bzid gip\ndeploy_type unified\nagent_version 3\nbase_path {base}\nbase_name m\nzk_servers h:1\n"
        "layout_filters ps_{i}; i == 1\nlayout_filters entry\n"
    )
    config = load_config(conf, {"MY_HOST_IP": "127.0.0.1", "MY_POD_NAME": "pod"})
    server = FakeControl()
    agent = LayoutAgent(
        config,
        ensemble.open(),
        HOST,
        lambda on_end, on_final: server,
        addresses_file=tmp_path / "addresses.json",
        notice_s=0.01,
    )
    agent.start()
    try:
        wait_until(lambda: server.list_saved_models() == ["m:entry", "m:ps_1"])
        policies = {each.name: each.model_version_policy for each in server.config.model_config_list.config}
        assert list(policies["m:ps_1"].specific.versions) == [10]
        assert policies["m:entry"].latest.num_versions == 1
        info = agent.service_info
        wait_until(lambda: agent.bindings.get_service_map() == {"m": {"entry": [info], "ps_1": [info]}})
    finally:
        agent.stop()


def test_the_end_of_a_server_removes_all_bindings_immediately(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    conf = tmp_path / "agent.conf"
    conf.write_text("bzid gip\ndeploy_type unified\nagent_version 3\nlayout_pattern l\nzk_servers 127.0.0.1:2181\n")
    config = load_config(conf, {"MY_HOST_IP": "127.0.0.1", "MY_POD_NAME": "pod"})
    session, outside = ensemble.open(), ensemble.open()
    layouts = Layouts(outside, "gip")
    layouts.declare(SavedModel(MODEL, "ps_0"), SavedModelDeployConfig(str(tmp_path), "latest"))
    layouts.add_to_layout("/gip/layouts/l", SavedModel(MODEL, "ps_0"))
    server = FakeControl()
    calls: list[Callable[..., None]] = []

    def make(on_end: Callable[[], None], on_final: Callable[[str], None]) -> FakeControl:
        calls.extend((on_end, on_final))
        return server

    agent = LayoutAgent(config, session, HOST, make, addresses_file=tmp_path / "a.json", notice_s=0.01)
    agent.start()
    node = f"/gip/binding/{MODEL}/ps_0:{agent.container}"
    try:
        wait_until(lambda: outside.exists(node))
        server.state = ModelState.UNKNOWN
        calls[0]()
        assert outside.exists(node) is None
        server.state = ModelState.AVAILABLE
        wait_until(lambda: outside.exists(node))
        assert agent.failure is None
        calls[1]("server unified ended 6 times")
        assert agent.failure == "server unified ended 6 times"
    finally:
        agent.stop()
