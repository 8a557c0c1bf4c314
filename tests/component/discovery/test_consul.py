from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from monolith.core.errors import ClusterError, ConfigError, ConnectionFailed, RetriesExhausted, RpcTimeout
from monolith.core.retry import RetryPolicy
from monolith.discovery import ConsulAgent, ConsulDiscovery, ConsulEndpoint, DiscoveryGuard, LookupAgent, ServiceInfo
from monolith.discovery.consul_agent import consul_agent
from monolith.testing import FakeClock
from monolith.testing.eventually import eventually
from monolith.testing.fakes.consul_server import ConsulServer

ONCE = RetryPolicy(attempts=1)
SERVICE = ServiceInfo(service_type="ps", index=0, host="10.0.0.1", port=2222)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server(clock: FakeClock) -> Iterator[ConsulServer]:
    with ConsulServer(clock=clock) as server:
        yield server


def discovery(server: ConsulServer, clock: FakeClock, **options: float) -> ConsulDiscovery:
    agent = ConsulAgent(ConsulEndpoint.parse(server.address), retries=ONCE)
    return ConsulDiscovery(agent, "job", clock=clock, **options)


def test_a_service_that_is_never_listed_is_called_blacklisted_and_withdrawn(
    server: ConsulServer, clock: FakeClock
) -> None:
    server.is_blacklisting = True
    with DiscoveryGuard(discovery(server, clock)) as one:
        with pytest.raises(ClusterError, match="This machine is blacklisted by consul") as caught:
            one.register(SERVICE)
        assert not caught.value.retryable
        assert clock.slept_s == [5.0] * 36
        server.is_blacklisting = False
        assert one.query("ps") == []


def test_a_holder_that_does_not_go_ends_the_attempt_within_bounds(server: ConsulServer, clock: FakeClock) -> None:
    class Refreshing(FakeClock):
        """The holder stays alive while the newcomer waits."""

        def sleep_s(self, seconds: float) -> None:
            super().sleep_s(seconds)
            old.heartbeat("ps-0")

    server.is_stubborn = True
    waits = Refreshing()
    with DiscoveryGuard(discovery(server, clock)) as old, DiscoveryGuard(discovery(server, waits)) as new:
        old.register(SERVICE)
        with pytest.raises(ClusterError, match=r"Timed out clearing existing consul registration for ps\.0, held by"):
            new.register(ServiceInfo(service_type="ps", index=0, host="10.0.0.2", port=2222))
        assert waits.slept_s == [3.0] * 39
        assert [found.address for found in new.query("ps")] == ["10.0.0.1:2222"]


def test_a_silent_service_is_not_listed_after_its_time(server: ConsulServer, clock: FakeClock) -> None:
    with DiscoveryGuard(discovery(server, clock)) as one:
        one.register(SERVICE)
        clock.advance_s(59)
        one.heartbeat("ps-0")
        clock.advance_s(59)
        assert len(one.query("ps")) == 1
        clock.advance_s(1)
        assert one.query("ps") == []
        one.heartbeat("ps-0")
        assert len(one.query("ps")) == 1


def test_checks_are_passed_without_being_asked_to(server: ConsulServer, clock: FakeClock) -> None:
    with DiscoveryGuard(discovery(server, clock, heartbeat_period_s=0.01)) as one:
        one.register(SERVICE)
        seen = len(server.requests)
        eventually(lambda: any("/check/pass/" in path for _, path in server.requests[seen:]))


def test_a_token_is_sent_and_missed(server: ConsulServer) -> None:
    server.token = "secret"
    with pytest.raises(ClusterError, match=r"answered 403 'Permission denied'; set CONSUL_HTTP_TOKEN") as caught:
        consul_agent(server.address, {}).lookup("job")
    assert not caught.value.retryable
    assert consul_agent(None, {"CONSUL_HTTP_ADDR": server.address, "CONSUL_HTTP_TOKEN": "secret"}).lookup("job") == []


def test_an_instance_that_is_not_understood_is_kept_for_the_ordering_to_name(
    server: ConsulServer, clock: FakeClock
) -> None:
    body = b'{"ID": "x", "Name": "job", "Port": 1, "Tags": ["name:ps", "index:one"], "Check": {"TTL": "60s"}}'
    server.answer("PUT", "/v1/agent/service/register", body, None)
    server.answer("PUT", "/v1/agent/check/pass/service:x", b"", None)
    with DiscoveryGuard(discovery(server, clock)) as one:
        (found,) = one.query("ps")
        assert (found.index, dict(found.metadata), found.address) == (None, {"index": "one"}, "127.0.0.1:1")


def test_an_agent_that_never_answers_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = ConsulEndpoint(host="127.0.0.1", port=silent.getsockname()[1])
        agent = ConsulAgent(endpoint, timeout_s=0.05, retries=ONCE)
        with pytest.raises(RetriesExhausted) as caught:
            agent.lookup("job")
    assert isinstance(caught.value.__cause__, RpcTimeout)
    assert f"Operation timed out: Consul query at {endpoint} after 0.05 s" in str(caught.value.__cause__)


def test_a_server_that_is_not_an_agent_raises(server: ConsulServer) -> None:
    server.answer = lambda *_: (200, "<html>")  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="answered '<html>', expected JSON"):
        consul_agent(server.address, {}).lookup("job")
    server.answer = lambda *_: (200, '{"a": 1}')  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="expected JSON"):
        consul_agent(server.address, {}).lookup("job")


def test_a_failing_agent_may_be_asked_again(server: ConsulServer) -> None:
    server.answer = lambda *_: (500, "No cluster leader")  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match=r"Consul query failed: .* answered 500 'No cluster leader'") as caught:
        consul_agent(server.address, {}).lookup("job")
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("address", "shown", "is_tls"),
    [
        ("10.0.0.1:85", "10.0.0.1:85", False),
        ("consul.example", "consul.example:8500", False),
        ("https://consul.example:443/", "consul.example:443", True),
        ("http://[::1]:85", "[::1]:85", False),
        ("unix:///run/consul.sock", "unix:/run/consul.sock", False),
        (" ", "127.0.0.1:8500", False),
    ],
)
def test_addresses_of_agents(address: str, shown: str, is_tls: bool) -> None:
    endpoint = ConsulEndpoint.parse(address)
    assert (str(endpoint), endpoint.is_tls) == (shown, is_tls)


@pytest.mark.parametrize("address", ["ftp://h:1", "h:99999", "http://h:1/path", "http://u@h:1", "http://", "a b:1"])
def test_a_wrong_address_names_itself(address: str) -> None:
    with pytest.raises(ConfigError, match="Consul connect invalid address") as caught:
        ConsulEndpoint.parse(address)
    assert repr(address) in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "has_socket", "dialect", "endpoint"),
    [
        ({"CONSUL_HTTP_ADDR": "h:1", "CONSUL_HTTP_HOST": "x"}, True, ConsulAgent, "h:1"),
        ({"CONSUL_HTTP_HOST": "10.0.0.1", "TCE_HOST_IP": "10.0.0.2"}, True, LookupAgent, "10.0.0.1:2280"),
        ({"TCE_HOST_IP": "10.0.0.2", "CONSUL_HTTP_PORT": "99"}, True, LookupAgent, "10.0.0.2:99"),
        ({}, True, LookupAgent, "unix:/opt/tmp/sock/consul.sock"),
        ({}, False, LookupAgent, "127.0.0.1:2280"),
    ],
)
def test_the_environment_names_the_agent(
    environment: dict[str, str], has_socket: bool, dialect: type[ConsulAgent], endpoint: str
) -> None:
    agent = consul_agent(None, environment, socket_exists=lambda _: has_socket)
    assert (type(agent), str(agent.endpoint)) == (dialect, endpoint)


def test_a_wrong_port_in_the_environment_is_named() -> None:
    with pytest.raises(ConfigError, match=r"port is 'x'.*see CONSUL_HTTP_HOST, CONSUL_HTTP_PORT"):
        consul_agent(None, {"CONSUL_HTTP_HOST": "h", "CONSUL_HTTP_PORT": "x"})


def test_an_agent_behind_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "consul.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(4096).startswith(b"GET /v1/lookup/name?name=job&addr-family=dual-stack ")
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

        thread = threading.Thread(target=answer)
        thread.start()
        assert LookupAgent(ConsulEndpoint(unix_path=path), retries=ONCE).lookup("job") == []
        thread.join()
    gone = LookupAgent(ConsulEndpoint(unix_path=str(tmp_path / "none")), retries=ONCE)
    with pytest.raises(ClusterError) as caught:
        gone.lookup("job")
    assert isinstance(caught.value.__cause__, ConnectionFailed)
