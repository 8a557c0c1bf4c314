"""Join groups on event logs, in processes that a test kills.

``python join_process.py KILLS SEED EVENTS`` runs rounds until KILLS processes died. A round joins numbered events, and
compares the output with that of a run without kills. The program prints one line per round and exits 1 on a difference.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from join_events import numbered_events
from monolith import _native
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.stream import JoinSettings
from monolith.stream.line_id import MESSAGES
from monolith.stream.runtime import GroupOptions, JoinGroup, StateFolder
from monolith.stream.runtime.event_log import LogInput, LogSink

SETTINGS = JoinSettings(
    tasks=(frozenset({1}), frozenset({2})),
    window_ms=200,
    horizon_ms=400,
    late="reemit",
    sample_rate=0.8,
    out_of_order_ms=250,
)


def make_group(
    root: Path,
    *,
    options: GroupOptions | None = None,
    on_point: Callable[[str], None] | None = None,
    settings: JoinSettings = SETTINGS,
    state: str = "state",
    output: str = "examples",
    take_over: bool = False,
) -> JoinGroup:
    """Return the group of partition 0, with impressions and actions in one topic."""
    sinks = [LogSink(LogWriter(Topic.open(root, name)), 0, "join") for name in (output, f"{output}.dead")]
    folder = StateFolder(root / state, take_over=take_over)
    options = options or GroupOptions(
        commit_ms=0, snapshot_s=0.02, lot_records=40, memory_bytes=1 << 16, idle_advance=False
    )
    inputs = [LogInput(Topic.open(root, "events"), 0, group="join")]
    return JoinGroup(settings, inputs, *sinks, folder, options=options, on_point=on_point)


def run_to_end(group: JoinGroup) -> None:
    """Join all records, close all windows, and release the group."""
    group.start()
    while group.step(0.0) or not group.is_at_end():
        pass
    group.finish()
    group.close()


POINTS = (
    "restored",
    "repeated",
    "before journal",
    "after journal",
    "after rows",
    "after outputs",
    "before snapshot",
    "after snapshot",
)


def make_topics(root: Path, events: int, seed: int) -> None:
    """Create the topics and write the numbered events."""
    for name in ("events", "examples", "examples.dead", "expected", "expected.dead"):
        Topic.create(root, name, TopicSettings(durability="never"))
    with LogWriter(Topic.open(root, "events")) as writer:
        for key, value, time_ms in numbered_events(events, seed):
            writer.write(value, key, time_ms)


def read_topic(root: Path, name: str) -> list[tuple[bytes, bytes]]:
    """Return the records of partition 0; Examples without their join time."""
    topic = Topic.open(root, name)
    reader = _native.EventLogReader([topic.open_partition(0)], topic.wake_path, False, False)
    records = []
    while (chunk := reader.read_partition(0, 1000, 1 << 62)) is not None:
        for index, key in enumerate(chunk.keys):
            value = chunk.records[index]
            if not name.endswith(".dead"):
                example = MESSAGES.Example.FromString(value)
                example.line_id.ClearField("join_time_ms")
                example.line_id.ClearField("ingest_time_ms")
                value = example.SerializeToString()
            records.append((key, value))
    return records


def run_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a child and return its process id."""
    if pid := os.fork():
        return pid
    try:
        work()
    except BaseException:
        logging.exception("child failed")
        os._exit(1)
    os._exit(0)


def join_until_killed(root: Path, point: str, passages: int) -> None:
    """Join to the end; with a point, die at the given passage of it."""
    left = passages

    def on_point(name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    run_to_end(make_group(root, on_point=on_point))


def run_round(root: Path, random: Random, events: int, most_kills: int) -> int:
    """Join with kills, compare, and return the number of kills."""
    seed = random.randrange(1 << 30)
    os.waitpid(run_child(lambda: make_topics(root, events, seed)), 0)
    expected = run_child(lambda: run_to_end(make_group(root, state="expected-state", output="expected")))
    _, status = os.waitpid(expected, 0)
    if status:
        raise SystemExit("the run without kills failed")
    kills = 0
    while True:
        point = random.choice(POINTS) if kills < most_kills and random.random() < 0.5 else ""
        pid = run_child(partial(join_until_killed, root, point, random.randrange(1, 6)))
        if kills < most_kills and not point:
            time.sleep(random.expovariate(1 / 0.03))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            kills += 1
        elif status:
            raise SystemExit(f"a restart failed after {kills} kills")
        else:
            break
    for name in ("", ".dead"):
        output, wanted = (read_topic(root, f"{topic}{name}") for topic in ("examples", "expected"))
        if output != wanted:
            raise SystemExit(f"seed {seed}: {len(output)} records after {kills} kills, expected {len(wanted)}")
    print(f"round seed={seed} kills={kills} rows={len(read_topic(root, 'examples'))}", flush=True)
    return kills


def main() -> None:
    """Run rounds until enough processes died."""
    kills, seed, events = (int(argument) for argument in sys.argv[1:4])
    print(f"seed={seed}", flush=True)
    random, total = Random(seed), 0
    while total < kills:
        root = Path(tempfile.mkdtemp(prefix="join-kills-"))
        try:
            total += run_round(root, random, events, min(100, kills - total))
        finally:
            shutil.rmtree(root)
    print(f"kills={total}", flush=True)


if __name__ == "__main__":
    main()
