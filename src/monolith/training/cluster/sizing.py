"""``size_cluster``: estimates servers, workers, memory, disk and network of a job. Pure arithmetic.

Invariants: memory follows the table of the tables guide. Rates are arguments, because they depend on machine and model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from monolith.core.errors import ConfigError

__all__ = ["STATE_BYTES", "ClusterSize", "Workload", "size_cluster"]

STATE_BYTES = {
    "sgd": (0, 0),
    "adagrad": (4, 0),
    "momentum": (4, 0),
    "rmsprop": (4, 0),
    "adadelta": (8, 0),
    "ftrl": (8, 0),
    "adam": (8, 8),
    "amsgrad": (12, 8),
}
"""State of each optimizer: bytes per column, and bytes per row."""

_FLOAT_BYTES = 4
_INDEX_BYTES = 16 / 0.7  # a large index is 70 to 87 % full
_SLAB_SLACK = 1 / 32
_FILE_ROW_BYTES = 12  # id and time of the last update


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Demand of a job, and the capacity of its machines."""

    rows: int
    """Rows of all tables together."""
    dim: int
    """Columns of a row: the sum over its slices."""
    optimizer: str = "adagrad"
    """Optimizer of the rows, a key of ``STATE_BYTES``."""
    events_per_s: float
    """Events to train on per second, at the peak."""
    ids_per_event: float
    """Ids of one event: its sparse features, with all ids of lists."""
    server_memory_gb: float = 32.0
    """Memory of one server, in 10^9 bytes."""
    server_cores: int = 4
    """Cores of one server."""
    worker_cores: int = 4
    """Cores of one worker."""
    events_per_core_s: float = 20_000.0
    """Events that one core of a worker trains on per second."""
    updates_per_core_s: float = 1_000_000.0
    """Rows that one core of a server looks up and updates per second."""
    load: float = 0.7
    """Share of memory, cores and rates to use; the rest is for growth, snapshots and restarts."""

    def __post_init__(self) -> None:
        if self.optimizer not in STATE_BYTES:
            raise ConfigError(f"optimizer is {self.optimizer!r}, expected one of {', '.join(STATE_BYTES)}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field.name} is {value!r}, expected a number above 0")
        if self.load > 1:
            raise ConfigError(f"load is {self.load!r}, expected a share up to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """Estimate of a cluster."""

    bytes_per_row: float
    """Memory of a row: values, optimizer state, index and slack."""
    table_bytes: float
    """Memory of all rows."""
    servers_for_memory: int
    """Servers that hold the rows."""
    servers_for_rate: int
    """Servers that look up and update the rows of all events."""
    servers: int
    """Servers: the larger of the two."""
    memory_per_server: float
    """Bytes of rows on each server."""
    workers: int
    """Workers, including the chief."""
    checkpoint_bytes: float
    """Disk space of one checkpoint of the tables."""
    network_per_server: float
    """Bytes per second of pulls and pushes at each server, if no id repeats within a batch."""


def size_cluster(workload: Workload) -> ClusterSize:
    """Return the estimated size of the cluster for a workload.

    Limits: the dense part, which is small, is not counted. Ids that repeat in a batch are counted each time, so network
    and servers for the rate are upper bounds.

    >>> size = size_cluster(Workload(rows=10**9, dim=16, events_per_s=100_000, ids_per_event=30))
    >>> round(size.bytes_per_row), size.servers, size.workers
    (155, 7, 2)
    """
    per_column, per_row = STATE_BYTES[workload.optimizer]
    payload = workload.dim * (_FLOAT_BYTES + per_column) + per_row
    bytes_per_row = payload * (1 + _SLAB_SLACK) + _INDEX_BYTES
    table_bytes = workload.rows * bytes_per_row
    updates_per_s = workload.events_per_s * workload.ids_per_event
    for_memory = math.ceil(table_bytes / (workload.server_memory_gb * 1e9 * workload.load))
    for_rate = math.ceil(updates_per_s / (workload.server_cores * workload.updates_per_core_s * workload.load))
    servers = max(for_memory, for_rate)
    worker_rate = workload.worker_cores * workload.events_per_core_s * workload.load
    row_traffic = 2 * workload.dim * _FLOAT_BYTES + 2 * 8
    return ClusterSize(
        bytes_per_row=bytes_per_row,
        table_bytes=table_bytes,
        servers_for_memory=for_memory,
        servers_for_rate=for_rate,
        servers=servers,
        memory_per_server=table_bytes / servers,
        workers=math.ceil(workload.events_per_s / worker_rate),
        checkpoint_bytes=workload.rows * (payload + _FILE_ROW_BYTES),
        network_per_server=updates_per_s * row_traffic / servers,
    )
