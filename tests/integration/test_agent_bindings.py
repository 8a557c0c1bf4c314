"""Nodes of a container survive a killed ZooKeeper, and return to one that lost its data."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest

from monolith.agent.bindings import Bindings, LayoutEntry
from monolith.agent.layouts import Layouts
from monolith.agent.records import Container, ContainerServiceInfo, SavedModel, SavedModelDeployConfig
from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import ClusterError
from monolith.discovery.zookeeper_session import ZooKeeperSession
from monolith.testing.processes.zookeeper_server import ZooKeeperServer, why_no_zookeeper
from monolith.testing.suites.zookeeper_ensembles import ServerEnsemble

MODEL = SavedModel("m", "ps_0")
CONTAINER = Container("default", "asdf")
INFO = ContainerServiceInfo(grpc="localhost:8888")


def wait_until(is_true: Callable[[], object]) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, 60)
    while True:
        try:
            if is_true():
                return
        except ClusterError:
            pass  # ZooKeeper is away
        assert not deadline.is_past, "the condition never became true"
        clock.sleep_s(0.02)


def declare(session: ZooKeeperSession, bzid: str, base_path: str) -> None:
    layouts = Layouts(session, bzid)
    layouts.declare(MODEL, SavedModelDeployConfig(base_path, "latest"))
    layouts.add_to_layout(layouts.paths.layout("l"), MODEL)


@pytest.mark.slow
def test_nodes_return_after_a_restart_of_zookeeper_with_and_without_its_data() -> None:
    if (reason := why_no_zookeeper()) is not None:
        pytest.skip(reason)
    bzid = f"gip-{uuid.uuid4().hex}"
    calls: list[list[LayoutEntry]] = []
    with ZooKeeperServer(tick_ms=500) as server, ServerEnsemble(server.address, session_timeout_s=1.5) as ensemble:
        session, outside = ensemble.open(), ensemble.open()
        bindings = Bindings(session, bzid, check_s=0.5)
        try:
            bindings.report_service_info(CONTAINER, INFO)
            bindings.sync_available_saved_models(CONTAINER, [MODEL])
            bindings.register_layout_callback(f"/{bzid}/layouts/l", calls.append)
            declare(outside, bzid, "/old")
            wait_until(lambda: bindings.get_service_map() == {"m": {"ps_0": [INFO]}})
            server.kill()
            wait_until(lambda: session.is_away)
            assert bindings.get_service_map() == {"m": {"ps_0": [INFO]}}
            server.start()
            node = f"/{bzid}/binding/m/ps_0:{CONTAINER}"

            def is_bound() -> bool:
                stat = outside.exists(node)
                return stat is not None and stat.ephemeralOwner == session.session_id

            wait_until(is_bound)
            wait_until(lambda: bindings.get_service_map() == {"m": {"ps_0": [INFO]}})
            server.kill()
            server.forget()
            server.start()
            wait_until(is_bound)
            wait_until(lambda: outside.exists(f"/{bzid}/container_service/{CONTAINER}"))
            wait_until(lambda: calls[-1] == [])
            declare(outside, bzid, "/new")
            wait_until(lambda: calls[-1] == [(MODEL, SavedModelDeployConfig("/new", "latest"))])
            wait_until(lambda: bindings.get_service_map() == {"m": {"ps_0": [INFO]}})
            outside.delete(node)
            wait_until(is_bound)
        finally:
            bindings.close()
