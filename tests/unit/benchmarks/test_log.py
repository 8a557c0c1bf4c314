"""The benchmark of the event log: both contestants deliver every byte, and a missing peer is skipped."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest


def lines_of(results: Any, sizes: Any) -> list[dict[str, Any]]:
    from log.results import write

    out = StringIO()
    for result in results:
        write(result, sizes, out)
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_the_event_log_delivers_every_message(tmp_path: Path) -> None:
    from log.streams import append_log, read_log
    from log.workload import make_messages

    messages = make_messages(256)
    assert len({key for key, _ in messages}) == len(messages)
    append_log(str(tmp_path), "topic", messages)
    assert read_log(str(tmp_path), "topic", len(messages)) == 256 * len(messages)


def test_a_missing_peer_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from log import append_tail, streams
    from log.workload import Sizes

    monkeypatch.setattr(streams, "SCRATCH", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    sizes = Sizes(megabytes=1, rounds=1)
    (line,) = lines_of(append_tail.append_tail_cases(["log_redis_4096"], sizes), sizes)
    assert "redis-tools" in line["skipped"]
    assert (line["ok"], line["must"]) == (None, 3.0)
