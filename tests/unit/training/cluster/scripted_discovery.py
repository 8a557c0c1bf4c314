"""A discovery that records its calls, and answers each as a test scripts it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from monolith.core.errors import ClusterError
from monolith.discovery import ServiceInfo

__all__ = ["ScriptedDiscovery", "fail", "server"]

HANG = "hang"


def server(number: int | None = None, port: int = 7000, **metadata: str) -> ServiceInfo:
    """A parameter server as discovery would tell of it."""
    return ServiceInfo(service_type="ps", index=number, host="10.0.0.1", port=port, metadata=metadata)


def fail(text: str) -> ClusterError:
    """What a broken store raises."""
    return ClusterError(text)


class ScriptedDiscovery:
    """Calls are made by name: an exception is raised, ``"hang"`` waits until ``let_go``, anything else is returned.

    ``query`` takes a list: one entry for each look, the last for all that follow.
    """

    kind = "scripted"

    def __init__(self, queries: Sequence[Any] = ((),), **script: Any) -> None:
        self.calls: list[str] = []
        self.services: list[ServiceInfo] = []
        self.beats = threading.Semaphore(0)
        self._queries = list(queries)
        self._script = script
        self._gone = threading.Event()

    def let_go(self) -> None:
        """End all calls that hang."""
        self._gone.set()

    def _do(self, name: str, told: str = "", answer: Any = None) -> Any:
        self.calls.append(f"{name} {told}".strip())
        outcome = self._script.get(name, answer)
        if isinstance(outcome, BaseException):
            raise type(outcome)(*outcome.args)  # another one each time, as a real store would
        if outcome == HANG:
            self._gone.wait(30)
        return answer

    def connect(self) -> None:
        self._do("connect")

    def register(self, service: ServiceInfo) -> None:
        self.services.append(service)
        self._do("register", service.id)

    def deregister(self, service_id: str) -> None:
        self._do("deregister", service_id)

    def query(self, service_type: str) -> list[ServiceInfo]:
        outcome = self._queries.pop(0) if len(self._queries) > 1 else self._queries[0]
        self._script["query"] = outcome if isinstance(outcome, BaseException | str) else None
        return list(self._do("query", service_type, [] if isinstance(outcome, BaseException | str) else outcome))

    def watch(self, service_type: str, callback: Callable[[Any], None]) -> Any:
        raise NotImplementedError

    def heartbeat(self, service_id: str) -> None:
        self.beats.release()
        self._do("heartbeat", service_id)

    def close(self) -> None:
        self._do("close")
