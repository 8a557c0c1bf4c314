"""The stages that a dataset is made of, each of which reads from the one before it.

A stage gives lots of rows (or, behind ``BatchStage``, batches) and can say where it stands. Resuming is exact and its
state is small, by one rule: **a stage that holds rows back does not save them, it saves where they came from.** Its
state is the state of the stage before it as it was when the oldest row that it still holds was read, and how many rows
since then have gone out. To resume is to go back there, read again and drop those rows. That works because everything
before a stage is a pure function of the input and of the state: random choices hang on a row's number in the stream,
and item pools can tell how they were at any mark.

Nothing here knows files, brokers or the public face of datasets.
"""

from __future__ import annotations

import base64
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data.batch import Batch
from monolith.data.sources.base import Source

__all__ = [
    "BatchStage",
    "Mark",
    "MapStage",
    "MergeStage",
    "ParseStage",
    "PrefetchStage",
    "RepeatStage",
    "RewriteStage",
    "ShuffleStage",
    "Stage",
    "State",
    "TransformStage",
]

State: TypeAlias = Mapping[str, Any]
"""Where a stage stands: plain JSON."""

Mark: TypeAlias = Callable[[], State]
"""A place in a stage, cheap to take and kept as long as it may be asked for; calling it spells the state out."""

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class Stage(Protocol[Item_co]):
    """A resumable stream. Used by one thread at a time, except ``close``."""

    def read(self) -> Item_co | None:
        """Return what comes next, or None at the end."""

    def mark(self) -> Mark:
        """Return the place behind what ``read`` gave last."""

    def restore(self, state: State) -> None:
        """Go to a place, before the first ``read``."""

    def committed(self, state: State) -> None:
        """Take note that everything before this place is safe in a checkpoint."""

    def close(self) -> None:
        """Let go of files, connections and threads. May be called twice, and while another thread reads."""


RowStage: TypeAlias = Stage[_native.Rows]


def part(state: State, key: str) -> Any:
    """Return one part of a state.

    Raises:
        DataError: The state is that of another dataset.
    """
    try:
        return state[key]
    except (KeyError, TypeError, IndexError):
        raise DataError(
            f"the state has no {key!r}: it was saved by a dataset with other steps; restore it into the same ones"
        ) from None


class ParseStage:
    """Records of a source, parsed into rows."""

    def __init__(self, source: Source, parser: _native.RowParser) -> None:
        self._source = source
        self._parser = parser

    def read(self) -> _native.Rows | None:
        """Parse the next lot of records."""
        while (records := self._source.read()) is not None:
            if len(rows := self._parser.parse(records)):
                return rows
        return None

    def mark(self) -> Mark:
        """Return the source's position and the number of the next row."""
        position, row = self._source.position(), self._parser.next_row
        return lambda: {"source": position, "row": row}

    def restore(self, state: State) -> None:
        """Go to a position of the source."""
        self._source.resume(part(state, "source"))
        self._parser.next_row = part(state, "row")

    def committed(self, state: State) -> None:
        """Tell the source."""
        self._source.committed(part(state, "source"))

    def close(self) -> None:
        """Close the source."""
        self._source.close()


class TransformStage:
    """Rows changed by a native operation."""

    def __init__(self, before: RowStage, operation: _native.RowOp) -> None:
        self._before = before
        self._operation = operation

    def read(self) -> _native.Rows | None:
        """Change the next lot; lots of which nothing is left are passed over."""
        while (rows := self._before.read()) is not None:
            self._operation.run(rows)
            if len(rows):
                return rows
        return None

    def mark(self) -> Mark:
        """Mark the operation too: an item pool changes with every row."""
        before, operation = self._before.mark(), self._operation
        token = operation.mark()
        if token is None:
            return lambda: {"before": before()}
        return lambda: {"before": before(), "pool": base64.b64encode(operation.state_at(token)).decode()}

    def restore(self, state: State) -> None:
        """Restore what is before, and the operation's own state."""
        self._before.restore(part(state, "before"))
        if "pool" in state:
            self._operation.restore(base64.b64decode(state["pool"]))

    def committed(self, state: State) -> None:
        """Pass it on."""
        self._before.committed(part(state, "before"))

    def close(self) -> None:
        """Pass it on."""
        self._before.close()


class RewriteStage:
    """Rows rewritten by a Python function on serialized Examples: one record in, any number out. Slow and general."""

    def __init__(
        self,
        before: RowStage,
        rewrite: Callable[[bytes], Sequence[bytes]],
        columns: _native.Columns,
        parser: _native.RowParser,
    ) -> None:
        self._before = before
        self._rewrite = rewrite
        self._columns = columns
        self._parser = parser

    def read(self) -> _native.Rows | None:
        """Rewrite the next lot."""
        while (rows := self._before.read()) is not None:
            examples = _native.encode_examples(rows, self._columns)
            rewritten = [after for example in examples for after in self._rewrite(example)]
            if rewritten:
                return self._parser.parse(_native.Records(rewritten, "map"))
        return None

    def mark(self) -> Mark:
        """Return the place before, and the number of the next row."""
        before, row = self._before.mark(), self._parser.next_row
        return lambda: {"before": before(), "row": row}

    def restore(self, state: State) -> None:
        """Go back there."""
        self._before.restore(part(state, "before"))
        self._parser.next_row = part(state, "row")

    def committed(self, state: State) -> None:
        """Pass it on."""
        self._before.committed(part(state, "before"))

    def close(self) -> None:
        """Pass it on."""
        self._before.close()


class RowBuffer:
    """Takes rows out of a stage in any number, and knows the place behind the last one taken."""

    def __init__(self, before: RowStage) -> None:
        self._before = before
        # Lots not used up, each with the mark before it, and how many rows of the first are gone.
        self._lots: deque[tuple[Mark, _native.Rows]] = deque()
        self._gone = 0
        self._held = 0

    def take(self, count: int) -> _native.Rows:
        """Return the next ``count`` rows; fewer at the end."""
        while self._held < count and self._grow():
            pass
        taken = _native.Rows()
        while count and self._lots:
            _, rows = self._lots[0]
            size = min(count, len(rows) - self._gone)
            taken.append(rows.slice(self._gone, self._gone + size))
            count -= size
            self._held -= size
            self._gone += size
            if self._gone == len(rows):
                self._lots.popleft()
                self._gone = 0
        return taken

    def mark(self) -> Mark:
        """Return the place behind the last row taken."""
        before, skip = (self._lots[0][0], self._gone) if self._lots else (self._before.mark(), 0)
        return lambda: {"before": before(), "skip": skip}

    def restore(self, state: State) -> None:
        """Go back to where the held rows came from, and read up to the place again.

        Raises:
            DataError: The input ends earlier than it did.
        """
        self._before.restore(part(state, "before"))
        skip = part(state, "skip")
        if len(self.take(skip)) < skip:
            raise DataError(f"the input is shorter than when the state was saved: {skip} rows are not there any more")

    def _grow(self) -> bool:
        mark = self._before.mark()
        rows = self._before.read()
        if rows is None:
            return False
        self._lots.append((mark, rows))
        self._held += len(rows)
        return True


class ShuffleStage:
    """Rows in random order within windows: each window of ``size`` rows is read, shuffled and given out.

    Windows and not a sliding buffer, because then the state is a place and a number, and never the rows themselves.
    """

    def __init__(self, before: RowStage, size: int, seed: int) -> None:
        self._before = before
        self._buffer = RowBuffer(before)
        self._size = size
        self._seed = seed
        self._window = 0
        self._lots: deque[_native.Rows] = deque()
        self._start = self._buffer.mark()
        self._given = 0

    _LOT_ROWS = 1024

    def read(self) -> _native.Rows | None:
        """Return rows of the window, in lots."""
        if not self._lots and not self._fill():
            return None
        lot = self._lots.popleft()
        self._given += len(lot)
        return lot

    def _fill(self) -> bool:
        self._start = self._buffer.mark()
        self._given = 0
        rows = self._buffer.take(self._size)
        if not len(rows):
            return False
        # The window's number makes the orders differ; it is saved, so a resumed run shuffles alike.
        rows.shuffle(_native.mix(self._seed, self._window))
        self._window += 1
        for begin in range(0, len(rows), self._LOT_ROWS):
            self._lots.append(rows.slice(begin, min(begin + self._LOT_ROWS, len(rows))))
        return True

    def mark(self) -> Mark:
        """Return where the window began, and how much of it went out."""
        if self._lots:
            start, given, window = self._start, self._given, self._window - 1
        else:
            start, given, window = self._buffer.mark(), 0, self._window
        return lambda: {"window": start(), "given": given, "number": window}

    def restore(self, state: State) -> None:
        """Read the window again and drop what went out of it."""
        self._buffer.restore(part(state, "window"))
        self._window = part(state, "number")
        given = part(state, "given")
        while self._given < given and self.read() is not None:
            pass
        if self._given != given:
            raise DataError(
                "the window of shuffled rows is not the one that the state was saved in; was the input cut?"
            )

    def committed(self, state: State) -> None:
        """Pass it on."""
        self._before.committed(part(part(state, "window"), "before"))

    def close(self) -> None:
        """Pass it on."""
        self._before.close()


class RepeatStage:
    """The rows of a stage again and again."""

    def __init__(self, open_epoch: Callable[[int], RowStage], epochs: int | None) -> None:
        self._open_epoch = open_epoch
        self._epochs = epochs
        self._epoch = 0
        self._before = open_epoch(0)
        self._has_rows = False

    def read(self) -> _native.Rows | None:
        """Return the next rows, of the next epoch when one is at its end."""
        while True:
            if (rows := self._before.read()) is not None:
                self._has_rows = True
                return rows
            if self._epochs is None and not self._has_rows:
                return None  # nothing, again and again
            if self._epochs is not None and self._epoch + 1 >= self._epochs:
                return None
            self._before.close()
            self._epoch += 1
            self._before = self._open_epoch(self._epoch)

    def mark(self) -> Mark:
        """Return the epoch and the place in it."""
        before, epoch, has_rows = self._before.mark(), self._epoch, self._has_rows
        return lambda: {"before": before(), "epoch": epoch, "has_rows": has_rows}

    def restore(self, state: State) -> None:
        """Go to a place in an epoch."""
        epoch = part(state, "epoch")
        if epoch != self._epoch:
            self._before.close()
            self._before = self._open_epoch(epoch)
            self._epoch = epoch
        self._has_rows = part(state, "has_rows")
        self._before.restore(part(state, "before"))

    def committed(self, state: State) -> None:
        """Pass it on, if that epoch is still being read."""
        if part(state, "epoch") == self._epoch:
            self._before.committed(part(state, "before"))

    def close(self) -> None:
        """Pass it on."""
        self._before.close()


class MergeStage:
    """Rows of several stages in turn, ``block`` rows each; one that has ended is passed over."""

    def __init__(self, before: Sequence[RowStage], block: int) -> None:
        self._before = before
        self._buffers = [RowBuffer(stage) for stage in before]
        self._block = block
        self._turn = 0
        self._ended = [False] * len(before)

    def read(self) -> _native.Rows | None:
        """Return the next rows of whoever's turn it is."""
        while not all(self._ended):
            turn = self._turn
            self._turn = (turn + 1) % len(self._buffers)
            if self._ended[turn]:
                continue
            if len(rows := self._buffers[turn].take(self._block)):
                return rows
            self._ended[turn] = True
        return None

    def mark(self) -> Mark:
        """Return every stage's place, and whose turn it is."""
        marks, turn, ended = [each.mark() for each in self._buffers], self._turn, list(self._ended)
        return lambda: {"parts": [each() for each in marks], "turn": turn, "ended": ended}

    def restore(self, state: State) -> None:
        """Go to a place in each."""
        parts = part(state, "parts")
        if len(parts) != len(self._buffers):
            raise DataError(f"the state is of {len(parts)} merged datasets, these are {len(self._buffers)}")
        for buffer, each in zip(self._buffers, parts, strict=True):
            buffer.restore(each)
        self._turn = part(state, "turn")
        self._ended = list(part(state, "ended"))

    def committed(self, state: State) -> None:
        """Pass it on to each."""
        for stage, each in zip(self._before, part(state, "parts"), strict=True):
            stage.committed(part(each, "before"))

    def close(self) -> None:
        """Pass it on to each."""
        for stage in self._before:
            stage.close()


class BatchStage:
    """Batches of ``size`` rows."""

    def __init__(
        self,
        before: RowStage,
        size: int,
        make: Callable[[_native.Rows], Batch],
        *,
        drop_last: bool,
        operations: Sequence[_native.RowOp] = (),
    ) -> None:
        self._before = before
        self._buffer = RowBuffer(before)
        self._size = size
        self._make = make
        self._drop_last = drop_last
        self._operations = operations

    def read(self) -> Batch | None:
        """Assemble the next batch."""
        rows = self._buffer.take(self._size)
        if not len(rows) or (self._drop_last and len(rows) < self._size):
            return None
        for operation in self._operations:
            operation.run(rows)
        return self._make(rows)

    def mark(self) -> Mark:
        """Return the place behind the batch."""
        return self._buffer.mark()

    def restore(self, state: State) -> None:
        """Go back there."""
        self._buffer.restore(state)

    def committed(self, state: State) -> None:
        """Pass it on."""
        self._before.committed(part(state, "before"))

    def close(self) -> None:
        """Pass it on."""
        self._before.close()


class MapStage(Generic[Item]):
    """Items changed by a Python function; those that become None are left out."""

    def __init__(self, before: Stage[Item], change: Callable[[Item], Item | None]) -> None:
        self._before = before
        self._change = change

    def read(self) -> Item | None:
        """Change the next item."""
        while (item := self._before.read()) is not None:
            if (changed := self._change(item)) is not None:
                return changed
        return None

    def mark(self) -> Mark:
        """Return the place before: nothing is held here."""
        return self._before.mark()

    def restore(self, state: State) -> None:
        """Pass it on."""
        self._before.restore(state)

    def committed(self, state: State) -> None:
        """Pass it on."""
        self._before.committed(state)

    def close(self) -> None:
        """Pass it on."""
        self._before.close()


class PrefetchStage(Generic[Item]):
    """Items made ahead of time by a thread, which starts with the first ``read``."""

    def __init__(self, before: Stage[Item], depth: int) -> None:
        self._before = before
        self._queue: queue.Queue[tuple[Item | None, Mark, BaseException | None]] = queue.Queue(depth)
        self._thread: threading.Thread | None = None
        self._mark: Mark | None = None
        self._ended = False
        self._stop = threading.Event()
        # Held while the thread is inside the stages before, and while one of their marks is spelled out.
        self._busy = threading.Lock()

    def read(self) -> Item | None:
        """Return the next item, and wait for it if need be."""
        if self._ended:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="monolith-prefetch", daemon=True)
            self._thread.start()
        item, self._mark, error = self._queue.get()
        if error is not None or item is None:
            self._ended = True
        if error is not None:
            raise error
        return item

    def _run(self) -> None:
        while not self._stop.is_set():
            item, error = None, None
            with self._busy:
                try:
                    item = self._before.read()
                except BaseException as raised:  # handed to whoever reads, and raised there
                    error = raised
                mark = self._guarded(self._before.mark())
            if not self._put((item, mark, error)) or item is None:
                return

    def _guarded(self, mark: Mark) -> Mark:
        def spelled() -> State:
            with self._busy:
                return mark()

        return spelled

    def _put(self, entry: tuple[Item | None, Mark, BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def mark(self) -> Mark:
        """Return the place behind the item that was read last, not behind those that wait."""
        return self._mark if self._mark is not None else self._guarded(self._before.mark())

    def restore(self, state: State) -> None:
        """Pass it on; the thread has not started yet."""
        if self._thread is not None:
            raise ConfigError("restore() comes before the first batch is read")
        self._before.restore(state)

    def committed(self, state: State) -> None:
        """Pass it on. Sources allow it beside a ``read`` of another thread."""
        self._before.committed(state)

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._before.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
