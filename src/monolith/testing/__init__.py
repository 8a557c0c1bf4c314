"""Fakes, reference implementations, conformance suites and local servers, for users' tests and for ours.

``fakes/`` stand in for a seam, ``reference/`` models native code in plain Python, ``suites/`` check implementations and
recorded histories, ``processes/`` start real servers and jobs. Product code does not import this package. The names
below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from monolith.testing.eventually import eventually

if TYPE_CHECKING:
    from monolith.testing.fakes.clock import FakeClock
    from monolith.testing.processes.linear_server import LinearServer
    from monolith.testing.processes.local_cluster import LocalCluster
    from monolith.testing.processes.ps_processes import PsProcess
    from monolith.testing.processes.ps_servers import PsServers
    from monolith.testing.reference.store import ReferenceStore
    from monolith.testing.reference.table import ReferenceTable
    from monolith.testing.suites.discovery_suite import DiscoverySuite

__all__ = [
    # fakes
    "FakeClock",
    "ReferenceStore",
    "ReferenceTable",
    # suites, and waiting in tests
    "DiscoverySuite",
    "eventually",
    # servers and jobs
    "LinearServer",
    "LocalCluster",
    "PsProcess",
    "PsServers",
]

_HOMES = {
    "DiscoverySuite": "suites.discovery_suite",
    "FakeClock": "fakes.clock",
    "LinearServer": "processes.linear_server",
    "LocalCluster": "processes.local_cluster",
    "PsProcess": "processes.ps_processes",
    "PsServers": "processes.ps_servers",
    "ReferenceStore": "reference.store",
    "ReferenceTable": "reference.table",
}


def __getattr__(name: str) -> Any:
    """Import ``name`` on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, imported yet or not."""
    return list(__all__)
