"""Agents of versions 1 and 2 serve real exports through a real ZooKeeper; a new leader schedules after a kill."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import monolith as mt
from agent_fleet import AgentProcess, Fleet, Trainer, as_example_batch, is_running, wait_until
from monolith.agent.address_client import AddressClient
from monolith.agent.portal import Portal
from monolith.agent.records import ModelState
from monolith.agent.session import make_session
from monolith.cli import main as program
from monolith.core.errors import MonolithError
from monolith.discovery.zookeeper_client import ZooKeeperClient
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper

SESSION_S = 10.0
AVAILABLE = ModelState.AVAILABLE.value


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


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet() as fleet:
        yield fleet


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path)


def call(*arguments: str) -> Any:
    result = CliRunner().invoke(program.app, ["agent", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def score(address: str, model: str) -> np.ndarray:
    with mt.serving.Client(address, model=model, timeout_s=30) as client:
        return next(iter(client.score(as_example_batch(), "example_batch").values())).reshape(-1)


# D49, D67, D82
@pytest.mark.slow
def test_a_fixed_agent_serves_a_model_and_leaves_nothing_behind(
    zookeeper: ZooKeeperServer, session: ZooKeeperClient, fleet: Fleet, trainer: Trainer, tmp_path: Path
) -> None:
    expected = trainer.export(7)
    conf = (
        f"bzid fixed\nbase_name m\nbase_path {trainer.folder}\nzk_servers {zookeeper.address}\ndeploy_type mixed\n"
        "num_ps 2\nfetch_ps_timeout_ms 10 * 1000\n"
    )
    agent = fleet.add(AgentProcess(tmp_path, "mixed-0", conf, {"REPLICA_ID": "3"}))
    agent.start()
    agent.wait_started()
    portal = Portal(session, "fixed")
    names = {"entry:0:3", "ps:0:3", "ps:1:3"}
    try:
        wait_until(lambda: portal.state("m").service == dict.fromkeys(names, AVAILABLE), "all replicas AVAILABLE")
    except AssertionError:
        print(agent.log(), *(path.read_text()[-2000:] for path in agent.folder.glob("*server.log")))
        raise
    entry = next(meta.address for path, meta in portal.replicas("m").items() if "/entry:0/" in path)
    np.testing.assert_allclose(score(str(entry), "entry"), expected, atol=1e-6, rtol=0)

    # The clients see the fleet.
    rows = call("status", "--zk-servers", zookeeper.address, "--bzid", "fixed")
    assert {(row["sub_model"], row["state"], row["version"]) for row in rows} == {
        (name, "AVAILABLE", 7) for name in ("entry", "ps_0", "ps_1")
    }
    table = CliRunner().invoke(program.app, ["agent", "status", "--zk-servers", zookeeper.address, "--bzid", "fixed"])
    assert "sub_model" in table.stdout
    assert "ps_1" in table.stdout
    file = str(agent.folder / "agent.conf")
    os.environ["MY_HOST_IP"] = "127.0.0.1"
    try:
        port = str(agent.ports["agent_port"])
        assert set(call("client", "hb", "--conf", file, "--port", port)["result"]) == {"ps:0", "ps:1"}
        assert len(call("client", "gr", "--conf", file, "--port", port, "--task", "1")["result"]) == 1
        assert len(call("client", "addr", "--conf", file)["result"]) == 3
    finally:
        del os.environ["MY_HOST_IP"]
    data = tmp_path / "requests"
    data.mkdir()
    (data / "one.bin").write_bytes(mt.data.Framing(sort_id=False).frame(as_example_batch()))
    profile = call(
        *("tfs", "profile", "--target", str(entry), "--model-name", "entry", "--profile-data-dir", str(data)),
        *("--input-type", "example_batch", "--profile-duration", "1", "--parallel-num", "2"),
    )
    assert profile["count"] > 10
    assert profile["failed"] == 0
    assert 0 < profile["p50_ms"] <= profile["p99_ms"]
    assert "AVAILABLE" in call("tfs", "status", "--target", str(entry), "--model-name", "entry")["answer"]
    assert "signature_def" in call("tfs", "meta", "--target", str(entry), "--model-name", "entry")["answer"]

    # [D49] A name that stands twice is refused.
    twice = tmp_path / "twice.conf"
    twice.write_text('model_config_list { config { name: "a" base_path: "/a" } config { name: "a" base_path: "/a" } }')
    arguments = ["agent", "tfs", "load", "--target", str(entry), "--model-name", "a"]
    token_file = option_of(agent.server_pids()[0], "--admin-token-file")
    refused = CliRunner().invoke(program.app, [*arguments, "--input-file", str(twice), "--token-file", token_file])
    assert "several entries for 'a'" in str(refused.exception)

    # Only the agent, which has the admin token, changes the models of its servers.
    once = tmp_path / "once.conf"
    once.write_text('model_config_list { config { name: "a" base_path: "/a" } }')
    refused = CliRunner().invoke(program.app, [*arguments, "--input-file", str(once)])
    assert "admin token" in str(refused.exception)

    # SIGSTOP of a server: its replicas are UNKNOWN within 3 s or so; SIGCONT: they return.
    ps = next(pid for pid in agent.server_pids() if f"{trainer.folder}" in models_of(agent, pid))
    os.kill(ps, signal.SIGSTOP)
    wait_until(lambda: portal.state("m").service["ps:0:3"] == ModelState.UNKNOWN, "the stopped server is UNKNOWN", 30)
    os.kill(ps, signal.SIGCONT)
    wait_until(lambda: portal.state("m").service["ps:0:3"] == AVAILABLE, "the server returned")

    # kill -9 of the agent: no server is left.
    servers = agent.server_pids()
    assert len(servers) == 2
    agent.send(signal.SIGKILL)
    agent.wait()
    wait_until(lambda: not any(is_running(pid) for pid in servers), "no orphan is left", 40)
    wait_until(lambda: portal.state("m").service == {}, "the nodes end with the session", 4 * SESSION_S)


# D82
@pytest.mark.slow
def test_a_server_that_is_killed_six_times_ends_its_agent_with_status_1(
    zookeeper: ZooKeeperServer, session: ZooKeeperClient, fleet: Fleet, tmp_path: Path
) -> None:
    (tmp_path / "models" / "ps_0").mkdir(parents=True)
    conf = (
        f"bzid killed\nbase_name m\nbase_path {tmp_path / 'models'}\nzk_servers {zookeeper.address}\n"
        "deploy_type ps\nreplica_id 1\n"
    )
    agent = fleet.add(AgentProcess(tmp_path, "ps-0", conf, {}))
    agent.start()
    agent.wait_started()
    killed: set[int] = set()
    for _ in range(6):
        wait_until(lambda: set(agent.server_pids()) - killed, "the server runs")
        (pid,) = set(agent.server_pids()) - killed
        killed.add(pid)
        os.kill(pid, signal.SIGKILL)
    assert agent.wait(60) == 1
    assert "ended 6 times" in agent.log()
    assert session.children("/killed/service/m/ps:0") == []


def models_of(agent: AgentProcess, pid: int) -> str:
    """Return the model config of the PS server; empty for another one."""
    file = option_of(pid, "--model-config-file")
    return Path(file).read_text() if file.endswith("ps.models") else ""


# D78
@pytest.mark.slow
def test_a_new_leader_schedules_after_the_old_one_was_killed(
    zookeeper: ZooKeeperServer, session: ZooKeeperClient, fleet: Fleet, trainer: Trainer, tmp_path: Path
) -> None:
    expected = trainer.export(7)
    conf = (
        f"bzid sched\nagent_version 2\nzk_servers {zookeeper.address}\ndeploy_type mixed\n"
        "fetch_ps_timeout_ms 10 * 1000\n"
    )
    for shard in range(3):
        variables = {"SHARD_ID": str(shard), "MONOLITH_HOST_SHARD_N": "3", "REPLICA_ID": "0"}
        fleet.add(AgentProcess(tmp_path, f"host-{shard}", conf, variables)).start()
    for agent in fleet.agents.values():
        agent.wait_started()
    portal = Portal(session, "sched")
    common = ("--zk-servers", zookeeper.address, "--bzid", "sched", "--model-dir", str(trainer.folder))
    call("serving-client", "load", *common, "--model-name", "deepfm", "--num-shard", "2")

    def is_served(model: str) -> bool:
        state = portal.state(model).service
        entries = [key for key in state if key.startswith("entry:0:")]
        return {"ps:0:0", "ps:1:0"} <= state.keys() and len(entries) == 3 and set(state.values()) == {AVAILABLE}

    try:
        wait_until(lambda: is_served("deepfm"), "the first model is served")
        entry = next(meta.address for path, meta in portal.replicas("deepfm").items() if "/entry:0/" in path)
        np.testing.assert_allclose(score(str(entry), "deepfm:entry"), expected, atol=1e-6, rtol=0)
        leader = leader_of(session)
        fleet.agents[leader].send(signal.SIGKILL)
        fleet.agents[leader].wait()
        call("serving-client", "load", *common, "--model-name", "second", "--num-shard", "2")
        wait_until(lambda: portal.state("second").publish, "a new leader schedules", 120)
        assert leader_of(session) != leader
        port = next(agent.ports["agent_port"] for name, agent in fleet.agents.items() if name != leader)
        with AddressClient(f"127.0.0.1:{port}", timeout_s=30) as client:
            wait_until(
                lambda: {"second:ps:0", "second:ps:1"} <= set(client.heart_beat("ps").addresses), "the agents know it"
            )
        call("serving-client", "unload", *common, "--model-name", "second")
        wait_until(lambda: portal.state("second").service == {}, "the second model left")
        assert not portal.state("second").publish
    except (AssertionError, MonolithError):
        print(fleet.logs())
        raise


def leader_of(session: ZooKeeperClient) -> str:
    nodes = sorted(session.children("/sched/election"), key=lambda name: name.rpartition("__")[2])
    return session.get(f"/sched/election/{nodes[0]}")[0].decode()


def test_the_original_names_of_programs_work() -> None:
    shown = CliRunner().invoke(program.app, ["agent", "--bin_name=tfs_client", "--help"])
    assert "profile" in shown.stdout
    shown = CliRunner().invoke(program.app, ["agent", "--bin_name", "agent_client", "--help"])
    assert "--args" in shown.stdout
    refused = CliRunner().invoke(program.app, ["agent", "--bin_name", "other"])
    assert "Unknown bin: other" in str(refused.exception)


# D83
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("agent_version 4\ndeploy_type ps\n", "agent_version is 4"),
        ("agent_version 3\ndeploy_type ps\n", "deploy_type is 'ps'"),
        ("agent_version 2\ndeploy_type unified\n", "deploy_type is 'unified'"),
    ],
)
def test_d83_a_wrong_configuration_is_one_line_and_status_2(tmp_path: Path, text: str, reason: str) -> None:
    conf = tmp_path / "agent.conf"
    conf.write_text(f"bzid b\nbase_name m\nbase_path /x\nzk_servers 127.0.0.1:2181\n{text}")
    result = CliRunner().invoke(program.app, ["agent", "run", "--conf", str(conf)])
    assert result.exit_code == 2
    assert reason in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def option_of(pid: int, flag: str) -> str:
    """Return the value of an option of a running process."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return command[command.index(flag) + 1]
