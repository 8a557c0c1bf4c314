"""Vectors of the original for the mirror, expected loading, the scheduler and the election."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Iterator

import pytest

from monolith.agent.expected_loading import expected_loading
from monolith.agent.mirror import Mirror
from monolith.agent.model_sizes import SubModelSize
from monolith.agent.records import Event, EventType, ModelMeta, PublishMeta, ReplicaMeta, ResourceSpec
from monolith.agent.scheduled_agent import Leader
from monolith.agent.scheduler import DoesNotFit, placement_is_current, plan_publishes
from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import ConfigError
from monolith.discovery.zookeeper_election import Election
from monolith.discovery.zookeeper_session import NodeMissing, ZooKeeperSession
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper
from monolith.testing.suites.zookeeper_ensembles import Ensemble, MemoryEnsemble, ServerEnsemble

GIB = 1 << 30


def wait_until(is_true: Callable[[], object], patience_s: float = 60.0) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, patience_s)
    while not is_true():
        assert not deadline.is_past, "the condition never became true"
        clock.sleep_s(0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    if (reason := why_no_zookeeper()) is not None:
        pytest.skip(reason)
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'monolith[zookeeper]'")
    with ZooKeeperServer(tick_ms=500) as server:
        yield server


@pytest.fixture(params=["memory", "server"])
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    if request.param == "memory":
        with MemoryEnsemble() as memory:
            yield memory
    else:
        with ServerEnsemble(request.getfixturevalue("server").address) as real:
            yield real


class Host:
    """A mirror of one host with its events."""

    def __init__(self, session: ZooKeeperSession, bzid: str, shard: int = 2, replica: int = 2) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.session = session
        self.mirror = Mirror(session, bzid, self.events, shard_id=shard, shard_count=10, replica_id=replica)

    def take(self, kind: EventType) -> Event:
        while True:
            event = self.events.get(timeout=60)
            if event.etype is kind:
                return event


@pytest.fixture
def host(ensemble: Ensemble) -> Iterator[Host]:
    host = Host(ensemble.open(), f"b{uuid.uuid4().hex}")
    yield host
    host.mirror.close()


def fifteen_publishes(model: str = "model") -> list[PublishMeta]:
    """Five shards with three replicas; the own shard 2 is the first."""
    metas = []
    for place, shard in enumerate((2, 3, 4, 5, 6)):
        sub_models = {f"ps_{k}": f"/x/ps_{k}/12" for k in range(10) if k % 5 == place} | {"entry": "/x/entry/12"}
        metas += [PublishMeta(shard, replica, model, 10, 15, sub_models) for replica in range(3)]
    return metas


# T62, T63, T64
def test_t62_t63_t64_nodes_are_made_set_and_deleted(host: Host) -> None:
    mirror, session = host.mirror, host.session
    mirror.ensure_path("/model/crud")
    assert mirror.exists("/model/crud")
    mirror.create("/model/crud/data", b"test")
    assert session.get("/model/crud/data")[0] == b"test"
    mirror.set("/model/crud/data", b"new_test")
    assert session.get("/model/crud/data")[0] == b"new_test"
    mirror.delete("/model/crud")
    assert not mirror.exists("/model/crud")
    assert (mirror.shard_count, mirror.replica_id, mirror.shard_id) == (10, 2, 2)


# T65, D77
def test_t65_d77_a_wanted_model_is_an_event_and_a_changed_one_too(host: Host) -> None:
    mirror = host.mirror
    mirror.watch_portal()
    mirror.watch_resource()
    meta = ModelMeta(model_name="model", model_dir="/x", num_shard=5)
    path = meta.get_path(mirror.paths.portal)
    mirror.create(path, meta.to_bytes())
    event = host.take(EventType.PORTAL)
    assert event.path == path
    assert ModelMeta.from_bytes(event.data).num_shard == 5
    mirror.set(path, ModelMeta(model_name="model", model_dir="/y").to_bytes())
    changed = ModelMeta.from_bytes(host.take(EventType.PORTAL).data)
    assert (changed.action, changed.model_dir) == ("CHANGED", "/y")
    mirror.delete(path)
    assert ModelMeta.from_bytes(host.take(EventType.PORTAL).data).action == "DELETED"


# T66, T67, T68, T69
def test_t66_to_t69_a_host_loads_serves_and_reports(host: Host) -> None:
    mirror = host.mirror
    mirror.start()
    mirror.publish_loading(fifteen_publishes(), model_name="model")
    wait_until(lambda: "model" in mirror.expected_loading())
    expected = mirror.expected_loading()["model"]
    assert (expected.shard_id, expected.replica_id) == (2, 2)
    assert set(expected.sub_models or {}) == {"ps_0", "ps_5", "entry"}
    host.take(EventType.PUBLISH)
    metas = [
        ReplicaMeta("10.0.0.7:8080", None, 30, "model", kind, task, 2)
        for kind, task in (("ps", 0), ("ps", 5), ("entry", 0))
    ]
    mirror.update_service(metas)
    wait_until(lambda: set(mirror.get_all_replicas("ps")) == {"model:ps:0", "model:ps:5"})
    wait_until(lambda: set(mirror.get_model_replicas("model", "entry")) == {"model:entry:0"})
    assert mirror.get_task_replicas("model", "ps", 0) == [metas[0]]
    assert mirror.get_replica("model", "ps", 5, 2) == metas[1]
    bzid = mirror.paths.services.split("/")[1]
    assert mirror.own_paths() == [f"/{bzid}/service/model/{task}/2" for task in ("entry:0", "ps:0", "ps:5")]
    mirror.watch_resource()
    spec = ResourceSpec("10.0.0.7:1", 2, 2, 12345, 5.6, 3.2, 0.7)
    mirror.report_resource(spec)
    wait_until(lambda: mirror.resources == [spec])
    mirror.update_service(metas[:1])
    wait_until(lambda: mirror.own_paths() == [f"/{bzid}/service/model/ps:0/2"])


# D77
def test_d77_models_with_similar_names_never_mix_and_a_changed_publish_is_one_event(host: Host) -> None:
    mirror = host.mirror
    mirror.start()
    for model in ("m", "my_m"):
        mirror.publish_loading(
            [PublishMeta(2, 2, model, 1, 1, {"ps_0": f"/{model}/ps_0/1", "entry": f"/{model}/entry/1"})],
            model_name=model,
        )
        host.take(EventType.PUBLISH)
    wait_until(lambda: set(mirror.expected_loading()) == {"m", "my_m"})
    assert [path.rpartition("/")[2] for path in mirror.get_published_path("m")] == ["2:2:m"]
    mirror.publish_loading([PublishMeta(2, 2, "m", 1, 1, {"ps_0": "/m/ps_0/2", "entry": "/m/entry/2"})], model_name="m")
    host.take(EventType.PUBLISH)
    assert (mirror.expected_loading()["m"].sub_models or {})["ps_0"] == "/m/ps_0/2"
    mirror.update_service(
        [ReplicaMeta("10.0.0.7:1", None, 30, "m", "ps", 0, 2), ReplicaMeta("10.0.0.8:1", None, 30, "m", "ps", 0, 3)]
    )
    wait_until(lambda: len(mirror.get_model_replicas("m", "ps").get("m:ps:0", [])) == 2)
    mirror.publish_loading([], model_name="m")
    host.take(EventType.PUBLISH)
    wait_until(lambda: set(mirror.expected_loading()) == {"my_m"})


def test_num_tce_replica_waits_for_all_shards_of_each_replica(host: Host) -> None:
    mirror = host.mirror
    mirror.watch_resource()
    with pytest.raises(ConfigError, match="10 shards"):
        mirror.num_tce_replica(0.01)
    for shard in range(10):
        mirror.report_resource(ResourceSpec("h:1", shard, 4, 1))
    assert mirror.num_tce_replica(60) == 1


# D76
def test_d76_a_new_replica_takes_its_shard_and_other_hosts_take_the_entry() -> None:
    publishes = fifteen_publishes()
    assert set(expected_loading(publishes, 2, 3)["model"].sub_models or {}) == {"ps_0", "ps_5", "entry"}
    assert expected_loading(publishes, 2, 3)["model"].replica_id == 3
    for shard in (9, -1):
        assert set(expected_loading(publishes, shard, 0)["model"].sub_models or {}) == {"entry"}
    assert expected_loading(publishes[:14], 2, 2) == {}
    special = [PublishMeta(2, 0, "model", 1, 1, {"ps_0": "/x/ps_0/1", "entry": "/x/entry/1"}, is_spec=True)]
    assert set(expected_loading(special, 2, 3)["model"].sub_models or {}) == {"entry"}


# --- scheduler ---


def sizes(entry: float, ps: list[float]) -> dict[str, SubModelSize]:
    table = {f"ps_{index}": size for index, size in enumerate(ps)} | {"entry": entry}
    return {name: SubModelSize(int(size * GIB), f"/x/{name}/12") for name, size in table.items()}


def hosts(*free: float, replicas: int = 1) -> list[ResourceSpec]:
    return [
        ResourceSpec("h:1", shard, replica, int(each * GIB))
        for shard, each in enumerate(free)
        for replica in range(replicas)
    ]


def placed(publishes: list[PublishMeta]) -> dict[int, list[str]]:
    return {
        each.shard_id or 0: [name for name in each.sub_models or {} if name != "entry"]
        for each in publishes
        if each.replica_id == 0
    }


# D1, D2, D4, D6
@pytest.mark.parametrize(
    ("free", "entry", "ps", "num_shard", "expected"),
    [
        pytest.param((10, 10), 0.1, [1] * 4, 2, {0: ["ps_0", "ps_2"], 1: ["ps_1", "ps_3"]}, id="D1"),
        pytest.param((10, 4), 0.1, [1] * 5, 2, {0: ["ps_0", "ps_1", "ps_3", "ps_4"], 1: ["ps_2"]}, id="D2"),
        pytest.param((4, 4, 4), 0.1, [1] * 6, -1, {0: ["ps_0", "ps_2", "ps_4"], 1: ["ps_1", "ps_3", "ps_5"]}, id="D4"),
        pytest.param((8, 8), 0.2, [4, 1, 1, 1, 1], 2, {0: ["ps_0"], 1: ["ps_1", "ps_2", "ps_3", "ps_4"]}, id="D6"),
    ],
)
def test_d1_to_d6_sub_models_go_where_memory_is_free(
    free: tuple[float, ...], entry: float, ps: list[float], num_shard: int, expected: dict[int, list[str]]
) -> None:
    model = ModelMeta(model_name="m", num_shard=num_shard)
    publishes = plan_publishes(model, sizes(entry, ps), hosts(*free))
    assert placed(publishes) == expected
    assert all("entry" in (each.sub_models or {}) for each in publishes)
    assert {each.total_publish_num for each in publishes} == {len(publishes)}
    for shard in set(range(len(free))) - set(expected):
        assert set(expected_loading(publishes, shard, 0)["m"].sub_models or {}) == {"entry"}
    assert placement_is_current(publishes, range(len(free)))
    assert not placement_is_current(publishes[1:], range(len(free)))


# D3
def test_d3_the_smallest_host_of_a_shard_counts() -> None:
    resources = [ResourceSpec("h:1", 0, 0, 8 * GIB), ResourceSpec("h:1", 0, 1, 5 * GIB)]
    model = ModelMeta(model_name="m", num_shard=1)
    assert len(plan_publishes(model, sizes(0.1, [4.3]), resources)) == 2
    with pytest.raises(DoesNotFit, match="4831838208"):
        plan_publishes(model, sizes(0.1, [4.6]), resources)
    assert len(plan_publishes(model, sizes(0.1, [4.0]), resources, promised={0: 0})) == 2
    with pytest.raises(DoesNotFit):
        plan_publishes(model, sizes(0.1, [4.0]), resources, promised={0: GIB})


# D5, D8
def test_d5_d8_a_model_that_does_not_fit_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="budgets"):
        plan_publishes(ModelMeta(model_name="m"), sizes(0.1, [1] * 4), hosts(2, 2))
    with pytest.raises(ConfigError, match="at most its 2 PS"):
        plan_publishes(ModelMeta(model_name="m", num_shard=3), sizes(0.1, [1, 1]), hosts(9, 9, 9))


# D7
def test_d7_fifteen_publishes_on_five_of_ten_shards() -> None:
    model = ModelMeta(model_name="m", num_shard=5)
    publishes = plan_publishes(model, sizes(0.1, [1] * 10), hosts(*[10] * 10, replicas=3))
    assert placed(publishes) == {shard: [f"ps_{shard}", f"ps_{shard + 5}"] for shard in range(5)}
    assert len(publishes) == 15
    assert {each.total_publish_num for each in publishes} == {15}
    spec = ModelMeta(model_name="m", num_shard=5, spec_replicas=[1])
    special = plan_publishes(spec, sizes(0.1, [1] * 10), hosts(*[10] * 10, replicas=3))
    assert {each.replica_id for each in special} == {1}
    assert all(each.is_spec for each in special)


# --- election ---


class Candidate:
    """A candidate with its leader object, driven by the test."""

    def __init__(self, ensemble: Ensemble, bzid: str, shard: int) -> None:
        self.session = ensemble.open()
        self.mirror = Mirror(self.session, bzid, shard_id=shard, replica_id=0)
        self.mirror.start()
        self.mirror.watch_resource()
        self.election = Election(self.session, self.mirror.paths.election, f"candidate-{shard}")
        self.leader = Leader(self.mirror, self.election, measure=lambda folder, ckpt: sizes(0.1, [1, 1]))
        self.mirror.report_resource(ResourceSpec("h:1", shard, 0, 8 * GIB))
        self.election.join()


# D78
def test_d78_a_new_leader_schedules_after_the_old_one_ended(ensemble: Ensemble) -> None:
    bzid = f"b{uuid.uuid4().hex}"
    candidates = [Candidate(ensemble, bzid, shard) for shard in range(3)]
    try:
        wait_until(lambda: sum(each.election.is_leader for each in candidates) == 1)
        old = next(each for each in candidates if each.election.is_leader)
        others = [each for each in candidates if each is not old]
        model = ModelMeta(model_name="m", model_dir="/x", num_shard=2)
        others[0].mirror.create(model.get_path(others[0].mirror.paths.portal), model.to_bytes())
        node = old.election.node_path
        old.session.stop()
        wait_until(lambda: sum(each.election.is_leader for each in others) == 1)
        new = next(each for each in others if each.election.is_leader)
        old.leader.schedule(model, keeps_running=True)
        assert not new.mirror.publishes("m"), "the old leader writes nothing"
        wait_until(lambda: len(new.mirror.resources) == 2)
        new.leader.schedule_all()
        wait_until(lambda: len(new.mirror.publishes("m")) == 2)
        with pytest.raises(NodeMissing):
            new.mirror.publish_loading([PublishMeta(0, 0, "n", 1, 1, {})], leader_node=node, model_name="n")
        new.leader.remove("m")
        wait_until(lambda: not new.mirror.publishes("m"))
    finally:
        for each in candidates:
            each.election.leave()
            each.mirror.close()


# D78
def test_d78_a_leader_whose_connection_is_suspended_writes_no_publish(ensemble: Ensemble) -> None:
    bzid = f"b{uuid.uuid4().hex}"
    leader = Candidate(ensemble, bzid, 0)
    outside = Mirror(ensemble.open(), bzid, shard_id=1, replica_id=0)
    outside.start()
    try:
        wait_until(lambda: leader.election.is_leader and len(leader.mirror.resources) == 1)
        ensemble.disconnect(leader.session)
        wait_until(lambda: not leader.election.is_leader)
        model = ModelMeta(model_name="m", model_dir="/x", num_shard=1)
        leader.leader.schedule(model, keeps_running=True)
        assert not outside.publishes("m")
        ensemble.reconnect(leader.session)
        wait_until(lambda: leader.election.is_leader)
        assert not outside.publishes("m")
        leader.leader.schedule(model, keeps_running=True)
        wait_until(lambda: len(outside.publishes("m")) == 1)
    finally:
        leader.election.leave()
        leader.mirror.close()
        outside.close()


# D33
def test_invalid_publishes_are_ignored_and_stay(host: Host) -> None:
    mirror, session = host.mirror, host.session
    folder = mirror.paths.publish
    for name, content in {
        "2:2:a": b"{",
        "2:2:b": PublishMeta(2, 2, "b", 1, 1, {"entry": "/x/entry/new"}).to_bytes(),
        "2:2:c": PublishMeta(2, 2, "c/d", 1, 1, {"entry": "/x/entry/1"}).to_bytes(),
        "2:2:e": b'{"total_publish_num": null, "model_name": "e"}',
        "2:2:good": PublishMeta(2, 2, "good", 1, 1, {"entry": "/x/entry/1"}).to_bytes(),
    }.items():
        mirror.create(f"{folder}/{name}", content)
    mirror.start()
    wait_until(lambda: set(mirror.expected_loading()) == {"good"})
    assert len(session.children(folder)) == 5
