"""The work list of a folder: processes, their death, power loss and a full disk."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from file_recorder import FileRecorder
from monolith.core.errors import ConfigError, DataError
from monolith.data.sources.work_list import FolderWorkList

FILES = [str(number) for number in range(40)]

WORKER = """
import os, signal, sys
from monolith.data.sources.work_list import FolderWorkList
shared, name, limit = FolderWorkList(sys.argv[1]), sys.argv[2], int(sys.argv[3])
while (file := shared.claim(name)) is not None:
    if limit == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    limit -= 1
    shared.done(name, file)
    print(file, flush=True)
"""


def start(folder: Path, name: str, limit: int = -1) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", WORKER, str(folder), name, str(limit)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_processes_share_every_file_out_exactly_once_though_one_is_killed(tmp_path: Path) -> None:
    shared = FolderWorkList(tmp_path / "shared", FILES)
    victim = start(tmp_path / "shared", "victim", 3)
    done = victim.communicate()[0].split()
    assert victim.returncode == -signal.SIGKILL
    state = shared.state()
    assert len(state["claimed"]) - len(state["done"]) == 1
    workers = [start(tmp_path / "shared", f"worker-{number}") for number in range(2)]
    for worker in workers:
        done += worker.communicate()[0].split()
        assert worker.returncode == 0
    assert sorted(done, key=int) == FILES
    assert set(shared.state()["claimed"]) == set(shared.state()["done"])
    assert len(shared.state()["done"]) == 40


def test_a_worker_that_lives_keeps_its_files(tmp_path: Path) -> None:
    shared = FolderWorkList(tmp_path, ["a", "b"])
    assert shared.claim("first") == "a"
    other = FolderWorkList(tmp_path)
    assert [other.claim("second"), other.claim("second")] == ["b", None]
    shared.close()
    shared.close()
    assert other.claim("second") == "a"


def test_every_change_of_the_list_survives_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = FileRecorder(monkeypatch)

    def surviving() -> object:
        return json.loads(recorder.content_after_power_loss(tmp_path / "work_list.json") or b"null")

    shared = FolderWorkList(tmp_path, ["a", "b"])
    assert surviving() == shared.state()
    shared.claim("one")
    assert surviving() == shared.state()
    shared.done("one", "a")
    assert surviving() == shared.state()
    assert [event[0] for event in recorder.events] == ["sync", "rename", "sync"] * 3


def test_a_full_disk_fails_the_claim_and_keeps_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = FolderWorkList(tmp_path, ["a", "b"])
    before = shared.state()

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        with pytest.raises(OSError, match=r"No space left on device: .*work_list\.json"):
            shared.claim("one")
    assert shared.state() == before
    assert shared.claim("one") == "a", "the claim that failed took nothing"


def test_taking_over_can_be_left_to_the_user(tmp_path: Path) -> None:
    shared = FolderWorkList(tmp_path, ["a"])
    shared.claim("first")
    shared.close()
    other = FolderWorkList(tmp_path, requeue_dead=False)
    assert other.claim("second") is None
    assert other.requeue("first") == ["a"]
    assert other.claim("second") == "a"


def test_two_processes_cannot_have_one_name(tmp_path: Path) -> None:
    shared = FolderWorkList(tmp_path, ["a", "b"])
    shared.claim("same")
    with pytest.raises(ConfigError, match="worker 'same'"):
        FolderWorkList(tmp_path).claim("same")
    with pytest.raises(ConfigError, match=r"worker is .\.\./\.\./etc"):
        shared.claim("../../etc")


def test_the_folder_keeps_the_list_and_refuses_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no work list"):
        FolderWorkList(tmp_path / "new")
    FolderWorkList(tmp_path, ["a", "b"]).claim("worker")
    assert FolderWorkList(tmp_path, ["b", "a"]).state()["waiting"] == ["b"]
    with pytest.raises(ConfigError, match="a list of 2 files, 1 of them among the 2 given"):
        FolderWorkList(tmp_path, ["b", "c"])


def test_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    shared = FolderWorkList(tmp_path, ["a", "b"])
    (tmp_path / "work_list.json-tmp-1").write_text('{"half')
    assert shared.claim("worker") == "a"
    assert not (tmp_path / "work_list.json-tmp-1").exists()
    (tmp_path / "work_list.json").write_text("{}")
    with pytest.raises(DataError, match=r"work_list\.json is not the state"):
        shared.claim("worker")
