"""``monolith join`` runs as a process: signals, shared partitions, metrics, errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

from join_events import numbered_events
from join_process import read_topic
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter

TIMEOUT_S = 60


@pytest.fixture
def root(tmp_path: Path) -> Path:
    topic = Topic.create(tmp_path, "events", TopicSettings(partitions=2, durability="never"))
    with LogWriter(topic) as writer:
        for key, value, time_ms in numbered_events(600, 3):
            writer.write(value, key, time_ms)
    return tmp_path


def command(root: Path, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "monolith", "join", "--input", f"log://{root}/events"),
        *("--output", f"log://{root}/examples", "--state", str(root / "state"), "--window-s", "0.2"),
        *("--out-of-order-s", "0.25", "--horizon-s", "1", *options),
    ]


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(root, *options), capture_output=True, text=True, timeout=TIMEOUT_S)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_finite_input_is_joined_to_its_end(root: Path) -> None:
    done = run(root, "--until-end", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["rows"], result["partitions"], result["open_impressions"]) == (600, [0, 1], 0)
    assert result["dead_letters"] > 0


def test_a_signal_commits_and_a_restart_continues(root: Path) -> None:
    process = subprocess.Popen(
        command(root, "--metrics-port", "0", "--json", "--partitions", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        port = next(match[1] for line in process.stderr if (match := re.search(r"metrics at port (\d+)", line)))
        wait_for(lambda: bool(read_topic(root, "examples")))
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=TIMEOUT_S) as page:
            text = page.read().decode()
        assert 'monolith_join_group_up{group="0"} 1' in text
        assert re.search(r'monolith_join_rows_total\{group="0"\} [1-9]', text)
        process.send_signal(signal.SIGTERM)
        result = json.loads(process.communicate(timeout=TIMEOUT_S)[0])
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
    assert process.returncode == 0
    done = run(root, "--until-end", "--json", "--partitions", "0")
    assert done.returncode == 0, done.stderr
    rows = read_topic(root, "examples")
    assert len(rows) == len(set(rows)) == result["rows"] + json.loads(done.stdout)["rows"]


def test_members_share_partitions_and_a_third_finds_none(root: Path) -> None:
    members = [
        subprocess.Popen(command(root, "--members", "2", "--json"), stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    try:
        locks = [root / "state" / "join" / f"group-0000{number}" / "LOCK" for number in range(2)]
        wait_for(lambda: all(path.exists() for path in locks))
        wait_for(lambda: bool(read_topic(root, "examples")))
        late = run(root, "--members", "2")
        assert late.returncode == 1
        assert "all 2 partitions have an owner" in late.stderr
        for member in members:
            member.send_signal(signal.SIGTERM)
        results = [json.loads(member.communicate(timeout=TIMEOUT_S)[0]) for member in members]
    finally:
        for member in members:
            member.kill()
            member.wait(TIMEOUT_S)
    assert sorted(result["partitions"] for result in results) == [[0], [1]]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--late", "later"], "late is 'later', expected one of drop, reemit, correct"),
        (["--partitions", "7"], "partition is 7, expected 0 to 1"),
        (["--input", "log://nowhere/other"], "topic 'other' does not exist"),
        (["--input", "file://x/y"], "expected log://PATH/TOPIC or kafka://HOST:PORT/TOPIC"),
        (["--tasks", "click"], "task 'click' of 'click' is malformed"),
    ],
)
def test_wrong_options_end_with_one_line(root: Path, options: list[str], text: str) -> None:
    done = run(root, *options)
    assert done.returncode == 1
    assert text in done.stderr
    assert "Traceback" not in done.stderr
