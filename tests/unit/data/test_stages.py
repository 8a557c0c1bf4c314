"""Stages by themselves: commits across epochs, and marks beside the prefetching thread."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest

from monolith import _native, data
from monolith.data.records.messages import Example
from monolith.data.schema import Schema, make_parser
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic
from monolith.data.sources.event_log.writer import LogWriter
from monolith.data.stages import Mark, PrefetchStage, RepeatStage, State

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
def test_a_mark_is_not_materialized_while_the_thread_reads(reads: int) -> None:
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
    with pytest.raises(queue.Empty):
        states.get(timeout=0.2)
    gated.turns.release(3)  # enough to fill the queue; the thread then waits outside ``read``
    state = states.get(timeout=WAIT_S)
    assert state["given"] == reads
    stage.close()


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
