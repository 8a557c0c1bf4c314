"""Vectors of the original for the fake server, the monitor, own replicas, children and dense groups."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import random
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from asked_models import note_asked_models
from monolith.agent.addresses_file import addresses_text
from monolith.agent.children import MAX_ENDS, Child, ChildPlan, log_path
from monolith.agent.config import AgentConfig, load_config
from monolith.agent.dense_group import child_environment
from monolith.agent.environment import AgentEnvironment, read_environment
from monolith.agent.fixed_agent import FixedAgent, start_order, stop_order
from monolith.agent.hosts import OwnHost
from monolith.agent.messages import (
    GetModelMetadataRequest,
    GetModelMetadataResponse,
    ModelServerConfig,
    ModelVersionStatus,
    make_model_spec,
    make_version_status,
)
from monolith.agent.model_configs import make_model_config, make_server_config
from monolith.agent.model_copies import CopyTimes, ModelCopies
from monolith.agent.own_replicas import OwnReplica, OwnReplicas, next_state, own_sub_models
from monolith.agent.records import ModelState, PublishMeta, PublishType, ReplicaMeta, ServerType
from monolith.agent.replica_map import ReplicaMap
from monolith.agent.replicas import Replicas
from monolith.agent.server_monitor import ServerClient, ServerMonitor, best_status
from monolith.agent.server_process import ServerControl, ServerProcess
from monolith.agent.settings import DeployType
from monolith.agent.sync_targets import ReplicaTargets
from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError, RpcTimeout
from monolith.core.lifeline import Lifeline
from monolith.discovery.zookeeper_nodes import delete_tree, put
from monolith.discovery.zookeeper_session import ZooKeeperSession
from monolith.discovery.zookeeper_watches import NodeWatches
from monolith.rpc import grpc
from monolith.rpc.security import Security
from monolith.testing.fakes.fake_model_server import FakeModelServer
from monolith.testing.suites.zookeeper_ensembles import MemoryEnsemble

VERSION = 1634631496
HOST = OwnHost("10.0.0.7", "::", False)


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


# --- fake server ---


# T38, T39, T40, D48
def test_t38_to_t40_d48_the_fake_server_walks_through_states() -> None:
    with FakeModelServer.with_model("test_model_test", 2) as server:
        client = ServerClient(server.address, timeout_s=30)
        states = {1: ModelState.AVAILABLE, 2: ModelState.AVAILABLE}
        wait_until(lambda: {each.version: int(each.state) for each in client.model_status("test_model_test")} == states)
        assert [each.version for each in client.model_status("test_model_test", 1)] == [1]
        (missing,) = client.model_status("other")
        assert (missing.version, int(missing.status.error_code)) == (-1, 5)
        assert missing.status.error_message == "other is not found"
        twice = [make_model_config("test_model", "/m", version_data=count) for count in (2, 1)]
        assert int(client.reload(make_server_config(twice)).error_code) == 0
        wait_until(lambda: client.model_status("test_model_test")[0].version == -1)
        server.add_version("test_model")
        wait_until(lambda: [each.version for each in client.model_status("test_model")] == [2])
        client.close()
        client.close()
        with pytest.raises(ClusterError, match="closed"):
            client.model_status("test_model")
        assert int(client.probe_status("test_model").state) == ModelState.UNKNOWN


# T38, D48
def test_t38_d48_the_fake_server_answers_metadata_and_unloads_before_a_model_is_gone() -> None:
    with FakeModelServer.with_model("test_model_test", 2, "/models/t", step_s=1.0) as server:
        channel = grpc.open_channel(server.address, Security(), 4 << 20)
        ask = channel.unary_unary(
            "/tensorflow.serving.PredictionService/GetModelMetadata",
            request_serializer=GetModelMetadataRequest.SerializeToString,
            response_deserializer=GetModelMetadataResponse.FromString,
        )
        fields = ["base_path", "num_versions", "signature_name"]
        spec = make_model_spec("test_model_test", 2)
        answer = ask(GetModelMetadataRequest(model_spec=spec, metadata_field=fields), timeout=30)
        assert answer.model_spec == spec
        assert [answer.metadata[name].value for name in fields] == [b"/models/t", b"2", b"serving_default"]
        channel.close()
        client = ServerClient(server.address, timeout_s=30)
        client.reload(make_server_config([]))
        assert {int(each.state) for each in client.model_status("test_model_test")} == {ModelState.UNLOADING}
        wait_until(lambda: client.model_status("test_model_test")[0].version == -1)
        client.close()


# --- monitor ---


def monitored(deploy: DeployType, *, dense_alone: bool = False, ports: dict[str, int] | None = None) -> AgentConfig:
    numbers = ports or {"ps": 1, "entry": 2, "dense": 3}
    return AgentConfig(
        bzid="b",
        deploy_type=deploy,
        dense_alone=dense_alone,
        agent_version=2,
        environment=AgentEnvironment(),
        tfs_ps_port=numbers["ps"],
        tfs_entry_port=numbers["entry"],
        tfs_dense_port=numbers.get("dense"),
    )


def publish(name: str, num_ps: int = 6) -> PublishMeta:
    sub_models = {"entry": f"/x/entry/{VERSION}"} | {
        f"ps_{j}": f"/x/ps_{j}/{VERSION}" for j in range(num_ps) if j % 3 == 0
    }
    return PublishMeta(0, 0, name, num_ps, 1, sub_models)


# T59, T60, T61
def test_t59_to_t61_the_monitor_reports_and_reloads() -> None:
    chance = random.Random(3)
    first = PublishMeta(
        0, 0, "test_1", 6, 1, {name: f"/x/{name}/{VERSION}" for name in ("entry", "ps_0", "ps_3", "ps_5")}
    )
    with FakeModelServer() as ps, FakeModelServer() as entry:
        monitor = ServerMonitor(
            monitored(DeployType.MIXED, ports={"ps": ps.port, "entry": entry.port}),
            "127.0.0.1",
            make_client=lambda address: ServerClient(address, timeout_s=30),
        )
        before = monitor.get_model_status(first)
        assert {(each.version, int(each.status.error_code)) for _, each in before.values()} == {(-1, 5)}
        assert set(before) == {f"test_1:{name}" for name in ("entry", "ps_0", "ps_3", "ps_5")}
        publishes = [publish(f"test_{index}", chance.randint(5, 20)) for index in range(10)]
        for kind, models in monitor.gen_model_config(publishes).items():
            assert int(monitor.handle_reload_config_request(kind, models).error_code) == 0
        wait_until(lambda: int(monitor.get_model_status(first)["test_1:ps_0"][1].state) == ModelState.AVAILABLE)
        wait_until(lambda: int(monitor.get_model_status(first)["test_1:entry"][1].state) == ModelState.AVAILABLE)
        after = monitor.get_model_status(first)
        assert {name: path for name, (path, _) in after.items()} == {name: path for name, (path, _) in before.items()}
        assert {name: each.version for name, (_, each) in after.items()} == {
            "test_1:entry": 1,
            "test_1:ps_0": VERSION,
            "test_1:ps_3": VERSION,
            "test_1:ps_5": -1,
        }
        for kind, models in monitor.gen_model_config(publishes[5:]).items():
            monitor.handle_reload_config_request(kind, models)
        wait_until(lambda: {each.version for _, each in monitor.get_model_status(first).values()} == {-1})
        monitor.close()
        closed = monitor.get_model_status(first)["test_1:ps_0"][1]
        assert int(closed.state) == ModelState.UNKNOWN


def spell(monitor: ServerMonitor, publishes: list[PublishMeta], **options: bool) -> dict[str, str]:
    found = {}
    for kind, models in monitor.gen_model_config(publishes, **options).items():
        for each in models.model_config_list.config:
            policy = each.model_version_policy
            text = (
                f"specific {list(policy.specific.versions)}"
                if policy.HasField("specific")
                else f"latest {policy.latest.num_versions}"
            )
            found[f"{kind.value} {each.name} {each.base_path}"] = text
    return found


# D75
def test_d75_model_configs_of_publishes() -> None:
    meta = PublishMeta(0, 0, "m", 1, 1, {"entry": "/x/entry/12", "ps_0": "/x/ps_0/12", "dense_0": "/x/dense_0/12"})
    parts = PublishMeta(0, 0, "m", 1, 1, {"entry": "/x/entry/12", "ps_0": "/x/ps_0/12"})
    mixed = ServerMonitor(monitored(DeployType.MIXED), "127.0.0.1")
    assert spell(mixed, [parts]) == {"entry m:entry /x/entry": "latest 1", "ps m:ps_0 /x/ps_0": "specific [12]"}
    assert spell(mixed, [parts], fix_dense_version=True)["entry m:entry /x/entry"] == "specific [12]"
    alone = ServerMonitor(monitored(DeployType.MIXED, dense_alone=True), "127.0.0.1")
    assert spell(alone, [meta]) == {
        "entry m:entry /x/entry": "specific [12]",
        "ps m:ps_0 /x/ps_0": "specific [12]",
        "dense m:dense_0 /x/dense_0": "latest 1",
    }
    unload = PublishMeta(0, 0, "m", 1, 1, parts.sub_models, PublishType.UNLOAD.value)
    assert spell(mixed, [unload]) == {}
    only_ps = ServerMonitor(monitored(DeployType.PS), "127.0.0.1")
    assert spell(only_ps, [parts]) == {"ps m:ps_0 /x/ps_0": "specific [12]"}
    for each in (mixed, alone, only_ps):
        each.close()


# --- own replicas and the map ---


def status(version: int, state: ModelState, code: int = 0) -> ModelVersionStatus:
    return make_version_status(version, state, code)


# D59
@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (None, ModelState.UNKNOWN),
        ([status(2, ModelState.LOADING)], ModelState.LOADING),
        ([status(1, ModelState.AVAILABLE), status(2, ModelState.LOADING)], ModelState.AVAILABLE),
        ([status(1, ModelState.END), status(2, ModelState.LOADING)], ModelState.LOADING),
        ([], ModelState.START),
        ([status(1, ModelState.AVAILABLE, 5)], ModelState.UNKNOWN),
    ],
)
def test_d59_a_status_answer_gives_a_state(statuses: Sequence[ModelVersionStatus] | None, expected: ModelState) -> None:
    assert next_state(statuses, ModelState.START) is expected
    assert best_status([]) is None


def fixed_config(tmp_path: Path, text: str = "", *, base_name: str = "m", **variables: str) -> AgentConfig:
    conf = tmp_path / "agent.conf"
    conf.write_text(
        f"bzid b{uuid.uuid4().hex}\nbase_name {base_name}\nbase_path /models/m\nzk_servers 127.0.0.1:2181\n"
        f"deploy_type mixed\nnum_ps 20\ndc_aware true\n{text}"
    )
    values = {"MY_HOST_IP": "10.0.0.7", "TCE_INTERNAL_IDC": "lf", "TCE_CLUSTER": "default"}
    return load_config(conf, {**values, "MONOLITH_HOST_SHARD_N": "5", "SHARD_ID": "1", "REPLICA_ID": "2", **variables})


def register_others(session: ZooKeeperSession, config: AgentConfig, count: int = 3, own: int = 2) -> None:
    for task in [f"ps:{index}" for index in range(20)] + ["entry:0"]:
        is_own = task in ("ps:1", "ps:6", "ps:11", "ps:16")
        for replica in range(count):
            if is_own and replica == own:
                continue
            meta = ReplicaMeta(address=f"10.1.{replica}.1:1", stat=ModelState.AVAILABLE.value)
            name = f"1{replica}" if task == "entry:0" else str(replica)
            put(session, f"{config.path_prefix}/{task}/{name}", meta.to_bytes())


# D58, D59, D68, D69
def test_d58_own_replicas_join_the_map_when_their_servers_answer(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    config = fixed_config(tmp_path)
    session, outside = ensemble.open(), ensemble.open()
    register_others(outside, config)
    answers: dict[str, list[ModelVersionStatus]] = {}

    def ask(replica: OwnReplica) -> list[ModelVersionStatus]:
        if not answers:
            raise ClusterError("no server")
        return answers[replica.sub_model]

    replicas = Replicas(session, config, HOST, ask, status_s=600)
    assert [each.sub_model for each in own_sub_models(config)] == ["entry", "ps_1", "ps_6", "ps_11", "ps_16"]
    replicas.start()
    try:
        own = {"ps:1", "ps:6", "ps:11", "ps:16"}

        def counts() -> dict[str, int]:
            found = replicas.map.get_all_replicas("ps", *replicas.own_location)
            return {key.rpartition("/")[2]: len(addresses) for key, addresses in found.items()}

        wait_until(lambda: counts() == {f"ps:{i}": 2 if f"ps:{i}" in own else 3 for i in range(20)})
        wait_until(lambda: len(replicas.map.get_replicas("entry", 0)) == 3)
        assert replicas.is_ps_set_started()
        assert not replicas.is_dense_set_started()
        answers.update({each.sub_model: [status(1, ModelState.AVAILABLE)] for each in replicas.own.sub_models})
        replicas.update_states()
        wait_until(lambda: set(counts().values()) == {3})
        # One sub-model with an error leaves; the names after it are still updated.
        answers["ps_1"] = [status(1, ModelState.AVAILABLE, 5)]
        answers["ps_6"] = [status(1, ModelState.LOADING)]
        replicas.update_states()
        wait_until(lambda: (counts()["ps:1"], counts()["ps:6"], counts()["ps:11"]) == (2, 2, 3))
        address = HOST.address(config.ports.ps.tfs_ps_port or 0)
        assert address in json.loads(addresses_text(replicas.part_addresses()))["ps_11"]
        replicas.note_server_end("ps")
        wait_until(lambda: counts()["ps:11"] == 2)
        assert address not in addresses_text(replicas.part_addresses())
        assert replicas.part_addresses()["ps_0"] == ["10.1.0.1:1", "10.1.1.1:1", "10.1.2.1:1"]
        far = ReplicaMeta(address="10.9.9.9:1", stat=ModelState.AVAILABLE.value)
        put(outside, f"/{config.service.bzid}/service/m/hl:default/ps:0/7", far.to_bytes())
        targets = ReplicaTargets(replicas.map)
        wait_until(lambda: len(targets.get_sync_targets("ps_0")[1]) == 4)
        name, found = targets.get_sync_targets("ps_0")
        assert name == "ps_0"
        assert found["10.1.2.1:1"] == {"idc": "lf", "cluster": "default", "replica_id": 2}
        assert found["10.9.9.9:1"] == {"idc": "hl", "cluster": "default", "replica_id": 7}
        with pytest.raises(ConfigError):
            targets.get_sync_targets("entry")
    finally:
        replicas.withdraw()
        replicas.close()
    assert sorted(outside.children(f"{config.path_prefix}/ps:1")) == ["0", "1"]


# D67
def test_d67_two_late_answers_in_a_row_make_all_replicas_of_a_server_unknown(
    ensemble: MemoryEnsemble, tmp_path: Path
) -> None:
    late: list[str] = []

    def ask(replica: OwnReplica) -> list[ModelVersionStatus]:
        if replica.sub_model in late:
            late.remove(replica.sub_model)
            raise RpcTimeout("late")
        return [status(1, ModelState.AVAILABLE)]

    replicas = Replicas(ensemble.open(), fixed_config(tmp_path), HOST, ask, status_s=600)
    replicas.update_states()
    late = ["ps_1"]
    replicas.update_states()
    assert set(replicas.own.states().values()) == {ModelState.AVAILABLE}
    late = ["ps_1", "ps_1"]
    replicas.update_states()
    states = replicas.own.states()
    assert states.pop("entry") is ModelState.AVAILABLE
    assert set(states.values()) == {ModelState.UNKNOWN}
    replicas.update_states()
    assert set(replicas.own.states().values()) == {ModelState.AVAILABLE}
    replicas.map.close()


SERVER_PROGRAM = """
import time
from monolith.agent.model_configs import make_model_config
from monolith.testing.fakes.fake_model_server import FakeModelServer
server = FakeModelServer([make_model_config(f"ps_{task}", "/models") for task in (1, 6, 11, 16)])
print(server.address, flush=True)
time.sleep(600)
"""


# D67
def test_d67_a_killed_server_is_unknown_at_its_end_and_a_stopped_one_after_two_late_calls(
    ensemble: MemoryEnsemble, tmp_path: Path
) -> None:
    config = dataclasses.replace(fixed_config(tmp_path), deploy_type=DeployType.PS)
    outside = ensemble.open()
    log = tmp_path / "log"
    clients: dict[str, ServerClient] = {}

    late: list[str] = []

    def ask(replica: OwnReplica) -> list[ModelVersionStatus]:
        lines = log.read_text().splitlines()
        if not lines:
            raise ClusterError("no server")
        address = lines[-1]
        if address not in clients:
            clients[address] = ServerClient(address)
        try:
            return clients[address].model_status(replica.sub_model)
        except RpcTimeout:
            late.append(replica.sub_model)
            raise

    replicas = Replicas(ensemble.open(), config, HOST, ask)
    nodes = [f"{config.path_prefix}/ps:{task}/2" for task in (1, 6, 11, 16)]

    def wait_for(state: ModelState) -> None:
        wait_until(lambda: {ReplicaMeta.from_bytes(outside.get(node)[0]).stat for node in nodes} == {state})

    plan = ChildPlan(name="ps", command=[sys.executable, "-c", SERVER_PROGRAM], log=log)
    with Lifeline() as lifeline:
        child = Child(plan, lifeline, on_end=lambda _: replicas.note_server_end("ps"))
        child.start()
        replicas.start()
        try:
            wait_for(ModelState.AVAILABLE)
            late.clear()
            os.kill(child.pid or 0, signal.SIGSTOP)
            wait_for(ModelState.UNKNOWN)
            # Two calls with a deadline of 1 s, for all sub-models of the server together, and the pause between rounds.
            assert len(set(late[:2])) == 1
            os.kill(child.pid or 0, signal.SIGCONT)
            wait_for(ModelState.AVAILABLE)
            os.kill(child.pid or 0, signal.SIGKILL)
            wait_for(ModelState.UNKNOWN)
            wait_for(ModelState.AVAILABLE)
        finally:
            replicas.close()
            child.stop(is_urgent=lambda: True)
            for client in clients.values():
                client.close()


# D67
def test_d67_a_server_process_that_does_not_answer_is_asked_twice_for_all_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = note_asked_models(monkeypatch)
    models = make_server_config([make_model_config(f"m:ps_{index}", "/models") for index in range(4)])
    plan = ChildPlan(name="unified", command=[sys.executable, "-c", "import time; time.sleep(600)"])
    with socket.create_server(("127.0.0.1", 0)) as silent, Lifeline() as lifeline:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        server = ServerProcess(plan, tmp_path / "models", address, lifeline, models=models)
        server.start()
        try:
            statuses = server.list_saved_models_status()
            assert asked == ["m:ps_0", "m:ps_0"]
            assert list(statuses) == server.list_saved_models()
            assert {int(each.state) for each in statuses.values()} == {ModelState.UNKNOWN}
        finally:
            server.stop(is_urgent=lambda: True)


# D60, D61
def test_d60_d61_nodes_return_with_their_states_in_a_new_session(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    config = fixed_config(tmp_path)
    session, outside = ensemble.open(), ensemble.open()
    path = f"{config.path_prefix}/ps:1/2"
    # A node of an earlier agent, whose session has not ended yet.
    old = ensemble.open()
    old.create(path, b"{}", ephemeral=True)
    own = OwnReplicas(session, config, HOST, check_s=0.05)
    own.start()
    own.set_states({each.sub_model: ModelState.AVAILABLE for each in own.sub_models})
    is_available = lambda: ReplicaMeta.from_bytes(outside.get(path)[0]).stat == ModelState.AVAILABLE  # noqa: E731
    wait_until(is_available)
    old.stop()
    assert is_available()
    assert outside.get(path)[1].ephemeralOwner == session.session_id
    readings: list[bytes | None] = []
    with NodeWatches(outside) as watches:
        watches.watch_data(path, lambda data, _: readings.append(data))
        wait_until(lambda: readings)
        ensemble.expire(session)
        wait_until(lambda: outside.exists(path) is not None and is_available())
        wait_until(lambda: outside.get(path)[1].ephemeralOwner == session.session_id)
        # Three checks of the nodes take 30 s in a real agent.
        SystemClock().sleep_s(3 * 0.05)
        wait_until(lambda: len(readings) > 1 and readings[-1] is not None)
    states = {ReplicaMeta.from_bytes(data).stat for data in readings if data is not None}
    assert states == {ModelState.AVAILABLE}
    assert ReplicaMeta.from_bytes(outside.get(path)[0]).address == f"10.0.0.7:{config.ports.ps.tfs_ps_port}"
    own.close()


# D63
def test_d63_only_the_first_node_is_sequential_without_an_id(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    config = fixed_config(tmp_path, base_name="my_entry_model", REPLICA_ID="-1")
    outside = ensemble.open()
    outside.create(f"{config.path_prefix}/ps:1/23", b"{}", ephemeral=True)
    own = OwnReplicas(ensemble.open(), config, HOST)
    own.start()
    assert own.replica_id == 0
    assert outside.children(f"{config.path_prefix}/entry:0") == ["00000000000"]
    assert sorted(outside.children(f"{config.path_prefix}/ps:1")) == ["0", "23"]
    own.withdraw()
    assert outside.children(f"{config.path_prefix}/ps:1") == ["23"]
    own.close()


# D64
def test_d64_a_replica_of_another_agent_is_not_registered_again(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    config = fixed_config(tmp_path)
    folder = f"{config.path_prefix}/ps:1"
    other, outside = ensemble.open(), ensemble.open()
    other.create(f"{folder}/23", b"{}", ephemeral=True)
    own = OwnReplicas(ensemble.open(), config, HOST, check_s=0.05)
    own.start()
    assert sorted(outside.children(folder)) == ["2", "23"]
    other.stop()
    outside.delete(f"{folder}/2")
    wait_until(lambda: outside.children(folder) == ["2"])
    own.close()


# D65
def test_d65_a_host_with_ipv6_keeps_its_address_in_a_new_session(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    config = fixed_config(tmp_path, PORT5="9005")
    session, outside = ensemble.open(), ensemble.open()
    path = f"{config.path_prefix}/ps:1/2"
    own = OwnReplicas(session, config, OwnHost("0.0.0.0", "fd::1", True), check_s=0.05)
    own.start()
    old = session.session_id
    ensemble.expire(session)
    wait_until(lambda: session.session_id not in (0, old) and outside.exists(path) is not None)
    meta = ReplicaMeta.from_bytes(outside.get(path)[0])
    assert (meta.address_ipv6, meta.get_address()) == ("[fd::1]:9005", "[fd::1]:9005")
    own.close()


# D62, D66
def test_d62_d66_the_map_sees_nodes_that_come_back(ensemble: MemoryEnsemble) -> None:
    config = AgentConfig(bzid=f"b{uuid.uuid4().hex}", base_name="m")
    session, outside = ensemble.open(), ensemble.open()
    replicas = ReplicaMap(session, config.paths, "m")
    replicas.start()
    base = config.path_prefix
    meta = ReplicaMeta(address="10.0.0.7:1", stat=ModelState.AVAILABLE.value).to_bytes()
    put(outside, f"{base}/ps:3/00000000002", meta)
    for odd in ("foo", "ps:3/-1", "ps:3/x", "lf:1"):
        put(outside, f"{base}/{odd}", meta)
    put(outside, f"{base}/ps:4/1", b"{")
    wait_until(lambda: replicas.get_replica("ps", 3, 2) == ["10.0.0.7:1"])
    assert replicas.get_all_replicas("ps") == {"ps:3": ["10.0.0.7:1"]}
    delete_tree(outside, f"{base}/ps:3")
    wait_until(lambda: replicas.get_all_replicas("ps") == {})
    put(outside, f"{base}/ps:3/2", meta)
    wait_until(lambda: replicas.get_replicas("ps", 3) == ["10.0.0.7:1"])
    delete_tree(outside, base)
    wait_until(lambda: replicas.get_replicas("ps", 3) == [])
    put(outside, f"{base}/ps:3/2", meta)
    wait_until(lambda: replicas.get_replicas("ps", 3) == ["10.0.0.7:1"])
    replicas.reread()
    replicas.close()


# D68
def test_d68_the_addresses_file_is_sorted_and_has_no_address_twice() -> None:
    assert addresses_text({"ps_1": [], "ps_0": ["10.0.0.8:1", "10.0.0.7:1", "10.0.0.8:1"]}) == (
        '{"ps_0": ["10.0.0.7:1", "10.0.0.8:1"], "ps_1": []}'
    )


# --- agent ---


class RecordedServer(ServerControl):
    """A server whose starts and stops are recorded; a ``FakeModelServer`` answers at its port."""

    counts: Mapping[str, int] = {}

    def __init__(self, kind: str, events: list[str]) -> None:
        self._kind = kind
        self._events = events

    def start(self) -> None:
        self._events.append(f"start {self._kind}")

    def is_answering(self) -> bool:
        return True

    def set_models(self, config: ModelServerConfig) -> None:
        raise AssertionError("a version 1 agent keeps its models")

    def list_saved_models(self) -> list[str]:
        return []

    def list_saved_models_status(self) -> dict[str, ModelVersionStatus]:
        return {}

    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        self._events.append(f"stop {self._kind}")


def recorded_agent(config: AgentConfig, ensemble: MemoryEnsemble, folder: Path, events: list[str]) -> FixedAgent:
    def make(kind: str, on_end: object, on_final: object, models: object = None) -> RecordedServer:
        return RecordedServer(kind, events)

    host = OwnHost("127.0.0.1", "::", False)
    return FixedAgent(config, ensemble.open(), host, make, addresses_file=folder / "a.json")  # type: ignore[arg-type]


# D79, D82
def test_d79_d82_an_entry_starts_after_every_ps_task_is_available(ensemble: MemoryEnsemble, tmp_path: Path) -> None:
    conf = tmp_path / "agent.conf"
    conf.write_text(
        "bzid b\nbase_name m\nbase_path /models/m\nzk_servers 127.0.0.1:2181\ndeploy_type mixed\n"
        "num_ps 1\ndense_alone true\nreplica_id 2\n"
    )
    events: list[str] = []
    with FakeModelServer() as ps, FakeModelServer.with_model("dense_0", 1) as dense:
        config = dataclasses.replace(
            load_config(conf, {"MY_HOST_IP": "127.0.0.1"}), tfs_ps_port=ps.port, tfs_dense_port=dense.port
        )
        agent = recorded_agent(config, ensemble, tmp_path, events)
        agent.start()
        try:
            wait_until(agent.replicas.is_dense_set_started)
            SystemClock().sleep_s(2.5 * config.supervision.update_model_status_interval)
            assert events == ["start ps", "start dense"]
            client = ServerClient(ps.address, timeout_s=30)
            client.reload(make_server_config([make_model_config("ps_0", "/models/m/ps_0")]))
            client.close()
            wait_until(lambda: events == ["start ps", "start dense", "start entry"])
        finally:
            agent.stop()
    assert events[3:] == ["stop entry", "stop dense", "stop ps"]
    assert agent.failure is None
    outside = ensemble.open()
    assert [outside.children(f"/b/service/m/{task}") for task in ("entry:0", "ps:0", "dense:0")] == [[], [], []]


# D57
def test_d57_an_agent_without_a_model_to_copy_ends_with_the_reason(
    ensemble: MemoryEnsemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = CopyTimes(start_limit_s=0.2, start_pause_s=0.02, round_pause_s=0.02)
    monkeypatch.setattr("monolith.agent.fixed_agent.ModelCopies", functools.partial(ModelCopies, times=soon))
    (tmp_path / "p2p").mkdir()
    config = fixed_config(
        tmp_path,
        f"rough_sort_model_name model\nrough_sort_model_p2p_path {tmp_path / 'p2p'}\n"
        f"rough_sort_model_local_path {tmp_path / 'receive'}\n",
    )
    events: list[str] = []
    agent = recorded_agent(config, ensemble, tmp_path, events)
    agent.start()
    wait_until(lambda: agent.failure)
    assert "no complete version of 'model'" in (agent.failure or "")
    agent.stop(is_urgent=lambda: True)
    assert not [each for each in events if each.startswith("start")]


# --- children and groups ---


# D79, D80, D81
def test_d79_d80_d81_orders_logs_and_dense_ids(tmp_path: Path) -> None:
    config = monitored(DeployType.MIXED, dense_alone=True)
    assert start_order(config) == [ServerType.PS, ServerType.DENSE, ServerType.ENTRY]
    assert stop_order(config) == [ServerType.ENTRY, ServerType.DENSE, ServerType.PS]
    log = Path("/var/log/tfs.std.log")
    assert log_path(log, "ps") == Path("/var/log/ps_tfs.std.log")
    assert log_path(log, "entry") == Path("/var/log/entry_tfs.std.log")
    assert log_path(log, "dense", dense_index=1) == Path("/var/log/dense_tfs.std.log.mps1")
    group = AgentConfig(replica_id=4, dense_service_num=3)
    assert [child_environment(group, index)["REPLICA_ID"] for index in range(3)] == ["12", "13", "14"]
    assert "PORT2" not in child_environment(group, 0)
    assert read_environment(child_environment(group, 1)).ports == {}


# D82
def test_d82_a_child_restarts_five_times_and_then_ends_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monolith.agent.children._MAX_PAUSE_S", 0.01)
    ends: list[int] = []
    reasons: list[str] = []
    plan = ChildPlan(name="ps", command=[sys.executable, "-c", "import time; time.sleep(600)"], log=tmp_path / "log")
    with Lifeline() as lifeline:
        child = Child(plan, lifeline, on_end=ends.append, on_final=reasons.append)
        child.start()
        for count in range(MAX_ENDS + 1):
            wait_until(lambda count=count: child.pid is not None and child.restart_count == count)
            os.kill(child.pid or 0, signal.SIGKILL)
        wait_until(lambda: reasons)
        assert ends == [-signal.SIGKILL] * (MAX_ENDS + 1)
        assert child.restart_count == MAX_ENDS
        assert f"ended {MAX_ENDS + 1} times" in reasons[0]
        child.stop()


def test_a_child_that_ignores_sigterm_is_killed_after_its_time(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); time.sleep(600)"
    log = tmp_path / "log"
    plan = ChildPlan(name="ps", command=[sys.executable, "-c", code], log=log)
    with Lifeline() as lifeline:
        child = Child(plan, lifeline)
        child.start()
        wait_until(lambda: log.exists() and log.read_text() == "x\n")
        child.stop(is_urgent=lambda: True)
        assert child.pid is None
        with pytest.raises(ConfigError, match="cannot start"):
            Child(ChildPlan(name="ps", command=["/nonexistent"]), lifeline).start()


def test_an_invalid_address_never_reaches_the_addresses_file() -> None:
    assert addresses_text({"ps_0": ["nonsense", "10.0.0.7:1", "", "h:0"]}) == '{"ps_0": ["10.0.0.7:1"]}'
