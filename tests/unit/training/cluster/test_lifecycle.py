from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from monolith.core.config_sections import read_setting
from monolith.core.errors import AlreadyRegistered, ClusterError, ConfigError, DataError, RpcTimeout
from monolith.discovery import MemoryDiscovery, MemoryRegistry, ServiceInfo
from monolith.testing import FakeClock
from monolith.training.cluster import DistributedConfig, Session, find_servers, run_role
from monolith.training.cluster.heartbeat import Heartbeat
from scripted_discovery import HANG, ScriptedDiscovery, fail, server

PROCESSES = [
    DistributedConfig(role=role, index=index, num_ps=4, num_workers=4, **{f"discovery_service_type_{role}": kind},
                      discovery_operation_timeout_ms=20, discovery_cleanup_timeout_ms=10, heartbeat_interval_s=None)
    for role in ("ps", "worker")
    for index in (0, 3)
    for kind in (role, f"custom-{role}")
]  # fmt: skip
FAILURES = {"fails": fail("store is broken"), "hangs": HANG}


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedDiscovery]]:
    made: list[ScriptedDiscovery] = []

    def make(**script: Any) -> ScriptedDiscovery:
        made.append(ScriptedDiscovery(**script))
        return made[-1]

    yield make
    for one in made:
        one.let_go()


def quick(**values: Any) -> DistributedConfig:
    fixed = {"heartbeat_interval_s": None, "discovery_operation_timeout_ms": 20, "discovery_cleanup_timeout_ms": 10}
    return DistributedConfig(**{**fixed, **values})


def register(session: Session) -> str:
    session.register("10.0.0.9", 4321)
    return "done"


def expected(config: DistributedConfig, verb: str, how: str, kind: str = "cleanup") -> tuple[str, str]:
    """The operation and the error of a call that fails or hangs."""
    word = {"connect": "via", "register": "as", "deregister": "from", "disconnect": "via"}[verb]
    operation = f"{verb} {config.service_id} {word} {config.service_type}"
    limit = read_setting(config, f"discovery_{kind}_timeout_ms")
    hung = f"Timed out during discovery {kind}: {operation} after {limit}ms"
    return operation, hung if how == "hangs" else "store is broken"


@pytest.mark.parametrize("config", PROCESSES, ids=lambda config: f"{config.service_id} as {config.service_type}")
class TestEveryProcess:
    def test_it_connects_registers_works_and_leaves_in_order(
        self, config: DistributedConfig, scripted: Callable[..., ScriptedDiscovery]
    ) -> None:
        discovery = scripted()
        assert run_role(discovery, config, register) == "done"
        name = config.service_id
        assert discovery.calls == ["connect", f"register {name}", f"deregister {name}", "close"]
        (service,) = discovery.services
        assert (service.service_type, service.index, service.address) == (
            config.service_type,
            config.index,
            "10.0.0.9:4321",
        )
        assert service.metadata == {"addr": "10.0.0.9:4321", "index": str(config.index), "allow_update": "true"}

    @pytest.mark.parametrize("how", FAILURES)
    @pytest.mark.parametrize("leaving", ["well", *FAILURES])
    def test_a_failed_connect_still_disconnects_and_its_error_comes_first(
        self, config: DistributedConfig, how: str, leaving: str, scripted: Callable[..., ScriptedDiscovery]
    ) -> None:
        discovery = scripted(connect=FAILURES[how], close=FAILURES.get(leaving))
        with pytest.raises(ClusterError) as raised:
            run_role(discovery, config, lambda session: pytest.fail("the role must not run"))
        assert discovery.calls == ["connect", "close"]
        _, first = expected(config, "connect", how, "operation")
        operation, second = expected(config, "disconnect", leaving)
        suffix = f" (discovery cleanup encountered issues after role error: {operation}: {second})"
        assert str(raised.value) == first + ("" if leaving == "well" else suffix)

    @pytest.mark.parametrize("how", FAILURES)
    @pytest.mark.parametrize("leaving", ["well", *FAILURES])
    def test_a_registration_that_goes_wrong_is_the_role_s_error(
        self, config: DistributedConfig, how: str, leaving: str, scripted: Callable[..., ScriptedDiscovery]
    ) -> None:
        ways = FAILURES.get(leaving)
        discovery = scripted(register=FAILURES[how], deregister=ways, close=ways)
        with pytest.raises(ClusterError) as raised:
            run_role(discovery, config, register)
        assert discovery.calls[-2:] == [f"deregister {config.service_id}", "close"]
        _, first = expected(config, "register", how, "operation")
        issues = "; ".join(": ".join(expected(config, verb, leaving)) for verb in ("deregister", "disconnect"))
        suffix = f" (discovery cleanup encountered issues after role error: {issues})"
        assert str(raised.value) == first + ("" if leaving == "well" else suffix)

    @pytest.mark.parametrize("how", FAILURES)
    @pytest.mark.parametrize("which", [("deregister",), ("disconnect",), ("deregister", "disconnect")])
    def test_leaving_badly_after_good_work_is_an_error(
        self, config: DistributedConfig, how: str, which: tuple[str, ...], scripted: Callable[..., ScriptedDiscovery]
    ) -> None:
        names = {"deregister": "deregister", "disconnect": "close"}
        discovery = scripted(**{names[verb]: FAILURES[how] for verb in which})
        with pytest.raises(ClusterError) as raised:
            run_role(discovery, config, register)
        assert discovery.calls[-2:] == [f"deregister {config.service_id}", "close"]
        issues = [": ".join(expected(config, verb, how)) for verb in which]
        lead = expected(config, which[0], how)[1] if len(which) == 1 else issues[0]
        assert str(raised.value) == (
            f"{lead} (discovery cleanup encountered issues after successful role completion: {issues[-1]})"
        )


@pytest.mark.parametrize("error", [DataError("no data"), ConfigError("wrong"), RpcTimeout("late")], ids=repr)
def test_the_error_of_the_role_keeps_its_class_and_stays_first(
    error: Exception, scripted: Callable[..., ScriptedDiscovery]
) -> None:
    def work(session: Session) -> None:
        raise error

    first = str(error)
    with pytest.raises(type(error)) as raised:
        run_role(scripted(close=fail("gone")), quick(), work)
    assert raised.value is error
    assert str(error) == (
        f"{first} (discovery cleanup encountered issues after role error: disconnect worker-0 via worker: gone)"
    )


def test_an_error_that_is_not_ours_gets_a_note(scripted: Callable[..., ScriptedDiscovery]) -> None:
    def work(session: Session) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as raised:
        run_role(scripted(close=fail("gone")), quick(), work)
    assert raised.value.args == ("x",)
    assert "disconnect worker-0 via worker: gone" in raised.value.__notes__[0]


# --- servers ---


def find(discovery: ScriptedDiscovery, clock: FakeClock | None = None, **values: Any) -> tuple[str, ...]:
    config = quick(**{"num_ps": 2, "connect_retries": 2, **values})
    return run_role(discovery, config, lambda session: find_servers(session, clock or FakeClock()))


def test_servers_are_found_in_the_order_of_their_indexes(scripted: Callable[..., ScriptedDiscovery]) -> None:
    found = [server(1, 7000), server(0, 7001)]
    assert find(scripted(queries=[found])) == ("10.0.0.1:7001", "10.0.0.1:7000")


def test_servers_without_an_index_are_found_in_the_order_of_their_addresses(
    scripted: Callable[..., ScriptedDiscovery],
) -> None:
    found = [server(None, 7002), server(None, 7001), server(None, 7002)]
    assert find(scripted(queries=[found])) == ("10.0.0.1:7001", "10.0.0.1:7002")


def test_the_search_ends_with_the_first_good_look(scripted: Callable[..., ScriptedDiscovery]) -> None:
    clock = FakeClock()
    discovery = scripted(queries=[fail("away"), [server(1)], [server(0, 1), server(1, 2)], fail("never asked")])
    assert find(discovery, clock, connect_retries=5, retry_backoff_ms=250) == ("10.0.0.1:1", "10.0.0.1:2")
    assert discovery.calls.count("query ps") == 3
    assert clock.slept_s == [0.25, 0.25]


@pytest.mark.parametrize(
    ("queries", "found"),
    [
        ([()], "got 0 expected 2 (attempts: 3; max raw observed: 0; max usable observed: 0)"),
        ([[server(None, 1)], ()], "got 0 expected 2 (attempts: 3; max raw observed: 1; max usable observed: 1)"),
        ([[server(None, 1)]], "got 1 expected 2 (attempts: 3; max raw observed: 1; max usable observed: 1)"),
        (
            [[server(0), server(2, 1)]],
            "got 0 expected 2 (attempts: 3; max raw observed: 2; max usable observed: 0; "
            "last ordering issue: MissingOrGappedIndexSet)",
        ),
        (
            [[server(0, 1), server(0, 2)]],
            "got 0 expected 2 (attempts: 3; max raw observed: 2; max usable observed: 0; "
            "last ordering issue: ConflictingDuplicateIndex)",
        ),
        (
            [[server(0, 1), server(None, 2)], ()],
            "got 0 expected 2 (attempts: 3; max raw observed: 2; max usable observed: 0; "
            "last ordering issue: MixedIndexMetadataPresence)",
        ),
        (
            [[server(None, 1, index="one")]],
            "got 0 expected 2 (attempts: 3; max raw observed: 1; max usable observed: 0; "
            "last ordering issue: InvalidIndexMetadata)",
        ),
        (
            [[server(0), server(None, 2)], fail("store away")],
            "got 0 expected 2 (attempts: 3; max raw observed: 2; max usable observed: 0; "
            "last ordering issue: MixedIndexMetadataPresence; last discovery error: store away)",
        ),
        (
            [HANG],
            "got 0 expected 2 (attempts: 3; max raw observed: 0; max usable observed: 0; last discovery error: "
            "Timed out during discovery operation: discover worker-1 for servers after 20ms)",
        ),
        # what was healed is not told
        ([fail("away"), ()], "got 0 expected 2 (attempts: 3; max raw observed: 0; max usable observed: 0)"),
        (
            [[server(0), server(None, 2)], [server(None, 1)]],
            "got 1 expected 2 (attempts: 3; max raw observed: 2; max usable observed: 1)",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failed_search_names_every_observation(
    queries: Any, found: str, scripted: Callable[..., ScriptedDiscovery]
) -> None:
    with pytest.raises(RpcTimeout) as raised:
        find(scripted(queries=queries), index=1, num_workers=2, discovery_service_type_ps="servers")
    assert str(raised.value) == (f"Timed out waiting for PS discovery for worker-1 (service type: servers): {found}")


def test_the_error_of_a_failed_search_comes_before_those_of_the_cleanup(
    scripted: Callable[..., ScriptedDiscovery],
) -> None:
    with pytest.raises(RpcTimeout, match=r"^Timed out waiting for PS .*\(discovery cleanup encountered issues after"):
        find(scripted(deregister=HANG, close=fail("gone")))


# --- registrations in a real backend ---


def test_a_process_that_comes_back_takes_its_old_place() -> None:
    registry = MemoryRegistry()
    other = MemoryDiscovery(registry)
    other.connect()
    other.register(ServiceInfo(service_type="worker", index=0, id="worker-0", host="10.0.0.7", port=1))

    def work(session: Session) -> list[str]:
        session.register("10.0.0.8", 2)
        return [one.address for one in registry.read("worker")]

    assert run_role(MemoryDiscovery(registry), quick(), work) == ["10.0.0.8:2"]
    assert registry.read("worker") == []


def test_a_role_that_fails_before_it_registers_reports_its_own_error_alone() -> None:
    def work(session: Session) -> None:
        raise ClusterError("the folder is in use")

    with pytest.raises(ClusterError) as raised:
        run_role(MemoryDiscovery(MemoryRegistry()), quick(), work)
    assert str(raised.value) == "the folder is in use"


# --- heartbeats ---


def test_heartbeats_are_sent_while_the_role_runs_and_end_with_it(
    scripted: Callable[..., ScriptedDiscovery],
) -> None:
    discovery = scripted(heartbeat=fail("not now"))
    with Heartbeat(discovery, "ps-0", 0.001):
        for _ in range(3):
            assert discovery.beats.acquire(timeout=10), "an error must not end them"
    assert threading_names() == []


def threading_names() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("heartbeat")]


class TakenPlaces(MemoryDiscovery):
    """Answers heartbeats from a list: True means that another process has the place."""

    def __init__(self, answers: list[bool]) -> None:
        super().__init__(MemoryRegistry())
        self.answers = answers
        self.beats = 0

    def heartbeat(self, service_id: str) -> None:
        self.beats += 1
        if self.answers and self.answers.pop(0):
            raise AlreadyRegistered("taken over by 10.0.0.9:1")


@pytest.mark.parametrize(
    ("answers", "losses", "beats"),
    [([True], 1, 1), ([True, True], 2, 2), ([True, False, True, False, True, True], 2, 6)],
)
def test_a_heartbeat_reports_a_lost_place_after_some_losses_in_a_row(
    answers: list[bool], losses: int, beats: int
) -> None:
    discovery, lost = TakenPlaces(answers), threading.Event()
    with Heartbeat(discovery, "worker-0", 0.001, lambda error: lost.set(), losses):
        assert lost.wait(10)
    assert discovery.beats == beats


def test_no_interval_means_no_heartbeats(scripted: Callable[..., ScriptedDiscovery]) -> None:
    with Heartbeat(scripted(), "ps-0", None):
        assert threading_names() == []


def test_a_heartbeat_that_hangs_does_not_block_the_process(scripted: Callable[..., ScriptedDiscovery]) -> None:
    discovery = scripted(heartbeat=HANG)
    with Heartbeat(discovery, "ps-0", 0.001):
        assert discovery.beats.acquire(timeout=10)
