"""Socket folders of killed servers are removed; those of running servers stay."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from monolith.embedding import Sgd, SliceSpec, TableSpec
from monolith.ps import RemoteStore, ServerConfig
from monolith.ps.data_plane import remove_dead_folders
from monolith.testing.processes.ps_servers import PsServers

TABLE = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))])


def socket_folder(parent: Path, name: str, *, age_s: float) -> tuple[Path, socket.socket]:
    """Return a folder with a socket that is bound and listens."""
    folder = parent / f"monolith-ps-{name}"
    folder.mkdir()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(folder / "0.sock"))
    listener.listen()
    stamp = time.time() - age_s
    os.utime(folder, (stamp, stamp))
    return folder, listener


def test_folders_of_dead_servers_are_removed_and_others_stay(tmp_path: Path) -> None:
    dead, gone = socket_folder(tmp_path, "dead", age_s=3600)
    gone.close()  # as after SIGKILL: the file stays, and connections are refused
    young, starting = socket_folder(tmp_path, "young", age_s=1)
    starting.close()
    alive, listener = socket_folder(tmp_path, "alive", age_s=3600)
    foreign = tmp_path / "monolith-other"
    foreign.mkdir()
    assert remove_dead_folders(tmp_path) == 1
    assert [path.exists() for path in (dead, young, alive, foreign)] == [False, True, True, True]
    listener.close()


def test_a_server_removes_dead_folders_when_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, gone = socket_folder(tmp_path, "dead", age_s=3600)
    gone.close()
    with PsServers(1, ServerConfig()) as servers, RemoteStore(servers.addresses, [TABLE]):
        assert not dead.exists()
        assert len(list(tmp_path.glob("monolith-ps-*"))) == 1
