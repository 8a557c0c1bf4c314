"""``DiscoverySuite``: the behaviour of every writable discovery, as one class of tests for all backends and fakes.

To test a backend, derive a class ``Test...`` from ``DiscoverySuite`` and give it a fixture ``peers`` that makes
discoveries of one job, each as another process would have it, not yet connected. Needs pytest.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeAlias

import pytest

from monolith.core.errors import AlreadyRegistered, ClusterError, ConfigError, NoSuchService
from monolith.discovery import Added, Discovery, DiscoveryGuard, Event, Removed, ServiceInfo
from monolith.testing.eventually import eventually

__all__ = ["PATIENCE_S", "DiscoverySuite", "Peers", "service", "watching"]

PATIENCE_S = 60.0
"""Timeout of waits in tests; no measurement depends on it."""

Peers: TypeAlias = Callable[[], Discovery]


def service(index: int, port: int = 2222, *, service_type: str = "ps", host: str = "127.0.0.1") -> ServiceInfo:
    """Return a service; ports of two indexes differ by 100."""
    return ServiceInfo(service_type=service_type, index=index, host=host, port=port + 100 * index)


def places(services: list[ServiceInfo]) -> list[tuple[int | None, str]]:
    """Return indexes and addresses of services, in order."""
    return [(one.index, one.address) for one in services]


@contextlib.contextmanager
def watching(discovery: Discovery, service_type: str = "ps") -> Iterator[Callable[[], Event]]:
    """Watch during the block; the yielded function waits for the next event."""
    events: queue.Queue[Event] = queue.Queue()
    with discovery.watch(service_type, events.put):
        yield lambda: events.get(timeout=PATIENCE_S)


def summarize(event: Event) -> tuple[str, int | None, str]:
    """Return kind, index and address of an event."""
    return type(event).__name__, event.service.index, event.service.address


class DiscoverySuite:
    """The suite. ``replaces``: whether a new registration replaces an earlier one of the same index."""

    replaces: ClassVar[bool] = True

    def test_it_is_a_discovery(self, peers: Peers) -> None:
        assert isinstance(peers(), Discovery)

    def test_a_service_that_one_process_registers_is_found_by_another(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other:
            one.register(service(0))
            assert places(one.query("ps")) == places(other.query("ps")) == [(0, "127.0.0.1:2222")]
            assert [found.id for found in other.query("ps")] == ["ps-0"]
            assert other.query("worker") == []

    def test_services_come_by_index_in_any_order_of_arrival(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other:
            for index in (10, 2, 0, 1):
                one.register(service(index))
            assert [found.index for found in other.query("ps")] == [0, 1, 2, 10]

    def test_types_do_not_mix(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one:
            one.register(service(0))
            one.register(service(0, 3333, service_type="worker"))
            one.register(service(1, 4444, service_type="ps.cache"))
            assert places(one.query("worker")) == [(0, "127.0.0.1:3333")]
            assert places(one.query("ps")) == [(0, "127.0.0.1:2222")]

    def test_an_ipv6_address_survives(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other:
            one.register(service(0, host="fd00::7"))
            (found,) = other.query("ps")
            assert (found.host, found.port, found.address) == ("fd00::7", 2222, "[fd00::7]:2222")

    def test_a_deregistered_service_is_gone(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other:
            one.register(service(0))
            one.register(service(1))
            one.deregister("ps-0")
            assert [found.index for found in other.query("ps")] == [1]
            with pytest.raises(NoSuchService, match="Service not found: ps-0"):
                one.deregister("ps-0")

    def test_only_own_services_can_be_deregistered_or_kept_alive(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other:
            one.register(service(0))
            with pytest.raises(NoSuchService, match="Service not found: ps-0"):
                other.deregister("ps-0")
            with pytest.raises(NoSuchService, match="Service not found: ps-0"):
                other.heartbeat("ps-0")
            assert len(other.query("ps")) == 1

    def test_a_restarted_process_takes_its_place_again(self, peers: Peers) -> None:
        moved = ServiceInfo(service_type="ps", index=0, host="127.0.0.2", port=9, metadata={"allow_update": "true"})
        with DiscoveryGuard(peers()) as old, DiscoveryGuard(peers()) as new:
            old.register(service(0))
            new.register(moved)
            assert places(old.query("ps")) == [(0, "127.0.0.2:9")]

    def test_a_duplicate_without_leave_is_replaced_or_refused(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as old, DiscoveryGuard(peers()) as new:
            old.register(service(0))
            if self.replaces:
                new.register(service(0, 4444))
                assert places(old.query("ps")) == [(0, "127.0.0.1:4444")]
            else:
                with pytest.raises(AlreadyRegistered, match="Service already registered: ps-0"):
                    new.register(service(0, 4444))
                assert places(new.query("ps")) == [(0, "127.0.0.1:2222")]

    def test_a_replaced_service_neither_removes_nor_ousts_its_successor(self, peers: Peers) -> None:
        moved = ServiceInfo(service_type="ps", index=0, host="127.0.0.2", port=9, metadata={"allow_update": "true"})
        with DiscoveryGuard(peers()) as old, DiscoveryGuard(peers()) as new:
            old.register(service(0))
            new.register(moved)
            with pytest.raises(AlreadyRegistered, match=r"ps-0 was taken over by 127\.0\.0\.2:9"):
                old.heartbeat("ps-0")
            old.deregister("ps-0")
            assert places(new.query("ps")) == [(0, "127.0.0.2:9")]

    def test_a_watch_reports_present_services_and_changes(self, peers: Peers) -> None:
        moved = ServiceInfo(service_type="ps", index=1, host="127.0.0.2", port=9, metadata={"allow_update": "true"})
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other:
            one.register(service(0))
            with watching(other) as next_event:
                assert summarize(next_event()) == ("Added", 0, "127.0.0.1:2222")
                one.register(service(1))
                assert summarize(next_event()) == ("Added", 1, "127.0.0.1:2322")
                one.register(moved)
                event = next_event()
                if isinstance(event, Removed):  # a store that was looked at between removal and replacement
                    assert summarize(next_event()) == ("Added", 1, "127.0.0.2:9")
                else:
                    assert summarize(event) == ("Updated", 1, "127.0.0.2:9")
                one.deregister("ps-0")
                assert summarize(next_event()) == ("Removed", 0, "127.0.0.1:2222")

    def test_a_watch_begun_before_the_first_service_misses_none(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other, watching(other, "worker") as next_event:
            one.register(service(0))
            one.register(service(0, 3333, service_type="worker"))
            assert summarize(next_event()) == ("Added", 0, "127.0.0.1:3333")

    def test_a_closed_watch_is_silent_and_closes_twice(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other:
            silent: list[Event] = []
            watch = other.watch("ps", silent.append)
            watch.close()
            watch.close()
            with watching(other) as next_event:
                one.register(service(0))
                assert isinstance(next_event(), Added)
            assert silent == []

    def test_a_failing_callback_does_not_end_the_watch(self, peers: Peers, caplog: pytest.LogCaptureFixture) -> None:
        events: queue.Queue[Event] = queue.Queue()

        def refuse(event: Event) -> None:
            events.put(event)
            raise RuntimeError("not today")

        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other, other.watch("ps", refuse):
            one.register(service(0))
            assert isinstance(events.get(timeout=PATIENCE_S), Added)
            one.deregister("ps-0")
            assert isinstance(events.get(timeout=PATIENCE_S), Removed)
        assert "watch callback failed" in caplog.text

    def test_a_callback_may_query_and_close(self, peers: Peers) -> None:
        found: queue.Queue[int] = queue.Queue()
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other:

            def look(_: Event) -> None:
                found.put(len(other.query("ps")))
                watch.close()

            watch = other.watch("ps", look)
            one.register(service(0))
            assert found.get(timeout=PATIENCE_S) == 1

    def test_a_heartbeat_leaves_all_as_it_is(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one, DiscoveryGuard(peers()) as other:
            one.register(service(0))
            one.heartbeat("ps-0")
            assert places(other.query("ps")) == [(0, "127.0.0.1:2222")]
            with pytest.raises(NoSuchService, match="ps-7"):
                one.heartbeat("ps-7")

    def test_closing_withdraws_and_may_be_repeated(self, peers: Peers) -> None:
        one = peers()
        one.connect()
        one.connect()
        with DiscoveryGuard(peers()) as other, watching(other) as next_event:
            one.register(service(0))
            assert isinstance(next_event(), Added)
            one.close()
            one.close()
            assert isinstance(next_event(), Removed)
            eventually(lambda: other.query("ps") == [])

    def test_a_closed_discovery_refuses_all_calls(self, peers: Peers) -> None:
        closed = peers()
        closed.connect()
        closed.close()
        calls: list[Callable[[], object]] = [
            closed.connect,
            lambda: closed.register(service(0)),
            lambda: closed.deregister("ps-0"),
            lambda: closed.query("ps"),
            lambda: closed.watch("ps", lambda _: None),
            lambda: closed.heartbeat("ps-0"),
        ]
        for call in calls:
            with pytest.raises(ClusterError, match="is closed"):
                call()

    def test_a_discovery_that_never_connected_raises_and_can_be_closed(self, peers: Peers) -> None:
        idle = peers()
        with pytest.raises(ClusterError, match="is not connected"):
            idle.query("ps")
        idle.close()

    def test_many_services_may_register_concurrently(self, peers: Peers) -> None:
        members = 4
        with contextlib.ExitStack() as stack:
            guards = [stack.enter_context(DiscoveryGuard(peers())) for _ in range(members)]
            start = threading.Barrier(members)

            def enter(number: int) -> None:
                start.wait()
                for index in range(number, 5 * members, members):
                    guards[number].register(service(index))

            threads = [threading.Thread(target=enter, args=(number,)) for number in range(members)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            expected = [(index, service(index).address) for index in range(5 * members)]
            assert places(guards[0].query("ps")) == expected

    def test_all_who_claim_one_place_leave_one_there(self, peers: Peers) -> None:
        members = 4
        claims = [
            ServiceInfo(service_type="ps", index=0, host="h", port=100 + n, metadata={"allow_update": "true"})
            for n in range(members)
        ]
        with contextlib.ExitStack() as stack:
            guards = [stack.enter_context(DiscoveryGuard(peers())) for _ in range(members)]
            winners: list[int] = []

            def claim(number: int) -> None:
                with contextlib.suppress(ClusterError):
                    guards[number].register(claims[number])
                    winners.append(number)

            threads = [threading.Thread(target=claim, args=(number,)) for number in range(members)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert winners
            for number in winners:  # a loser may have removed the entry of a winner, whose heartbeat restores it
                with contextlib.suppress(AlreadyRegistered):
                    guards[number].heartbeat(claims[number].id)
            (found,) = guards[0].query("ps")
            assert found.address in {claims[number].address for number in winners}

    def test_names_that_a_store_cannot_keep_are_refused(self, peers: Peers) -> None:
        with DiscoveryGuard(peers()) as one:
            for name in ("", " ps", "p s", "../ps", "ps/0", "ps\n"):
                with pytest.raises(ConfigError, match="service_type is"):
                    one.query(name)
