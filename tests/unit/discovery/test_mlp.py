from __future__ import annotations

import socket

import pytest

from monolith.core.errors import ClusterError, ConfigError, NoSuchService
from monolith.discovery import Discovery, MlpDiscovery, ServiceInfo
from monolith.discovery.mlp import MlpEnvironment, accepts_connections

PS_0 = {
    "MLP_ROLE": "PS",
    "MLP_ROLE_INDEX": "0",
    "MLP_PORT": ' "2222" ',
    "MLP_PS_NUM": "2",
    "MLP_PS_0_PRIMARY_HOST": "'10.0.0.1'",
    "MLP_PS_0_HOST": "node-1",
    "MLP_PS_0_PORT": "2222",
    "MLP_PS_1_HOST": "node-2",
    "MLP_PS_1_PORT": "2223",
    "MLP_WORKER_NUM": "1",
    "MLP_WORKER_0_HOST": "node-3",
    "MLP_WORKER_0_PORT": "2224",
}


def opened(environment: dict[str, str], listening: set[str] | None = None) -> MlpDiscovery:
    discovery = MlpDiscovery(
        environment, probe=lambda host, port, _: listening is None or f"{host}:{port}" in listening
    )
    discovery.connect()
    return discovery


def own(**changed: object) -> ServiceInfo:
    fields = {"service_type": "ps", "index": 0, "host": "10.0.0.1", "port": 2222, **changed}
    return ServiceInfo(**fields)  # type: ignore[arg-type]


def test_the_environment_lists_the_processes() -> None:
    discovery = opened(PS_0)
    assert isinstance(discovery, Discovery)
    assert [one.address for one in discovery.query("ps")] == ["10.0.0.1:2222", "node-2:2223"]
    assert [one.address for one in discovery.query("worker")] == ["node-3:2224"]
    assert (discovery.server_type, discovery.index, discovery.host, discovery.port) == ("ps", 0, "10.0.0.1", 2222)


def test_a_server_is_found_once_it_listens_and_then_stays() -> None:
    listening = {"node-2:2223"}
    discovery = opened(PS_0, listening)
    assert [one.index for one in discovery.query("ps")] == [1]
    listening.add("10.0.0.1:2222")
    listening.remove("node-2:2223")
    assert [one.index for one in discovery.query("ps")] == [0, 1]


def test_the_probe_connects() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert accepts_connections("127.0.0.1", port, 5)
    assert not accepts_connections("127.0.0.1", port, 5)


def test_a_deregistered_service_is_hidden_until_it_registers() -> None:
    discovery = opened(PS_0)
    discovery.deregister("ps-0")
    assert [one.index for one in discovery.query("ps")] == [1]
    discovery.register(own())
    assert [one.index for one in discovery.query("ps")] == [0, 1]
    discovery.heartbeat("ps-1")
    for call in (discovery.deregister, discovery.heartbeat):
        with pytest.raises(NoSuchService, match="Service not found: ps-9"):
            call("ps-9")


@pytest.mark.parametrize(
    ("service", "message"),
    [
        (own(host="10.9.9.9"), "host of ps-0 is '10.9.9.9', expected .* 10.0.0.1 or node-1"),
        (own(port=9), "port of ps-0 is 9, expected MLP_PORT 2222"),
        (own(index=1), "this process is ps 0"),
        (own(service_type="worker"), "this process is ps 0"),
    ],
)
def test_only_the_process_of_the_environment_can_be_registered(service: ServiceInfo, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened(PS_0).register(service)


def test_closing_twice_is_once() -> None:
    discovery = opened(PS_0)
    discovery.close()
    discovery.close()
    with pytest.raises(ClusterError, match="is closed"):
        discovery.query("ps")


def test_ranks_of_a_machine_share_its_host_and_count_ports_up() -> None:
    environment = MlpEnvironment(
        {
            "MLP_ROLE": "worker",
            "MLP_PORT": "3000",
            "MLP_WORKER_NUM": "2",
            "MLP_WORKER_0_PRIMARY_HOST": "node-a",
            "MLP_WORKER_1_PRIMARY_HOST": "node-b",
            "MLP_WORKER_0_PORT": "3000",
            "OMPI_COMM_WORLD_RANK": "2",
            "OMPI_COMM_WORLD_SIZE": "4",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        }
    )
    assert (environment.index, environment.count("worker"), environment.own_port) == (2, 4, 3002)
    assert [environment.hosts("worker", rank)[0] for rank in range(4)] == ["node-a", "node-a", "node-b", "node-b"]
    assert [environment.port("worker", rank) for rank in range(4)] == [3000, 3001, 3002, 3003]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MLP_ROLE": ""}, "MLP_ROLE is not set"),
        ({"MLP_ROLE_INDEX": "x"}, "MLP_ROLE_INDEX is 'x'"),
        ({"MLP_PS_NUM": "two"}, "MLP_PS_NUM is 'two'"),
        ({"MLP_PS_1_HOST": ""}, "neither MLP_PS_1_PRIMARY_HOST nor MLP_PS_1_HOST is set"),
        ({"MLP_PS_1_PORT": ""}, "MLP_PS_1_PORT is ''|MLP_PS_1_PORT: MLP_PS_1_PORT is ''"),
        ({"MLP_PS_1_PORT": "70000"}, "MLP_PS_1_PORT: port is 70000"),
        ({"MLP_PS_1_HOST": "a b"}, "MLP_PS_1_HOST: host is 'a b'"),
    ],
)
def test_a_wrong_variable_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        opened({**PS_0, **change}).query("ps")


def test_other_types_are_unknown() -> None:
    with pytest.raises(ConfigError, match="name must be ps/worker"):
        opened(PS_0).query("dsworker")
