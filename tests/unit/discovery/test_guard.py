from __future__ import annotations

import pytest

from monolith.core.errors import ClusterError, ConnectionFailed
from monolith.discovery import Discovery, DiscoveryGuard, MemoryDiscovery, MemoryRegistry, ServiceInfo

SERVICE = ServiceInfo(service_type="ps", index=0, host="h", port=1)


class Counted(MemoryDiscovery):
    def __init__(self, *, is_reachable: bool = True) -> None:
        super().__init__()
        self.closes = 0
        self._is_reachable = is_reachable

    def _open(self) -> None:
        if not self._is_reachable:
            raise ConnectionFailed("Connection failed: nobody there")

    def close(self) -> None:
        self.closes += 1
        super().close()


def test_the_guard_closes_once_however_often_close_is_called() -> None:
    inner = Counted()
    with DiscoveryGuard(inner) as guard:
        assert isinstance(guard, Discovery)
        assert guard.kind == "memory"
        guard.close()
        guard.close()
    assert inner.closes == 1


def test_an_error_inside_closes_too() -> None:
    inner = Counted()
    with pytest.raises(RuntimeError), DiscoveryGuard(inner):
        raise RuntimeError
    assert inner.closes == 1


def test_a_connection_that_fails_is_closed() -> None:
    inner = Counted(is_reachable=False)
    with pytest.raises(ConnectionFailed), DiscoveryGuard(inner):
        pass
    assert inner.closes == 1


@pytest.mark.parametrize("is_closed", [False, True], ids=["a job of one process", "after close"])
def test_without_a_backend_every_call_raises(is_closed: bool) -> None:
    guard = DiscoveryGuard(Counted() if is_closed else None)
    if is_closed:
        guard.close()
    assert guard.kind == "local"
    calls = [
        guard.connect,
        lambda: guard.register(SERVICE),
        lambda: guard.deregister("ps-0"),
        lambda: guard.query("ps"),
        lambda: guard.watch("ps", lambda _: None),
        lambda: guard.heartbeat("ps-0"),
    ]
    for call in calls:
        with pytest.raises(ClusterError, match="No discovery backend available in local mode"):
            call()
    guard.close()


def test_a_local_guard_can_be_entered() -> None:
    with DiscoveryGuard(None) as guard:
        assert guard.kind == "local"


def test_all_calls_reach_the_backend() -> None:
    registry = MemoryRegistry()
    with DiscoveryGuard(MemoryDiscovery(registry)) as guard:
        guard.register(SERVICE)
        guard.heartbeat("ps-0")
        with guard.watch("ps", lambda _: None):
            assert guard.query("ps") == [SERVICE]
        guard.deregister("ps-0")
        assert registry.read("ps") == []
