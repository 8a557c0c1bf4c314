"""Processes that append to one topic are killed at random moments: no acknowledged record is lost or doubled.

``EVENT_LOG_KILLS`` sets the number of kills, ``EVENT_LOG_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from monolith import _native
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Durability, Topic, TopicSettings

APPENDER = Path(__file__).parents[1] / "support" / "log_appender.py"
KILLS = int(os.environ.get("EVENT_LOG_KILLS", "8"))
SEED = int(os.environ.get("EVENT_LOG_SEED", str(time.time_ns() % 1_000_000)))
WRITERS = 3
PATIENCE_S = 60.0


class Appender:
    """A writer process, started again after each kill. Knows the numbers that were acknowledged."""

    def __init__(self, topic: Topic, name: str) -> None:
        self._topic = topic
        self._name = name
        self.ranges: list[tuple[int, int]] = []  # (first, last acknowledged) of each start
        self._next = 0
        self.start()

    def start(self) -> None:
        self._first = self._next
        arguments = [str(APPENDER), str(self._topic.folder.parent), self._topic.name, self._name, str(self._first)]
        self._child = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self._child.send_signal(signal.SIGKILL)
        output, _ = self._child.communicate(timeout=PATIENCE_S)
        lines = [int(line) for line in output.split(b"\n")[:-1] if line]
        self.ranges.append((self._first, lines[-1] if lines else self._first - 1))
        self._next = self.ranges[-1][1] + 1_000_000  # never a number that may lie unacknowledged in the log


def numbers_of(records: Sequence[bytes], name: str) -> list[int]:
    fields = [record.split(b" ", 2) for record in records]
    return [int(number) for each, number, _ in fields if each == name.encode()]


@pytest.mark.parametrize("durability", ["interval", "commit"])
def test_kills_lose_and_double_no_acknowledged_record(tmp_path: Path, durability: Durability) -> None:
    print(f"seed {SEED}, repeat with EVENT_LOG_SEED={SEED}")
    chance = random.Random(SEED)
    topic = Topic.create(tmp_path, "events", TopicSettings(partitions=2, durability=durability, segment_bytes=1 << 17))
    followed: list[bytes] = []
    follower = EventLogSource(topic, "example")
    threading.Thread(target=follow, args=(follower, followed), daemon=True).start()
    names = [f"writer-{number}" for number in range(WRITERS)]
    appenders = [Appender(topic, name) for name in names]
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.0, 0.3))
        victim = chance.choice(appenders)
        victim.kill()
        victim.start()
    for each in appenders:
        each.kill()

    # A whole batch of a killed writer that was not acknowledged becomes visible when a reader has synced it.
    partitions = [topic.open_partition(number) for number in range(2)]
    wait_until(lambda: all(each.visible_end == each.written_end for each in partitions))
    records: list[bytes] = []
    for number in range(2):
        source = EventLogSource(topic, "example", partitions=[number], until_end=True)
        offsets: list[int] = []
        while (chunk := source.read()) is not None:
            records += [chunk[index] for index in range(len(chunk))]
            offsets += chunk.offsets.tolist()
        assert offsets == list(range(len(offsets))), f"seed {SEED}: offsets have gaps"
        assert not any(each.bad or each.is_torn for each in topic.open_partition(number).verify())
    for name, each in zip(names, appenders, strict=True):
        numbers = numbers_of(records, name)
        assert numbers == sorted(set(numbers)), f"seed {SEED}: a record of {name} is doubled or out of order"
        acknowledged = {number for first, last in each.ranges for number in range(first, last + 1)}
        assert acknowledged <= set(numbers), f"seed {SEED}: acknowledged records of {name} are lost"
    wait_until(lambda: len(followed) == len(records))
    follower.close()
    assert sorted(followed) == sorted(records), f"seed {SEED}: the follower saw other records"


def follow(source: EventLogSource, records: list[bytes]) -> None:
    while (chunk := source.read()) is not None:
        records += [chunk[index] for index in range(len(chunk))]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < deadline_s:
        time.sleep(0.01)


POINTS = [
    "eventlog_before_write",
    "eventlog_before_head",
    "eventlog_before_roll",
    "eventlog_after_roll",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_inside_an_append_is_recovered(tmp_path: Path, point: str) -> None:
    topic = Topic.create(tmp_path, "events", TopicSettings(segment_bytes=4096))
    partition = topic.open_partition(0)
    partition.append([b"first"], [b""], [1])
    child = os.fork()
    if child == 0:
        own = topic.open_partition(0)
        _native.set_failpoint(point)
        for _ in range(10):
            own.append([bytes(1000)], [b""], [2])
        os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    base = partition.append([b"last"], [b""], [3])
    reader = _native.EventLogReader([topic.open_partition(0)], topic.wake_path)
    offsets: list[int] = []
    while (chunk := reader.read(100, 0)) is not None:
        offsets += range(chunk.begin, chunk.end)
    assert offsets == list(range(base + 1))
    assert [each.end for each in partition.verify()][-1] == base + 1


@pytest.mark.parametrize("point", ["eventlog_before_cut", "eventlog_in_recovery"])
def test_a_kill_inside_a_recovery_is_recovered(tmp_path: Path, point: str) -> None:
    topic = Topic.create(tmp_path, "events")
    topic.open_partition(0).append([b"first"], [b""], [1])
    with next(topic.partition_folder(0).glob("seg-*.log")).open("ab") as file:
        file.write(b"torn")
    for _ in range(3):
        (topic.partition_folder(0) / "HEAD").unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            _native.set_failpoint(point)
            topic.open_partition(0)
            os._exit(1)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]) or point == "eventlog_before_cut"
    partition = topic.open_partition(0)
    assert partition.written_end == 1
    assert partition.append([b"second"], [b""], [2]) == 1
    assert partition.epoch >= 2
