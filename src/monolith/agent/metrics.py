"""Count the events of an agent for the common metrics page.

Main type: ``AgentMetrics``. Counters live here; all other values are sampled from the agent when the page is fetched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from monolith.telemetry import names
from monolith.telemetry.registry import Registry
from monolith.telemetry.text import Samples

__all__ = ["AgentMetrics"]


class AgentMetrics:
    """The metrics of one agent. Thread-safe.

    Args:
        has_versions: Whether the page contains the served versions (``use_metrics`` of the configuration).
    """

    def __init__(self, *, has_versions: bool = True) -> None:
        self._has_versions = has_versions
        self.registry = Registry()
        self.registry.declare(names.AGENT_LOST_SESSIONS_TOTAL)

    def count_lost_session(self) -> None:
        """Count a lost ZooKeeper session."""
        self.registry.export(names.AGENT_LOST_SESSIONS_TOTAL, 1)

    def watch(self, sample: Callable[[], Mapping[str, Any]]) -> None:
        """Read the values of the agent from ``sample`` whenever the page is fetched.

        Args:
            sample: Returns ``own`` (states of own replicas), ``known`` (replicas by task), ``map_age_s``,
                ``heartbeat_age_s``, ``unfit``, ``versions`` (by sub-model), ``restarts``, ``reloads``,
                ``failed_reloads``, ``is_leader``; all optional.
        """
        self.registry.collect(lambda: _samples(sample(), self._has_versions))


def _samples(values: Mapping[str, Any], has_versions: bool) -> Iterable[Samples]:
    own = Counter(values.get("own", ()))
    yield names.AGENT_OWN_REPLICAS, [((state,), count) for state, count in sorted(own.items())]
    known = values.get("known", {})
    yield names.AGENT_KNOWN_REPLICAS, [((task,), count) for task, count in sorted(known.items())]
    if has_versions:
        yield names.AGENT_SERVED_VERSION, [((name,), version) for name, version in sorted(_table(values, "versions"))]
    for key, metric in (
        ("map_age_s", names.AGENT_MAP_AGE_SECONDS),
        ("heartbeat_age_s", names.AGENT_HEARTBEAT_AGE_SECONDS),
        ("unfit", names.AGENT_UNFIT_MODELS),
        ("is_leader", names.AGENT_LEADER),
        ("restarts", names.AGENT_RESTARTS_TOTAL),
        ("reloads", names.AGENT_RELOADS_TOTAL),
        ("failed_reloads", names.AGENT_FAILED_RELOADS_TOTAL),
    ):
        value = values.get(key)
        if value is not None:
            yield metric, [((), value)]


def _table(values: Mapping[str, Any], key: str) -> list[tuple[str, float]]:
    return list(values.get(key, {}).items())
