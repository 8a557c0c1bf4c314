"""Stages by themselves: commits across epochs, and marks beside the prefetching thread."""

from __future__ import annotations

import base64
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from monolith import _native, data
from monolith.core.errors import ConfigError
from monolith.data.dataset import _Opening
from monolith.data.records.messages import Example
from monolith.data.schema import Schema, make_parser
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.data.stages import Mark, PrefetchStage, RepeatStage, State, TransformStage

WAIT_S = 30.0


def make_row() -> _native.Rows:
    """Return one row of an empty Example."""
    return make_parser(Schema(labels=0), "example", _native.Columns()).parse(_native.Records([b""]))


class Epoch:
    """A stage of ``count`` rows that lists its commits and whether it is closed."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.commits: list[State] = []
        self.is_closed = False

    def read(self) -> _native.Rows | None:
        if not self.left:
            return None
        self.left -= 1
        return make_row()

    def mark(self) -> Mark:
        left = self.left
        return lambda: {"left": left}

    def restore(self, state: State) -> None:
        self.left = state["left"]

    def committed(self, state: State) -> None:
        self.commits.append(state)

    def close(self) -> None:
        self.is_closed = True


def test_a_commit_of_an_earlier_epoch_does_not_reach_the_source_of_this_one() -> None:
    epochs = [Epoch(2), Epoch(2)]
    stage = RepeatStage(lambda number: epochs[number], 2)
    assert stage.read() is not None
    first = stage.mark()()
    stage.committed(first)
    assert epochs[0].commits == [{"left": 1}]
    stage.read()
    stage.read()
    assert epochs[0].is_closed
    second = stage.mark()()
    stage.committed(first)
    assert (epochs[0].commits, epochs[1].commits) == ([{"left": 1}], [])
    stage.committed(second)
    assert epochs[1].commits == [{"left": 1}]


class Gated:
    """A stage of numbers whose ``read`` waits until the test releases a turn."""

    def __init__(self) -> None:
        self.turns = threading.Semaphore(0)
        self.is_reading = threading.Event()
        self.given = 0

    def read(self) -> int | None:
        self.is_reading.set()
        assert self.turns.acquire(timeout=WAIT_S)
        self.is_reading.clear()
        self.given += 1
        return self.given

    def mark(self) -> Mark:
        given = self.given
        return lambda: {"given": given}

    def restore(self, state: State) -> None: ...

    def committed(self, state: State) -> None: ...

    def close(self) -> None:
        self.turns.release(1000)


@pytest.mark.parametrize("reads", [0, 1])
def test_a_mark_is_materialized_while_the_thread_waits_for_records(reads: int) -> None:
    gated = Gated()
    stage = PrefetchStage(gated, 1)
    mark = stage.mark()
    if reads:
        gated.turns.release()
        assert stage.read() == 1
        mark = stage.mark()
    else:
        threading.Thread(target=stage.read, daemon=True).start()
    assert gated.is_reading.wait(WAIT_S), "the thread reads ahead"
    states: queue.Queue[State] = queue.Queue()
    threading.Thread(target=lambda: states.put(mark()), daemon=True).start()
    assert states.get(timeout=WAIT_S)["given"] == reads
    stage.close()


class SlowPool:
    """An operation with a pool whose ``run`` waits for the test; it fails where its state is read meanwhile."""

    def __init__(self) -> None:
        self.is_running = threading.Event()
        self.may_end = threading.Event()

    def run(self, rows: _native.Rows) -> None:
        self.is_running.set()
        assert self.may_end.wait(WAIT_S)
        self.is_running.clear()

    def mark(self) -> int:
        return 1

    def state_at(self, mark: int) -> bytes:
        return b"changing" if self.is_running.is_set() else b"whole"


def test_the_state_of_a_pool_is_not_read_while_rows_change_it() -> None:
    pool = SlowPool()
    stage = TransformStage(Epoch(3), cast(_native.RowOp, pool))
    mark = stage.mark()
    reader = threading.Thread(target=stage.read, daemon=True)
    reader.start()
    assert pool.is_running.wait(WAIT_S)
    states: queue.Queue[State] = queue.Queue()
    threading.Thread(target=lambda: states.put(mark()), daemon=True).start()
    with pytest.raises(queue.Empty):
        states.get(timeout=0.2)
    pool.may_end.set()
    assert base64.b64decode(states.get(timeout=WAIT_S)["pool"]) == b"whole"
    reader.join(WAIT_S)


def test_a_closed_stage_is_not_repeated() -> None:
    epochs = [Epoch(2), Epoch(2)]
    stage = RepeatStage(lambda number: epochs[number], None)
    assert stage.read() is not None
    stage.close()
    epochs[0].left = 0  # a closed source returns no more rows
    assert stage.read() is None
    assert stage.mark()()["epoch"] == 0


def test_an_endless_repetition_of_an_input_that_can_be_read_once_ends() -> None:
    stage = RepeatStage(lambda number: Epoch(2 if number in (0, 3) else 0), None)
    assert [stage.read() is not None for _ in range(5)] == [True, True, True, True, False]


class ClosedWhileOpened(Epoch):
    """A stage that another thread closes at the end of an epoch, after the look at the flag."""

    def __init__(self, count: int, close: Callable[[], None]) -> None:
        super().__init__(count)
        self.close_all = close

    def close(self) -> None:
        super().close()
        close, self.close_all = self.close_all, lambda: None
        close()


def test_an_epoch_that_opens_while_the_stage_is_closed_is_closed_too() -> None:
    following = Epoch(2)
    epochs: list[Epoch] = [ClosedWhileOpened(1, lambda: stage.close()), following]
    stage = RepeatStage(lambda number: epochs[number], None)
    assert stage.read() is not None
    stage.read()
    assert following.is_closed


def test_an_endless_repetition_without_a_matching_row_can_be_closed(tmp_path: Path) -> None:
    with data.RecordWriter(tmp_path / "rows.pb", framing=data.Framing()) as writer:
        writer.write(Example(line_id={"uid": 1}).SerializeToString())
    is_repeating = threading.Event()

    def drop(_: Example) -> bool:
        is_repeating.set()
        return False

    rows = data.files(tmp_path / "rows.pb", record="example", framing=data.Framing())
    batches = rows.repeat().filter(drop).with_schema(Schema(labels=0)).batch(2).prefetch(2)
    stage = batches._open(_Opening(Schema(labels=0), 0))
    reader = threading.Thread(target=stage.read, daemon=True)
    reader.start()
    assert is_repeating.wait(WAIT_S)
    closer = threading.Thread(target=stage.close, daemon=True)
    closer.start()
    closer.join(WAIT_S)
    reader.join(WAIT_S)
    assert not closer.is_alive()
    assert not reader.is_alive()


PROGRAM = """
import sys
from pathlib import Path
from monolith import data
from monolith.data.schema import Schema

batches = iter(data.event_log(Path(sys.argv[1]), "rows").with_schema(Schema(labels=0)).batch(2).prefetch(2))
next(batches)
sys.exit(3)
"""


def test_a_program_may_end_while_a_thread_reads_ahead(tmp_path: Path) -> None:
    with LogWriter(Topic.create(tmp_path, "rows")) as writer:
        for number in range(3):
            writer.write(Example(line_id={"uid": number}).SerializeToString())
    ended = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (3, "")


def test_interrupt_ends_a_stream_that_waits_for_records(tmp_path: Path) -> None:
    topic = Topic.create(tmp_path, "rows")
    with LogWriter(topic) as writer:
        for number in range(3):
            writer.write(Example(line_id={"uid": number}).SerializeToString(), key=b"k")
    rows = data.from_source(lambda: EventLogSource(topic, "example"), is_stream=True)
    batches = rows.with_schema(Schema(labels=0)).batch(2).prefetch(2)
    sizes: list[int] = []
    is_waiting = threading.Event()

    def read() -> None:
        for batch in batches:
            sizes.append(batch.size)
            is_waiting.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert is_waiting.wait(30)
    batches.interrupt()
    reader.join(30)
    assert not reader.is_alive()
    assert sum(sizes) <= 3
    assert sizes[0] == 2


def test_a_batch_of_a_quiet_stream_waits_only_so_long_and_a_resumed_stream_has_the_next_row(tmp_path: Path) -> None:
    topic = Topic.create(tmp_path, "rows", TopicSettings(partitions=1))

    def write(*times_s: int) -> None:
        with LogWriter(topic) as writer:
            for time_s in times_s:
                writer.write(Example(line_id={"req_time": time_s}).SerializeToString())

    def opened() -> data.Dataset:
        rows = data.from_source(lambda: EventLogSource(topic, "example"), is_stream=True)
        return rows.with_schema(Schema(labels=0)).batch(4, wait_s=0.05).prefetch(1)

    write(1, 2, 3)
    batches = opened()
    reading = iter(batches)
    assert next(reading).event_time_s.tolist() == [1, 2, 3]
    state = batches.state()
    write(4, 5, 6, 7, 8)
    assert next(reading).event_time_s.tolist() == [4, 5, 6, 7]
    assert next(reading).event_time_s.tolist() == [8]
    batches.interrupt()
    assert next(reading, None) is None
    resumed = opened()
    resumed.restore(state)
    assert next(iter(resumed)).event_time_s.tolist() == [4, 5, 6, 7]
    resumed.interrupt()


def test_a_wait_of_batches_that_makes_no_sense_is_refused() -> None:
    rows = data.from_source(lambda: cast(EventLogSource, None))
    for wait_s in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="wait_s is"):
            rows.batch(4, wait_s=wait_s)
    with pytest.raises(ConfigError, match=r"wait_s is 1.0 and drop_last is True"):
        rows.batch(4, drop_last=True, wait_s=1.0)
