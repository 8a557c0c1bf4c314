from __future__ import annotations

import threading

import pytest

from monolith.core.errors import ClusterError, ConnectionFailed
from monolith.discovery import MemoryDiscovery, ServiceInfo

PATIENCE_S = 60.0
SERVICE = ServiceInfo(service_type="ps", index=0, host="h", port=1)


class Store(MemoryDiscovery):
    """A store whose calls can be held up and made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.is_opening = threading.Event()
        self.may_open = threading.Event()
        self.may_open.set()
        self.confirmation: Exception | None = None
        self.withdrawal: Exception | None = None
        self.shuts = 0

    def _open(self) -> None:
        self.is_opening.set()
        assert self.may_open.wait(PATIENCE_S)

    def _confirm(self, service: ServiceInfo) -> None:
        if self.confirmation is not None:
            raise self.confirmation

    def _withdraw(self, service: ServiceInfo) -> None:
        if self.withdrawal is not None:
            raise self.withdrawal
        super()._withdraw(service)

    def _shut(self) -> None:
        self.shuts += 1


def test_closing_does_not_wait_for_a_connection_that_hangs_and_the_late_one_is_shut() -> None:
    store = Store()
    store.may_open.clear()
    refused: list[str] = []

    def connect() -> None:
        try:
            store.connect()
        except ClusterError as error:
            refused.append(str(error))

    thread = threading.Thread(target=connect)
    thread.start()
    assert store.is_opening.wait(PATIENCE_S)
    store.close()
    assert store.shuts == 0
    store.may_open.set()
    thread.join()
    assert store.shuts == 1
    assert refused == ["memory discovery is closed; open another one"]


def test_a_registration_that_is_not_confirmed_is_withdrawn() -> None:
    store = Store()
    store.connect()
    store.confirmation = ClusterError("not listed")
    with pytest.raises(ClusterError, match="not listed"):
        store.register(SERVICE)
    assert store.query("ps") == []
    store.confirmation = None
    store.register(SERVICE)
    assert len(store.query("ps")) == 1


def test_a_withdrawal_that_failed_can_be_repeated() -> None:
    store = Store()
    store.connect()
    store.register(SERVICE)
    store.withdrawal = ConnectionFailed("away")
    with pytest.raises(ConnectionFailed):
        store.deregister("ps-0")
    store.withdrawal = None
    store.deregister("ps-0")
    assert store.query("ps") == []


def test_closing_leaves_the_store_even_where_nothing_can_be_withdrawn(caplog: pytest.LogCaptureFixture) -> None:
    store = Store()
    store.connect()
    store.register(SERVICE)
    store.withdrawal = ConnectionFailed("away")
    store.close()
    assert store.shuts == 1
    assert "deregistration failed id=ps-0 error=away" in caplog.text
