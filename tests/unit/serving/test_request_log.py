"""The request log keeps writing after a bad sample, closes in time, and keeps a bounded number of files."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from pathlib import Path

import pytest

from monolith.core import storage
from monolith.data.records import codecs
from monolith.data.records.tfrecord import read_tfrecords
from monolith.serving.api import request_log
from monolith.serving.api.request_log import RequestLog
from monolith.testing.eventually import eventually


def test_a_prefix_that_no_file_can_have_does_not_stop_the_log(tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    log = RequestLog(1.0, str(tmp_path / "log"), lambda outcome: outcomes.update([outcome]))
    log.add(b"request", b"response", "bad\0prefix")
    log.add(b"request", b"response")
    assert log.is_alive
    log.close()
    assert outcomes == {"dropped": 1, "written": 1}
    assert len(list(tmp_path.glob("log-*.tfrecord"))) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_closing_does_not_wait_for_a_thread_that_has_died(tmp_path: Path) -> None:
    def fail(outcome: str) -> None:
        raise SystemExit  # ends the thread without a traceback

    log = RequestLog(1.0, str(tmp_path / "log"), fail)
    log.add(b"request", b"response")
    log._thread.join(60)
    assert not log.is_alive
    for _ in range(200):  # more than the queue holds
        try:
            log.add(b"request", b"response")
        except SystemExit:
            break
    closing = threading.Thread(target=log.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()


def test_old_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "_MAX_FILES", 2)
    monkeypatch.setattr(request_log, "_RECORDS_PER_FILE", 1)
    log = RequestLog(1.0, str(tmp_path / "log"), lambda outcome: None)
    for _ in range(5):
        log.add(b"request", b"response")
    log.close()
    assert sorted(path.name.rpartition("-")[2] for path in tmp_path.iterdir()) == ["4.tfrecord", "5.tfrecord"]


def test_a_full_disk_costs_one_file_and_the_next_files_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "PIECE_BYTES", 1)
    write, is_full = storage.NewFile.write, threading.Event()

    def fill_disk(file: storage.NewFile, data: bytes) -> None:
        if is_full.is_set():
            is_full.clear()
            write(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "no space left on device")
        write(file, data)

    monkeypatch.setattr(storage.NewFile, "write", fill_disk)
    outcomes: Counter[str] = Counter()
    log = RequestLog(1.0, str(tmp_path / "log"), lambda outcome: outcomes.update([outcome]))
    log.add(b"request 1", b"response")
    eventually(lambda: outcomes["written"] == 1, timeout_s=60)
    is_full.set()
    log.add(b"request 2", b"response")
    log.add(b"request 3", b"response")
    log.close()
    assert outcomes == {"written": 2, "dropped": 1}
    (path,) = tmp_path.iterdir()
    (record,) = read_tfrecords(path)
    assert b"request 3" in record


def test_large_samples_that_wait_for_a_slow_disk_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "_MAX_WAITING_BYTES", 10_000)
    has_disk = threading.Event()
    write = request_log.TfRecordWriter.write

    def write_slowly(writer: request_log.TfRecordWriter, record: bytes) -> None:
        assert has_disk.wait(60)
        write(writer, record)

    monkeypatch.setattr(request_log.TfRecordWriter, "write", write_slowly)
    outcomes: Counter[str] = Counter()
    log = RequestLog(1.0, str(tmp_path / "log"), lambda outcome: outcomes.update([outcome]))
    for _ in range(10):
        log.add(b"r" * 3000, b"response")
    assert outcomes == {"dropped": 7}
    has_disk.set()
    eventually(lambda: outcomes["written"] == 3 and not log._bytes, timeout_s=60)
    log.add(b"r" * 30_000, b"response")  # an empty queue takes any sample
    log.close()
    assert outcomes == {"dropped": 7, "written": 4}
