"""The request log keeps writing after a bad sample, closes in time, and keeps a bounded number of files."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import pytest

from monolith.serving.api import request_log
from monolith.serving.api.request_log import RequestLog


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
