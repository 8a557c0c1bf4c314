"""Discovery as the original and its port have it: paths, bodies, orders and names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from monolith.core.errors import AlreadyRegistered, ConfigError
from monolith.core.retry import RetryPolicy
from monolith.discovery import (
    ConsulDiscovery,
    ConsulEndpoint,
    DiscoveryGuard,
    Event,
    FileDiscovery,
    LookupAgent,
    MemoryDiscovery,
    OrderingIssue,
    ServiceInfo,
    TfConfigDiscovery,
    order_servers,
)
from monolith.testing import FakeClock
from monolith.testing.fakes.consul_server import ConsulServer


def test_consul_requests_are_those_of_the_original() -> None:
    with ConsulServer() as server:
        agent = LookupAgent(ConsulEndpoint.parse(server.address), retries=RetryPolicy(attempts=1))
        with DiscoveryGuard(ConsulDiscovery(agent, "svc", clock=FakeClock())) as discovery:
            discovery.register(ServiceInfo(service_type="ps", index=1, host="192.168.0.1", port=1001))
            (found,) = discovery.query("ps")
            assert (found.index, found.address) == (1, "192.168.0.1:1001")
            discovery.heartbeat("ps-1")
            discovery.deregister("ps-1")
        assert server.bodies == [
            {
                "id": "svc-1001",
                "name": "svc",
                "port": 1001,
                "check": {"ttl": "60s"},
                "tags": ["index:1", "name:ps", "ip:192.168.0.1"],
            }
        ]
        assert set(server.requests) == {
            ("GET", "/v1/lookup/name?name=svc&addr-family=dual-stack"),
            ("PUT", "/v1/agent/service/register"),
            ("GET", "/v1/agent/check/pass/service:svc-1001"),
            ("PUT", "/v1/agent/service/deregister/svc-1001"),
        }


def test_a_file_per_service_holds_its_address(tmp_path: Path) -> None:
    discovery = FileDiscovery(tmp_path)
    discovery.connect()
    discovery.register(ServiceInfo(service_type="worker", index=12, host="10.0.0.1", port=80))
    assert (tmp_path / "worker" / "12").read_text() == "10.0.0.1:80"


CHIEF = {"ps": ["p0:1"], "chief": ["c0:2"], "worker": ["w0:3", "w1:4"]}
NO_CHIEF = {"ps": ["p0:1"], "worker": ["w0:3", "w1:4"]}


@pytest.mark.parametrize(
    ("cluster", "task", "server_type", "index", "address"),
    [
        (CHIEF, {"type": "chief", "index": 0}, "worker", 0, "c0:2"),
        (CHIEF, {"type": "worker", "index": 0}, "worker", 1, "w0:3"),
        (CHIEF, {"type": "worker", "index": 1}, "worker", 2, "w1:4"),
        (CHIEF, {"type": "ps", "index": 0}, "ps", 0, "p0:1"),
        (NO_CHIEF, {"type": "worker", "index": 1}, "worker", 1, "w1:4"),
    ],
)
def test_the_chief_is_worker_0(
    cluster: dict[str, list[str]], task: dict[str, object], server_type: str, index: int, address: str
) -> None:
    discovery = TfConfigDiscovery(json.dumps({"cluster": cluster, "task": task}))
    discovery.connect()
    assert (discovery.server_type, discovery.index, discovery.address) == (server_type, index, address)
    workers = [one.address for one in discovery.query("worker")]
    assert workers == [*cluster.get("chief", []), *cluster["worker"]]
    with pytest.raises(ConfigError, match="name must be ps/worker"):
        discovery.query("chief")


def ps(host: str, index: str | None) -> ServiceInfo:
    return ServiceInfo(service_type="ps", host=host, port=1, metadata={} if index is None else {"index": index})


@pytest.mark.parametrize(
    ("services", "count", "addresses", "issue"),
    [
        ([ps("b", "0"), ps("a", "1")], 2, ("b:1", "a:1"), None),
        ([ps("b", None), ps("a", None), ps("a", None)], 2, ("a:1", "b:1"), None),
        ([ps("a", "0"), ps("b", "2")], 2, (), "MissingOrGappedIndexSet"),
        ([ps("a", "0")], 2, (), "MissingOrGappedIndexSet"),
        ([ps("a", "0"), ps("b", "0")], 1, (), "ConflictingDuplicateIndex"),
        ([ps("a", "0"), ps("a", "0"), ps("b", "1")], 2, ("a:1", "b:1"), None),
        ([ps("a", "0"), ps("b", None)], 2, (), "MixedIndexMetadataPresence"),
        ([ps("a", "0"), ps("b", "one")], 2, (), "InvalidIndexMetadata"),
        ([ps("a", "0"), ps("b", "-1")], 2, (), "InvalidIndexMetadata"),
        ([], 2, (), None),
    ],
)
def test_servers_are_ordered_as_in_the_port(
    services: list[ServiceInfo], count: int, addresses: tuple[str, ...], issue: str | None
) -> None:
    ordering = order_servers(services, count)
    assert ordering.addresses == addresses
    assert ordering.issue == (None if issue is None else OrderingIssue(issue))
    if ordering.issue is not None:
        assert f"{ordering.issue}" == issue


def test_memory_tells_added_updated_removed() -> None:
    events: list[Event] = []
    first = ServiceInfo(service_type="ps", index=0, host="h", port=1)
    again = ServiceInfo(service_type="ps", index=0, host="h", port=2, metadata={"allow_update": "true"})
    with DiscoveryGuard(MemoryDiscovery()) as discovery, discovery.watch("ps", events.append):
        discovery.register(first)
        with pytest.raises(AlreadyRegistered, match="Service already registered: ps-0"):
            discovery.register(first)
        discovery.register(again)
        discovery.deregister("ps-0")
    assert [(type(event).__name__, event.service.port) for event in events] == [
        ("Added", 1),
        ("Updated", 2),
        ("Removed", 2),
    ]
