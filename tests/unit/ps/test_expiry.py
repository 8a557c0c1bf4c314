"""Servers remove expired rows by themselves, and their delta logs have the removals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from monolith.artifacts.delta_log import DeltaReader
from monolith.core.errors import ConfigError
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.ps import RemoteStore, ServerConfig
from monolith.testing import PsServers, eventually

NOW = 1_700_000_000
DAY = 86_400
TABLE = TableSpec("t", [SliceSpec(4, optimizer=Sgd(1.0))], expire_days=2)


def push_day(store: RemoteStore, day: int, rows: int = 100) -> None:
    ids = np.arange(day * rows, (day + 1) * rows)
    store.push({"t": ids}, {"t": np.ones((rows, 4), np.float32)}, time_s=NOW + day * DAY)


def test_servers_keep_a_flat_number_of_rows_and_log_the_removals(tmp_path: Path) -> None:
    config = ServerConfig(delta_log=tmp_path, delta_interval_s=0.05, evict_every_hours=24)
    with PsServers(2, config) as servers, RemoteStore(servers.addresses, [TABLE]) as store:
        for day in range(6):
            push_day(store, day)
            eventually(
                lambda: sum(server.tables.rows for server in servers.servers) <= 200, message=f"evictions of day {day}"
            )
        assert not store.pull({"t": np.arange(400)})["t"].any()
        store.flush_deltas()
        for index, server in enumerate(servers.servers):
            replica = MultiTable([TABLE])
            replayed = DeltaReader(tmp_path / f"ps_{index}").replay(replica)
            assert replayed.tombstones >= 150
            assert len(replica["t"]) == server.tables.rows


def test_a_server_without_a_schedule_keeps_expired_rows() -> None:
    with (
        PsServers(1, ServerConfig(evict_every_hours=None)) as servers,
        RemoteStore(servers.addresses, [TABLE]) as store,
    ):
        for day in range(6):
            push_day(store, day)
        server = servers.servers[0]
        server._evict_due()
        assert server.tables.rows == 600
        assert store.evict() == 400


def test_a_period_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ConfigError, match="evict_every_hours is 0"):
        ServerConfig(evict_every_hours=0)
