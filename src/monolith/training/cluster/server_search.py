"""``find_servers``: looks the parameter servers of a job up in discovery, until all are there in a certain order."""

from __future__ import annotations

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError, RpcTimeout
from monolith.discovery import order_servers
from monolith.training.cluster.lifecycle import Session

__all__ = ["find_servers"]


def find_servers(session: Session, clock: Clock | None = None) -> tuple[str, ...]:
    """Return the address of every server, by index.

    Queries discovery ``connect_retries`` + 1 times. A query that fails or times out finds no server.

    Raises:
        RpcTimeout: Not all servers are registered after the last query; the text counts those that are.
    """
    search = _Search(session)
    clock = clock or SystemClock()
    attempts = session.config.search.connect_retries + 1
    for attempt in range(attempts):
        if attempt:
            clock.sleep_s(session.config.search.retry_backoff_s)
        addresses = search.look()
        if len(addresses) == session.config.num_ps:
            return addresses
    raise RpcTimeout(search.failure(attempts))


class _Search:
    """The results of the queries so far."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last = 0
        self._most_found = 0
        self._most_usable = 0
        self._issue: str | None = None
        self._error: str | None = None

    def look(self) -> tuple[str, ...]:
        self._last = 0
        try:
            services = self._session.servers()
        except ClusterError as error:
            self._error = str(error)
            return ()
        self._error = None
        self._most_found = max(self._most_found, len(services))
        ordering = order_servers(services, self._session.config.num_ps)
        if ordering.issue is not None:
            self._issue = ordering.issue.value
        elif ordering.addresses:
            self._issue = None
        self._last = len(ordering.addresses)
        self._most_usable = max(self._most_usable, self._last)
        return ordering.addresses

    def failure(self, attempts: int) -> str:
        config = self._session.config
        found = [
            f"attempts: {attempts}",
            f"max raw observed: {self._most_found}",
            f"max usable observed: {self._most_usable}",
        ]
        if self._issue is not None:
            found.append(f"last ordering issue: {self._issue}")
        if self._error is not None:
            found.append(f"last discovery error: {self._error}")
        return (
            f"Timed out waiting for PS discovery for {config.service_id} (service type: "
            f"{config.discovery.discovery_service_type_ps}): got {self._last} expected {config.num_ps} "
            f"({'; '.join(found)})"
        )
