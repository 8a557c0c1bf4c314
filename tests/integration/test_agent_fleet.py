"""A fleet of agents serves without a failed request through kills, lost sessions, new versions and unpublishing.

``MONOLITH_FLEET_REQUESTS`` sets the least number of requests of a longer run.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import monolith as mt
from agent_fleet import AgentProcess, Fleet, Load, Trainer, is_running, is_same, wait_until
from monolith.agent.address_client import AddressClient
from monolith.agent.controller import Controller
from monolith.agent.session import make_session
from monolith.core.clock import SystemClock
from monolith.core.errors import MonolithError
from monolith.discovery.zookeeper_client import ZooKeeperClient
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper

BZID = "shop"
SHARDS = 2
SESSION_S = 10.0
REQUESTS = int(os.environ.get("MONOLITH_FLEET_REQUESTS", "3000"))


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    if (reason := why_no_zookeeper()) is not None:
        pytest.skip(reason)
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'monolith[zookeeper]'")
    with ZooKeeperServer(tick_ms=500) as server:
        yield server


@pytest.fixture
def session(zookeeper: ZooKeeperServer) -> Iterator[ZooKeeperClient]:
    client = make_session(zookeeper.address)
    client.start()
    yield client
    client.stop()


def ps_conf(zookeeper: str, layout: str) -> str:
    return (
        f"bzid {BZID}\ndeploy_type unified\nagent_version 3\nzk_servers {zookeeper}\nlayout_pattern {layout}\n"
        "layout_filters ps_{i}; i % ${shard_num} == ${shard_id}\n"
    )


def entry_conf(zookeeper: str, layout: str) -> str:
    return (
        f"bzid {BZID}\ndeploy_type unified\nagent_version 3\nzk_servers {zookeeper}\nlayout_pattern {layout}\n"
        "layout_filters entry\nfetch_ps_timeout_ms 10 * 1000\n"
    )


def bindings(session: ZooKeeperClient, model: str, sub_graph: str) -> list[str]:
    return [name for name in session.children(f"/{BZID}/binding/{model}") if name.startswith(f"{sub_graph}:")]


def grpc_address(session: ZooKeeperClient, pod: str) -> str:
    for name in session.children(f"/{BZID}/container_service"):
        if name.endswith(f":{pod}"):
            return str(json.loads(session.get(f"/{BZID}/container_service/{name}")[0])["grpc"])
    return ""


def known(entry: AddressClient, key: str) -> list[str]:
    return sorted(entry.heart_beat("ps").addresses[key].address)


# D67, D82
@pytest.mark.slow
def test_a_fleet_answers_every_request_while_replicas_are_left(
    zookeeper: ZooKeeperServer, session: ZooKeeperClient, tmp_path: Path
) -> None:
    trainer = Trainer(tmp_path, shards=SHARDS)
    first = trainer.export(1)
    with Fleet() as fleet:
        entry = fleet.add(AgentProcess(tmp_path, "entry-0", entry_conf(zookeeper.address, "a"), {}))
        replicas: dict[tuple[int, str], AgentProcess] = {}
        for shard in range(SHARDS):
            for layout in ("a", "b"):
                name = f"ps-{shard}-{layout}"
                variables = {"SHARD_ID": str(shard), "MONOLITH_HOST_SHARD_N": str(SHARDS)}
                agent = AgentProcess(tmp_path, name, ps_conf(zookeeper.address, layout), variables)
                replicas[shard, layout] = fleet.add(agent)
        for agent in fleet.agents.values():
            agent.start()
        for agent in fleet.agents.values():
            agent.wait_started()
        controller = Controller(session, BZID)
        model = controller.declare(str(trainer.folder))[0].model_name
        for layout in ("a", "b"):
            controller.publish(layout, f"{model}:*" if layout == "a" else f"{model}:ps_*")
        try:
            with AddressClient(f"127.0.0.1:{entry.ports['agent_port']}", timeout_s=30) as client:
                play(zookeeper, session, controller, trainer, model, client, replicas, first)
        except BaseException:
            print(fleet.logs())
            raise
        # An orderly stop: status 0, nodes gone, no server left.
        agent = replicas[0, "a"]
        servers = agent.server_pids()
        agent.send(signal.SIGTERM)
        assert agent.wait(90) == 0
        assert not any(is_running(pid) for pid in servers)
        assert not [name for name in session.children(f"/{BZID}/container_service") if name.endswith(":ps-0-a")]


def play(
    zookeeper: ZooKeeperServer,
    session: ZooKeeperClient,
    controller: Controller,
    trainer: Trainer,
    model: str,
    entry: AddressClient,
    replicas: dict[tuple[int, str], AgentProcess],
    first: np.ndarray,
) -> None:
    clock = SystemClock()
    wait_until(lambda: bindings(session, model, "entry"), "the entry is bound")
    for shard in range(SHARDS):
        wait_until(lambda shard=shard: len(known(entry, f"{model}:ps_{shard}")) == 2, f"two replicas of shard {shard}")
    address = grpc_address(session, "entry-0")
    with Load(address, f"{model}:entry") as load:
        wait_until(lambda: load.sent > 100, "the load runs")

        # kill -9 of a PS server: it leaves the map within 1 s or so, restarts, and returns.
        victim = replicas[0, "a"]
        pid = victim.server_pids()[0]
        os.kill(pid, signal.SIGKILL)
        left_s = wait_until(lambda: len(known(entry, f"{model}:ps_0")) == 1, "the killed server left the map")
        assert left_s < 15.0
        wait_until(lambda: len(known(entry, f"{model}:ps_0")) == 2, "the killed server returned")
        assert victim.server_pids() != [pid]

        # kill -9 of an agent: its server ends with it; its nodes end with the session.
        victim = replicas[1, "b"]
        servers = victim.server_pids()
        victim.send(signal.SIGKILL)
        victim.wait()
        wait_until(lambda: not any(is_running(each) for each in servers), "no orphan is left", 40)
        wait_until(lambda: len(known(entry, f"{model}:ps_1")) == 1, "the dead agent left the map", 4 * SESSION_S)
        victim.start()
        victim.wait_started()
        wait_until(lambda: len(known(entry, f"{model}:ps_1")) == 2, "the agent returned")

        # A lost session: the agent pauses for longer than the session timeout, then makes its nodes again.
        victim = replicas[0, "b"]
        victim.send(signal.SIGSTOP)
        wait_until(lambda: len(known(entry, f"{model}:ps_0")) == 1, "the session ended", 6 * SESSION_S)
        victim.send(signal.SIGCONT)
        wait_until(lambda: len(known(entry, f"{model}:ps_0")) == 2, "the nodes are back", 6 * SESSION_S)

        # A restart of ZooKeeper.
        zookeeper.stop()
        before = load.sent
        wait_until(lambda: load.sent > before + 200, "the fleet serves without ZooKeeper")
        zookeeper.start()
        restarted_s = clock.monotonic_s()
        wait_until(lambda: len(bindings(session, model, "ps_0")) == 2, "the bindings survive")

        # A new version: replicas load it beside the old one, the entry switches, the old one is released.
        second = trainer.export(2)
        assert not is_same(first, second)
        wait_until(lambda: load.count_of(second) > 100, "answers of version 2")
        ps = mt.serving.Client(grpc_address(session, "ps-0-a"), model=f"{model}:ps_0", timeout_s=30)
        with ps:
            wait_until(lambda: held_versions(ps) == [2], "the old version is released")

        # Unpublish one layout: its replicas leave, the others answer. An agent that reconnected too late after the
        # restart has lost its session by now, and is not one of two.
        wait_until(lambda: clock.monotonic_s() > restarted_s + 2 * SESSION_S, "late sessions have ended")
        for shard in range(SHARDS):
            wait_until(lambda shard=shard: len(known(entry, f"{model}:ps_{shard}")) == 2, "two replicas", 6 * SESSION_S)
        controller.unpublish("b", f"{model}:ps_*")
        for shard in range(SHARDS):
            wait_until(lambda shard=shard: len(known(entry, f"{model}:ps_{shard}")) == 1, "one replica is left")
        before = load.sent
        wait_until(lambda: load.sent > max(before + 200, REQUESTS), "all requests", 600)
    print(f"requests sent={load.sent} failed={len(load.failures)}")
    assert load.failures == []
    assert load.sent >= REQUESTS
    assert load.count_of(first) + load.count_of(second) == load.sent, "every answer is that of a version"


def held_versions(client: mt.serving.Client) -> list[int]:
    try:
        return sorted(each.version for each in client.status() if each.state == "AVAILABLE")
    except MonolithError:
        return []
