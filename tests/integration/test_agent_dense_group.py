"""Several dense agents of one host register with their own ids, and end together."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_fleet import AgentProcess, child_pids, is_running, wait_until
from monolith.agent.portal import Portal
from monolith.agent.session import make_session
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    if (reason := why_no_zookeeper()) is not None:
        pytest.skip(reason)
    pytest.importorskip("kazoo", reason="kazoo is not installed: pip install 'monolith[zookeeper]'")
    with ZooKeeperServer(tick_ms=500) as server:
        yield server


# D81, D82
@pytest.mark.slow
def test_dense_agents_have_ids_of_their_host_and_leave_nothing_behind(
    zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    (tmp_path / "models" / "dense_0").mkdir(parents=True)
    conf = (
        f"bzid dense\nbase_name m\nbase_path {tmp_path / 'models'}\nzk_servers {zookeeper.address}\n"
        "deploy_type dense\ndense_alone true\ndense_service_num 2\nreplica_id 6\n"
    )
    group = AgentProcess(tmp_path, "host", conf, {"PORT2": ""})
    session = make_session(zookeeper.address)
    session.start()
    portal = Portal(session, "dense")
    try:
        group.start()
        wait_until(lambda: set(portal.state("m").service) == {"dense:0:12", "dense:0:13"}, "both agents registered")
        agents = child_pids(group.pid)
        assert len(agents) == 2
        wait_until(lambda: all(child_pids(agent) for agent in agents), "both agents started their servers")
        servers = [pid for agent in agents for pid in child_pids(agent)]
        addresses = [meta.address for meta in portal.replicas("m").values()]
        assert len(set(addresses)) == 2
        group.send(signal.SIGTERM)
        assert group.wait(120) == 0
        assert not any(is_running(pid) for pid in [*agents, *servers])
        assert portal.state("m").service == {}
    except AssertionError:
        print(group.log())
        raise
    finally:
        group.close()
        session.stop()
