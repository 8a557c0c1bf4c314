"""A server removes the socket folders of killed servers; those of running servers stay."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.ps import RemoteStore, ServerConfig
from monolith.testing.processes.ps_servers import PsServers

TABLE = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))])


def test_a_server_removes_dead_folders_when_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with PsServers(1, ServerConfig()) as first, RemoteStore(first.addresses, [TABLE]):
        (alive,) = tmp_path.glob("monolith-ps-*")
        dead = tmp_path / "monolith-ps-dead"
        dead.mkdir()
        for folder in (alive, dead):
            os.utime(folder, (1.0, 1.0))
        with PsServers(1, ServerConfig()) as second, RemoteStore(second.addresses, [TABLE]):
            assert alive.exists()
            assert not dead.exists()
            assert len(list(tmp_path.glob("monolith-ps-*"))) == 2
    assert not list(tmp_path.glob("monolith-ps-*"))
