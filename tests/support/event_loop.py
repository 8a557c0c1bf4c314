"""Numbered events through event log, joiner and consumer, while a parent kills and pauses the three processes.

``python event_loop.py SECONDS SEED`` runs rounds. In a round a producer appends numbered impressions and actions, a
joiner joins them live, and a consumer saves its rows together with its position. The parent kills them at random, or
pauses one, starts its successor and wakes it up. A round ends with a check: every impression has one row, and the rows
equal those of a run without kills. The program prints a line per round, and exits 1 on a violation.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from join_events import numbered_events
from join_process import POINTS, run_child
from monolith.core.durable_files import replace_file
from monolith.core.errors import ClusterError
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.stream import JoinSettings
from monolith.stream.line_id import MESSAGES
from monolith.stream.runtime import GroupOptions, JoinGroup, JoinRun, StateFolder
from monolith.stream.runtime.event_log import LogInput, LogSink
from torture_counts import add_counts

PARTITIONS = 2
BATCH = 8
FENCED = 3
"""Exit status of a process that another one has replaced."""
_PRODUCER = 77
_LIMIT_S = 120.0
# The disorder of the events is below out_of_order_ms: labels do not depend on the division of the input into lots.
SETTINGS = JoinSettings(
    tasks=(frozenset({1}), frozenset({2})), window_ms=200, horizon_ms=2000, out_of_order_ms=1000, idle_ms=3_600_000
)


@dataclass(slots=True)
class LoopCounts:
    """Work of a run."""

    rows: int = 0
    kills: int = 0
    takeovers: int = 0


# --- the three processes ---


def list_batches(events: int, seed: int) -> list[list[list[tuple[bytes, bytes, int]]]]:
    """Return the batches of each partition."""
    lists: list[list[tuple[bytes, bytes, int]]] = [[] for _ in range(PARTITIONS)]
    for key, value, time_ms in numbered_events(events, seed):
        lists[int(key.split(b"-")[1]) % PARTITIONS].append((key, value, time_ms))
    return [[each[start : start + BATCH] for start in range(0, len(each), BATCH)] for each in lists]


def produce(root: Path, events: int, seed: int, pause_s: float) -> None:
    """Append all batches that the log lacks."""
    writer = LogWriter(Topic.open(root, "events"))
    lists = list_batches(events, seed)
    owners = [writer.take_producer(number, _PRODUCER) for number in range(PARTITIONS)]
    following = [writer.last_sequence(number, _PRODUCER) for number in range(PARTITIONS)]
    while any(sequence < len(batches) for sequence, batches in zip(following, lists, strict=True)):
        for number, batches in enumerate(lists):
            if (sequence := following[number]) < len(batches):
                keys, values, times_ms = zip(*batches[sequence], strict=True)
                writer.append(
                    number,
                    values,
                    keys,
                    times_ms,
                    producer=_PRODUCER,
                    owner=owners[number],
                    sequence=sequence + 1,
                )
                following[number] += 1
        time.sleep(pause_s)
    writer.close()


def join(root: Path, *, until_end: bool, output: str = "examples", point: str = "", passages: int = 0) -> None:
    """Join the partitions; with a point, die at the given passage of it."""
    left, lock = passages, threading.Lock()

    def on_point(name: str) -> None:
        nonlocal left
        with lock:
            left -= name == point
            if name == point and left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def make_group(number: int) -> JoinGroup:
        folder = StateFolder(root / f"{output}-state" / str(number), take_over=True)
        inputs = [LogInput(Topic.open(root, "events"), number, group="join")]
        sinks = [LogSink(LogWriter(Topic.open(root, name)), number, "join") for name in (output, f"{output}.dead")]
        options = GroupOptions(commit_ms=5, snapshot_s=0.03, lot_records=40, memory_bytes=1 << 16, idle_advance=False)
        return JoinGroup(SETTINGS, inputs, *sinks, folder, options=options, on_point=on_point)

    run = JoinRun(make_group, range(PARTITIONS), until_end=until_end)
    run.start()
    run.wait()
    for error in run.failures.values():
        raise error


def consume(root: Path, *, until_end: bool) -> None:
    """Read examples, and save each chunk together with the position."""
    path = root / "consumer.json"
    state = json.loads(path.read_bytes()) if path.exists() else {"position": None, "rows": []}
    source = EventLogSource(Topic.open(root, "examples"), "example", poll_records=50, until_end=until_end)
    if state["position"] is not None:
        source.resume(state["position"])
    while (chunk := source.read()) is not None:
        state["rows"] += [describe_row(chunk[index]) for index in range(len(chunk))]
        state["position"] = source.position()
        replace_file(path, json.dumps(state).encode())


def describe_row(value: bytes) -> list[object]:
    """Return the number of a row and a hash of its content, without the times of the joiner."""
    example = MESSAGES.Example.FromString(value)
    example.line_id.ClearField("join_time_ms")
    example.line_id.ClearField("ingest_time_ms")
    content = example.SerializeToString(deterministic=True)
    return [int(example.line_id.uid), hashlib.sha256(content).hexdigest()[:16]]


# --- the parent ---


class Role:
    """One process of the loop: the parent restarts it after every kill."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self.name = name
        self._work = work
        self.is_done = False
        self.pid = self._start()

    def kill(self) -> bool:
        """Kill the process and start the next one; return False if it had ended by itself."""
        os.kill(self.pid, signal.SIGKILL)
        status = wait_for(self.pid)
        self._take(status)
        if not self.is_done:
            self.pid = self._start()
        return os.WIFSIGNALED(status)

    def replace(self, pause_s: float) -> None:
        """Pause the process, start its successor, and resume the process, which the log must fence off."""
        os.kill(self.pid, signal.SIGSTOP)
        older, self.pid = self.pid, self._start()
        time.sleep(pause_s)
        os.kill(older, signal.SIGCONT)
        time.sleep(3 * pause_s)
        os.kill(older, signal.SIGKILL)
        status = wait_for(older)
        if not os.WIFSIGNALED(status) and os.waitstatus_to_exitcode(status) not in (0, FENCED):
            raise SystemExit(f"replaced {self.name} ended with status {status}")

    def look(self) -> bool:
        """Restart the process if it died at a point; return whether it did."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self._take(status)
            if not self.is_done:
                self.pid = self._start()
        return bool(pid) and os.WIFSIGNALED(status)

    def stop(self) -> None:
        """Kill the process for good."""
        if not self.is_done:
            os.kill(self.pid, signal.SIGKILL)
            wait_for(self.pid)
            self.is_done = True

    def _start(self) -> int:
        return run_child(partial(run_role, self._work))

    def _take(self, status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code not in (0, FENCED, -signal.SIGKILL):
            raise SystemExit(f"{self.name} ended with status {code} after a restart")
        # A process that was paused while it started may fence off its successor, which then restarts.
        self.is_done = code == 0


def run_role(work: Callable[[], None]) -> None:
    """Run a process of the loop; exit with FENCED if a successor has taken its place."""
    try:
        work()
    except ClusterError:
        os._exit(FENCED)


def wait_for(pid: int) -> int:
    """Return the status of a child, which ends within the limit."""
    end_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < end_s:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise SystemExit(f"process {pid} has not ended after {_LIMIT_S:g} s")


def run_to_end(work: Callable[[], None], title: str) -> None:
    """Run a child that must succeed."""
    if status := wait_for(run_child(work)):
        raise SystemExit(f"{title} failed with status {status}")


def run_round(root: Path, chance: Random, counts: LoopCounts, *, events: int, seconds: float) -> None:
    """Run one round and check its rows."""
    seed = chance.randrange(1 << 30)
    for name in ("events", "examples", "examples.dead", "expected", "expected.dead"):
        Topic.create(root, name, TopicSettings(partitions=PARTITIONS, durability="never", segment_bytes=1 << 16))
    pause_s = seconds * BATCH * PARTITIONS / (events * 1.5)
    roles = {
        "producer": Role("producer", partial(produce, root, events, seed, pause_s)),
        "joiner": Role("joiner", lambda: join_with_deaths(root, chance.randrange(1 << 30))),
        "consumer": Role("consumer", partial(consume, root, until_end=False)),
    }
    try:
        hurt(roles, chance, counts, _LIMIT_S + 10 * seconds)
    finally:
        for role in roles.values():
            role.stop()
    run_to_end(partial(join, root, until_end=True), "the last joiner")
    run_to_end(partial(consume, root, until_end=True), "the last consumer")
    run_to_end(partial(join, root, until_end=True, output="expected"), "the joiner without kills")
    run_to_end(partial(check_rows, root, events, f"seed {seed}"), "the check")
    counts.rows += events
    print(f"round seed={seed} rows={events} kills={counts.kills} takeovers={counts.takeovers}", flush=True)


def hurt(roles: dict[str, Role], chance: Random, counts: LoopCounts, limit_s: float) -> None:
    """Kill and replace processes until the producer has appended all events."""
    end_s = time.monotonic() + limit_s
    while not roles["producer"].is_done:
        if time.monotonic() > end_s:
            raise SystemExit("the producer makes no progress")
        time.sleep(chance.expovariate(1 / 0.08))
        for role in roles.values():
            counts.kills += not role.is_done and role.look()
        role = roles[chance.choice(("producer", "joiner", "joiner", "consumer"))]
        if role.is_done:
            continue
        if role.name != "consumer" and chance.random() < 0.2:
            role.replace(chance.uniform(0.05, 0.3))
            counts.takeovers += 1
        else:
            counts.kills += role.kill()


def join_with_deaths(root: Path, seed: int) -> None:
    """Join live; half of the processes die at a point of the commit protocol."""
    chance = Random(seed + os.getpid())
    point = chance.choice(POINTS) if chance.random() < 0.5 else ""
    join(root, until_end=False, point=point, passages=chance.randrange(1, 12))


def check_rows(root: Path, events: int, title: str) -> None:
    """Compare the rows of the consumer with the numbers of the producer, and with a run without kills."""
    rows = json.loads((root / "consumer.json").read_bytes())["rows"]
    counts = Counter(number for number, _ in rows)
    lost = [number for number in range(events) if number not in counts]
    doubled = [number for number, count in counts.items() if count > 1]
    if lost or doubled:
        raise SystemExit(f"{title}: {len(lost)} rows lost {lost[:10]}, {len(doubled)} doubled {doubled[:10]}")
    source = EventLogSource(Topic.open(root, "expected"), "example", until_end=True)
    wanted = []
    while (chunk := source.read()) is not None:
        wanted += [describe_row(chunk[index]) for index in range(len(chunk))]
    others = sum(one != other for one, other in zip(sorted(rows), sorted(wanted), strict=True))
    if others:
        raise SystemExit(f"{title}: {others} rows differ from a run without kills")


def main(seconds: float, seed: int) -> None:
    """Run rounds until the time is over."""
    chance, counts, end_s = Random(seed), LoopCounts(), time.monotonic() + seconds
    print(f"seed={seed}", flush=True)
    while not counts.rows or time.monotonic() < end_s:
        root = Path(tempfile.mkdtemp(prefix="event-loop-"))
        before = LoopCounts(counts.rows, counts.kills, counts.takeovers)
        try:
            run_round(root, chance, counts, events=chance.randrange(600, 3000), seconds=chance.uniform(2, 8))
        finally:
            shutil.rmtree(root, ignore_errors=True)
        add_counts(
            cycles=counts.kills - before.kills,
            operations=counts.rows - before.rows,
            faults=counts.takeovers - before.takeovers,
        )
    print(f"kills={counts.kills} takeovers={counts.takeovers} rows={counts.rows}", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
