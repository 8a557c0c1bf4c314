"""``HealthClient``: asks all servers of a job how they are."""

from __future__ import annotations

from collections.abc import Sequence

from monolith.ps import messages
from monolith.ps.fan_out import call_all
from monolith.ps.link import ServerLink
from monolith.rpc.security import Security

__all__ = ["HealthClient"]


class HealthClient:
    """Calls the health check of every server. Safe to use from several threads.

    Args:
        addresses: gRPC addresses, by the servers' indexes.
        security: TLS and token.
        timeout_s: Timeout of one round of calls.
    """

    def __init__(self, addresses: Sequence[str], *, security: Security | None = None, timeout_s: float = 30.0) -> None:
        self._timeout_s = timeout_s
        self._links = [ServerLink(address, security) for address in addresses]

    def check_all(self) -> list[messages.HealthCheckResponse]:
        """Return the health of all servers, by index.

        Raises:
            ClusterError: A server does not answer.
        """
        requests = dict.fromkeys(range(len(self._links)), messages.HealthCheckRequest())
        answers = call_all(self._links, "HealthCheck", requests, self._timeout_s)
        return [answers[index] for index in sorted(answers)]

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.close()
        self._links = []
