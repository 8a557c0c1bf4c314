"""The keywords of ``ServerConfig`` for type checkers: its sections and their fields, as users name them.

Written by ``scripts/write_config_reference.py``; change the sections, not this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from monolith.embedding.specs import WhenFull
from monolith.ps.config import PsLimits, PsListenConfig, PsRecoveryConfig, PsTableConfig
from monolith.rpc.security import Security

__all__ = ["ServerSettings"]


class ServerSettings(TypedDict, total=False):
    """Keywords of ``ServerConfig``."""

    listen: PsListenConfig
    limits: PsLimits
    tables: PsTableConfig
    recovery: PsRecoveryConfig
    index: int
    shards: int
    security: Security
    host: str
    advertised_host: str
    port: int
    data_plane: bool
    data_port: int
    metrics_port: int | None
    threads: int
    max_barrier_waiters: int
    max_connections: int
    max_message_bytes: int
    max_inflight_bytes: int
    force_expiry: bool
    evict_every_hours: float | None
    default_dim: int
    memory_limit_bytes: int | None
    when_full: WhenFull | None
    cut_lease_s: float
    hold_lease_s: float
    recover_from: Path | None
    delta_log: Path | None
    discard_log: bool
    delta_interval_s: float
