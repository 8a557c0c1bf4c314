"""The stages of a dataset: each reads from the stage before it and returns chunks of rows, or batches.

Every stage has a position, and resuming from it is exact. The state stays small by one rule: **a stage that buffers
rows does not save them, it saves where they came from.** Its state is the state of the stage before it, as it was when
the oldest buffered row was read, and the number of rows returned since then. To resume, a stage restores that state,
reads again and drops those rows. This works because the rows before a stage depend on the input and the state only:
random choices depend on a row's number in the stream, and item pools can restore their content at any mark.

Threading: one thread reads a stage; ``close`` may come from another. ``PrefetchStage`` reads in its own thread.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from typing_extensions import override

from monolith import _native
from monolith.core.errors import ConfigError, DataError
from monolith.data.batch import Batch
from monolith.data.sources.base import Position, Source

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
"""The position of a stage as plain JSON."""

Mark: TypeAlias = Callable[[], State]
"""A position in a stage, cheap to take. A call materializes the state, at any later time."""

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class Stage(Protocol[Item_co]):
    """A resumable stream. Used by one thread at a time, except ``close``."""

    def read(self) -> Item_co | None:
        """Return the next item, or None at the end."""

    def mark(self) -> Mark:
        """Return the position behind the item that ``read`` returned last."""

    def restore(self, state: State) -> None:
        """Go to a position, before the first ``read``."""

    def committed(self, state: State) -> None:
        """Pass on to the source that a checkpoint contains everything before this position."""

    def close(self) -> None:
        """Release files, connections and threads. May be called twice, and while another thread reads."""


RowStage: TypeAlias = Stage[_native.Rows]


def part(state: State, key: str) -> Any:
    """Return one part of a state.

    Raises:
        DataError: The state belongs to another dataset.
    """
    try:
        return state[key]
    except (KeyError, TypeError, IndexError):
        raise DataError(
            f"the state has no {key!r}, expected the state of a dataset with the same steps; restore it into that one"
        ) from None


class _SourcePosition:
    """Node of a linked list of source positions. A reference keeps later nodes alive, not earlier ones."""

    __slots__ = ("next", "position")

    def __init__(self, position: Position) -> None:
        self.position = position
        self.next: _SourcePosition | None = None

    def following(self) -> Iterator[Position]:
        """Yield the positions that followed."""
        node = self.next
        while node is not None:
            yield node.position
            node = node.next


class ParseStage(RowStage):
    """Records of a source, parsed into rows."""

    def __init__(self, source: Source, parser: _native.RowParser) -> None:
        self._source = source
        self._parser = parser
        self._position = _SourcePosition(source.position())

    @override
    def read(self) -> _native.Rows | None:
        while (records := self._source.read()) is not None:
            self._position.next = _SourcePosition(self._source.position())
            self._position = self._position.next
            if len(rows := self._parser.parse(records)):
                return rows
        return None

    @override
    def mark(self) -> Mark:
        node, row = self._position, self._parser.next_row
        if self._source.is_ordered:
            return lambda: {"source": node.position, "row": row}
        return lambda: {"source": node.position, "row": row, "then": list(node.following())}

    @override
    def restore(self, state: State) -> None:
        self._source.resume(part(state, "source"), state.get("then", ()))
        self._position = _SourcePosition(self._source.position())
        self._parser.next_row = part(state, "row")

    @override
    def committed(self, state: State) -> None:
        self._source.committed(part(state, "source"))

    @override
    def close(self) -> None:
        self._source.close()


class TransformStage(RowStage):
    """Rows changed by a native operation; a chunk without rows left is skipped."""

    def __init__(self, before: RowStage, operation: _native.RowOp) -> None:
        self._before = before
        self._operation = operation
        # A thread may materialize a mark while another one reads. It waits for one run, never for records.
        self._busy = threading.Lock()

    @override
    def read(self) -> _native.Rows | None:
        while (rows := self._before.read()) is not None:
            with self._busy:
                self._operation.run(rows)
            if len(rows):
                return rows
        return None

    @override
    def mark(self) -> Mark:
        before, operation, busy = self._before.mark(), self._operation, self._busy
        with busy:
            token = operation.mark()
        if token is None:
            return lambda: {"before": before()}

        def materialize() -> State:
            with busy:
                pool = operation.state_at(token)
            return {"before": before(), "pool": base64.b64encode(pool).decode()}

        return materialize

    @override
    def restore(self, state: State) -> None:
        self._before.restore(part(state, "before"))
        if "pool" in state:
            self._operation.restore(base64.b64decode(state["pool"]))

    @override
    def committed(self, state: State) -> None:
        self._before.committed(part(state, "before"))

    @override
    def close(self) -> None:
        self._before.close()


class RewriteStage(RowStage):
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

    @override
    def read(self) -> _native.Rows | None:
        while (rows := self._before.read()) is not None:
            examples = _native.encode_examples(rows, self._columns)
            rewritten = [after for example in examples for after in self._rewrite(example)]
            if rewritten:
                return self._parser.parse(_native.Records(rewritten, "map"))
        return None

    @override
    def mark(self) -> Mark:
        before, row = self._before.mark(), self._parser.next_row
        return lambda: {"before": before(), "row": row}

    @override
    def restore(self, state: State) -> None:
        self._before.restore(part(state, "before"))
        self._parser.next_row = part(state, "row")

    @override
    def committed(self, state: State) -> None:
        self._before.committed(part(state, "before"))

    @override
    def close(self) -> None:
        self._before.close()


class RowBuffer:
    """Takes any number of rows out of a stage, and knows the position behind the last row taken."""

    def __init__(self, before: RowStage) -> None:
        self._before = before
        # Chunks with rows left, each with the mark before it; ``_gone`` counts the rows taken from the first chunk.
        self._chunks: deque[tuple[Mark, _native.Rows]] = deque()
        self._gone = 0
        self._held = 0

    def take(self, count: int, wait_s: float | None = None) -> _native.Rows:
        """Return the next ``count`` rows; fewer at the end, and ``wait_s`` after the first of them.

        A limited wait needs a ``PrefetchStage`` before, whose thread waits on.
        """
        end_s: float | None = None
        while self._held < count:
            if wait_s is not None and self._held and end_s is None:
                end_s = time.monotonic() + wait_s
            if not self._grow(end_s):
                break
        taken = _native.Rows()
        while count and self._chunks:
            some = self.take_some(count)
            taken.append(some)
            count -= len(some)
        return taken

    def take_some(self, most: int) -> _native.Rows:
        """Return the next rows of one chunk, at most ``most``; none at the end."""
        if not self._chunks and not self._grow():
            return _native.Rows()
        _, rows = self._chunks[0]
        begin, end = self._gone, min(self._gone + most, len(rows))
        self._held -= end - begin
        self._gone = end
        if end == len(rows):
            self._chunks.popleft()
            self._gone = 0
        return rows if end - begin == len(rows) else rows.slice(begin, end)

    def mark(self) -> Mark:
        """Return the position behind the last row taken."""
        before, skip = (self._chunks[0][0], self._gone) if self._chunks else (self._before.mark(), 0)
        return lambda: {"before": before(), "skip": skip}

    def restore(self, state: State) -> None:
        """Restore the stage before, and read up to the position again.

        Raises:
            DataError: The input ends before the position.
        """
        self._before.restore(part(state, "before"))
        skip = part(state, "skip")
        if len(self.take(skip)) < skip:
            raise DataError(f"the input is shorter than when the state was saved, expected {skip} more rows")

    def _grow(self, end_s: float | None = None) -> bool:
        mark = self._before.mark()
        if end_s is None:
            rows = self._before.read()
        else:
            assert isinstance(self._before, PrefetchStage)
            rows = self._before.read_until(end_s)
        if rows is None:
            return False
        self._chunks.append((mark, rows))
        self._held += len(rows)
        return True


class ShuffleStage(RowStage):
    """Rows in random order within windows: the stage reads a window of ``size`` rows, shuffles and returns it.

    With windows instead of a sliding buffer, the state is a position and numbers, without rows. One of them counts the
    rows in the window: the end of the input cuts the last window, and rows may follow it when it is read again.
    """

    def __init__(self, before: RowStage, size: int, seed: int) -> None:
        self._before = before
        self._buffer = RowBuffer(before)
        self._size = size
        self._seed = seed
        self._window = 0
        self._rows: _native.ShuffleWindow | None = None
        self._start = self._buffer.mark()
        self._filled = _Filled()  # the window of ``_rows``
        self._following = _Filled()
        self._given = 0

    _MOST_PACKED = 16_384
    """Rows of a window that is packed while it is read; larger ones have more pieces than rows of a chunk fill."""

    @override
    def read(self) -> _native.Rows | None:
        if (self._rows is None or not self._rows.left) and not self._fill(self._size):
            return None
        assert self._rows is not None
        rows = self._rows.read()
        self._given += len(rows)
        return rows

    def _fill(self, count: int) -> bool:
        """Read a window of ``count`` rows, fewer at the end; return False for none."""
        self._start = self._buffer.mark()
        self._given = 0
        # The window's number is part of the seed and of the state, so a resumed run shuffles alike.
        seed = _native.mix(self._seed, self._window)
        if self._size <= self._MOST_PACKED:
            window = _native.ShuffleWindow(self._size, seed)
            left = count
            while left and len(some := self._buffer.take_some(left)):
                window.add(some)
                left -= len(some)
        else:
            rows = self._buffer.take(count)
            window = _native.ShuffleWindow(len(rows), seed)
            window.add(rows)
        if not window.left:
            return False
        # Also for the marks between the two windows: their states are saved later.
        self._filled, self._following = self._following, _Filled()
        self._filled.rows = window.left
        self._rows = window
        self._window += 1
        return True

    @override
    def mark(self) -> Mark:
        if self._rows is not None and self._rows.left:
            start, filled, given, window = self._start, self._filled, self._given, self._window - 1
        else:
            start, filled, given, window = self._buffer.mark(), self._following, 0, self._window

        def materialize() -> State:
            state: dict[str, Any] = {"window": start(), "given": given, "number": window}
            return state if filled.rows is None else {**state, "rows": filled.rows}

        return materialize

    @override
    def restore(self, state: State) -> None:
        self._buffer.restore(part(state, "window"))
        self._window = part(state, "number")
        given, rows = part(state, "given"), state.get("rows")
        if rows is not None:
            self._fill(rows)
        while self._given < given and self.read() is not None:
            pass
        if self._given != given or (rows is not None and self._filled.rows != rows):
            raise DataError(
                "the window of shuffled rows is shorter than when the state was saved; restore the same input"
            )

    @override
    def committed(self, state: State) -> None:
        self._before.committed(part(part(state, "window"), "before"))

    @override
    def close(self) -> None:
        self._before.close()


class _Filled:
    """The number of rows in a shuffled window, once it is filled."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: int | None = None


_MOST_EMPTY_EPOCHS = 100
"""Epochs in a row without a row, after which an endless repetition ends: its input can be read once."""


class RepeatStage(RowStage):
    """The rows of a stage, repeated for a number of epochs or endlessly."""

    def __init__(self, open_epoch: Callable[[int], RowStage], epochs: int | None) -> None:
        self._open_epoch = open_epoch
        self._epochs = epochs
        self._epoch = 0
        self._before = open_epoch(0)
        self._has_rows = False
        self._empty_epochs = 0
        self._closed = threading.Event()

    @override
    def read(self) -> _native.Rows | None:
        while True:
            if (rows := self._before.read()) is not None:
                self._has_rows = True
                self._empty_epochs = -1  # this one has rows
                return rows
            if self._closed.is_set():
                return None  # not the end of the epoch: a later run resumes in it
            self._empty_epochs += 1
            if self._epochs is None and (not self._has_rows or self._empty_epochs > _MOST_EMPTY_EPOCHS):
                return None  # an endless repetition of no rows
            if self._epochs is not None and self._epoch + 1 >= self._epochs:
                return None
            self._before.close()
            self._epoch += 1
            self._before = self._open_epoch(self._epoch)
            if self._closed.is_set():
                self._before.close()  # ``close`` may have closed the stage of the epoch before

    @override
    def mark(self) -> Mark:
        before, epoch, has_rows = self._before.mark(), self._epoch, self._has_rows
        return lambda: {"before": before(), "epoch": epoch, "has_rows": has_rows}

    @override
    def restore(self, state: State) -> None:
        epoch = part(state, "epoch")
        if epoch != self._epoch:
            self._before.close()
            self._before = self._open_epoch(epoch)
            self._epoch = epoch
        self._has_rows = part(state, "has_rows")
        self._before.restore(part(state, "before"))

    @override
    def committed(self, state: State) -> None:
        if part(state, "epoch") == self._epoch:  # the source of an earlier epoch is closed
            self._before.committed(part(state, "before"))

    @override
    def close(self) -> None:
        self._closed.set()  # first: ``read`` looks at it after it has opened an epoch
        self._before.close()


class MergeStage(RowStage):
    """Rows of several stages in turn, ``block`` rows each; a stage that has ended is skipped."""

    def __init__(self, before: Sequence[RowStage], block: int) -> None:
        self._before = before
        self._buffers = [RowBuffer(stage) for stage in before]
        self._block = block
        self._turn = 0
        self._ended = [False] * len(before)
        self._is_closed = False

    @override
    def read(self) -> _native.Rows | None:
        while not all(self._ended):
            turn = self._turn
            self._turn = (turn + 1) % len(self._buffers)
            if self._ended[turn]:
                continue
            if len(rows := self._buffers[turn].take(self._block)):
                return rows
            if self._is_closed:
                self._turn = turn  # not the end of the stage: a later run resumes there
                return None
            self._ended[turn] = True
        return None

    @override
    def mark(self) -> Mark:
        marks, turn, ended = [each.mark() for each in self._buffers], self._turn, list(self._ended)
        return lambda: {"parts": [each() for each in marks], "turn": turn, "ended": ended}

    @override
    def restore(self, state: State) -> None:
        parts = part(state, "parts")
        if len(parts) != len(self._buffers):
            raise DataError(
                f"the state has {len(parts)} merged datasets, expected {len(self._buffers)}; restore it into the same"
            )
        for buffer, each in zip(self._buffers, parts, strict=True):
            buffer.restore(each)
        self._turn = part(state, "turn")
        self._ended = list(part(state, "ended"))

    @override
    def committed(self, state: State) -> None:
        for stage, each in zip(self._before, part(state, "parts"), strict=True):
            stage.committed(part(each, "before"))

    @override
    def close(self) -> None:
        self._is_closed = True
        for stage in self._before:
            stage.close()


class ChainStage(RowStage):
    """Rows of several stages, one stage after the end of another."""

    def __init__(self, before: Sequence[RowStage]) -> None:
        self._before = before
        self._turn = 0
        self._seam = _Seam()
        self._is_closed = False

    @override
    def read(self) -> _native.Rows | None:
        while (rows := self._before[self._turn].read()) is None:
            # A stage that was closed has not ended: a later run resumes in it.
            if self._is_closed or self._turn + 1 == len(self._before):
                return None
            self._before[self._turn].close()
            self._turn += 1
            # The end of a stage and the beginning of the next are one position. A position that is saved later must
            # name the next stage, which knows the order in which its records came.
            self._seam.next_turn, self._seam.next_mark = self._turn, self._before[self._turn].mark()
            self._seam = _Seam()
        self._seam = _Seam()
        return rows

    @override
    def mark(self) -> Mark:
        turn, mark, seam = self._turn, self._before[self._turn].mark(), self._seam

        def materialize() -> State:
            if seam.next_mark is not None:
                return {"turn": seam.next_turn, "before": seam.next_mark()}
            return {"turn": turn, "before": mark()}

        return materialize

    @override
    def restore(self, state: State) -> None:
        turn = part(state, "turn")
        if not isinstance(turn, int) or not 0 <= turn < len(self._before):
            raise DataError(
                f"the state is of stage {turn!r} of a chain, expected 0 to {len(self._before) - 1}; restore it into "
                "the same datasets"
            )
        for stage in self._before[:turn]:
            stage.close()
        self._turn = turn
        self._before[turn].restore(part(state, "before"))

    @override
    def committed(self, state: State) -> None:
        self._before[part(state, "turn")].committed(part(state, "before"))

    @override
    def close(self) -> None:
        self._is_closed = True
        for stage in self._before:
            stage.close()


class _Seam:
    """The end of a stage of a chain: the position that follows it, once the next stage has begun."""

    __slots__ = ("next_mark", "next_turn")

    def __init__(self) -> None:
        self.next_turn = 0
        self.next_mark: Mark | None = None


_CHUNKS_AHEAD = 2
"""Chunks of rows that a thread reads ahead of batches with a limited wait."""


class BatchStage(Stage[Batch]):
    """Batches of ``size`` rows; with ``wait_s``, fewer where further rows do not arrive in time after the first one."""

    def __init__(
        self,
        before: RowStage,
        size: int,
        make: Callable[[_native.Rows], Batch],
        *,
        drop_last: bool,
        wait_s: float | None = None,
        operations: Sequence[_native.RowOp] = (),
    ) -> None:
        self._before = before if wait_s is None else PrefetchStage(before, _CHUNKS_AHEAD)
        self._buffer = RowBuffer(self._before)
        self._size = size
        self._wait_s = wait_s
        self._make = make
        self._drop_last = drop_last
        self._operations = operations
        self._end: Mark | None = None  # before the rows that were dropped: more rows may follow them later

    @override
    def read(self) -> Batch | None:
        before = self._buffer.mark() if self._drop_last else None
        rows = self._buffer.take(self._size, self._wait_s)
        if not len(rows) or (self._drop_last and len(rows) < self._size):
            self._end = before if len(rows) else None
            return None
        for operation in self._operations:
            operation.run(rows)
        return self._make(rows)

    @override
    def mark(self) -> Mark:
        return self._buffer.mark() if self._end is None else self._end

    @override
    def restore(self, state: State) -> None:
        self._buffer.restore(state)

    @override
    def committed(self, state: State) -> None:
        self._before.committed(part(state, "before"))

    @override
    def close(self) -> None:
        self._before.close()


class MapStage(Stage[Item], Generic[Item]):
    """Items changed by a Python function; items that become None are dropped."""

    def __init__(self, before: Stage[Item], change: Callable[[Item], Item | None]) -> None:
        self._before = before
        self._change = change

    @override
    def read(self) -> Item | None:
        while (item := self._before.read()) is not None:
            if (changed := self._change(item)) is not None:
                return changed
        return None

    @override
    def mark(self) -> Mark:
        return self._before.mark()

    @override
    def restore(self, state: State) -> None:
        self._before.restore(state)

    @override
    def committed(self, state: State) -> None:
        self._before.committed(state)

    @override
    def close(self) -> None:
        self._before.close()


class MergeBatchesStage(Stage[Batch]):
    """Joins ``count`` consecutive batches; a state is the position behind the last of them."""

    def __init__(self, before: Stage[Batch], count: int, *, drop_last: bool) -> None:
        self._before = before
        self._count = count
        self._drop_last = drop_last
        self._end: Mark | None = None  # before the batches that were dropped: more may follow them later

    @override
    def read(self) -> Batch | None:
        before = self._before.mark() if self._drop_last else None
        batches: list[Batch] = []
        while len(batches) < self._count and (batch := self._before.read()) is not None:
            batches.append(batch)
        if not batches or (self._drop_last and len(batches) < self._count):
            self._end = before if batches else None
            return None
        return Batch.concat(batches)

    @override
    def mark(self) -> Mark:
        return self._before.mark() if self._end is None else self._end

    @override
    def restore(self, state: State) -> None:
        self._before.restore(state)

    @override
    def committed(self, state: State) -> None:
        self._before.committed(state)

    @override
    def close(self) -> None:
        self._before.close()


class PrefetchStage(Stage[Item], Generic[Item]):
    """Items that a thread reads ahead; the thread starts with the first ``read``.

    The end of the program closes the stages whose thread runs. Otherwise a thread that returns from native code while
    the interpreter ends would abort the process.
    """

    def __init__(self, before: Stage[Item], depth: int) -> None:
        self._before = before
        self._queue: queue.Queue[tuple[Item | None, Mark, BaseException | None]] = queue.Queue(depth)
        self._thread: threading.Thread | None = None
        self._mark: Mark | None = None
        self._ended = False
        self._stop = threading.Event()

    @override
    def read(self) -> Item | None:
        return self.read_until(None)

    def read_until(self, end_s: float | None) -> Item | None:
        """Return the next item, or None at the end or at ``end_s`` of the monotonic clock; None waits on."""
        if self._ended:
            return None
        if self._thread is None:
            self._mark = self._before.mark()
            self._thread = threading.Thread(target=self._run, args=(self._mark,), name="monolith-prefetch", daemon=True)
            self._thread.start()
            _running.add(self)
        entry = self._get(self._thread, end_s)
        if entry is None:
            return None
        item, self._mark, error = entry
        if error is not None or item is None:
            self._ended = True
        if error is not None:
            raise error
        return item

    def _get(
        self, thread: threading.Thread, end_s: float | None
    ) -> tuple[Item | None, Mark, BaseException | None] | None:
        """Return the next entry; None if ``close`` ended the thread, or at ``end_s``."""
        while True:
            left_s = 0.1 if end_s is None else min(0.1, end_s - time.monotonic())
            try:
                return self._queue.get(timeout=left_s) if left_s > 0 else self._queue.get_nowait()
            except queue.Empty:
                if not thread.is_alive() and self._queue.empty():
                    self._ended = True
                    return None
                if left_s <= 0:
                    return None

    def _run(self, mark: Mark) -> None:
        while not self._stop.is_set():
            item, error = None, None
            try:
                item = self._before.read()
                mark = self._before.mark()
            except BaseException as raised:  # ``read`` raises it in the caller's thread
                item, error = None, raised
            if not self._put((item, mark, error)) or item is None:
                return

    def _put(self, entry: tuple[Item | None, Mark, BaseException | None]) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(entry, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    @override
    def mark(self) -> Mark:
        return self._mark if self._mark is not None else self._before.mark()

    @override
    def restore(self, state: State) -> None:
        if self._thread is not None:
            raise ConfigError("restore() is called after read(), expected before; restore a new iterator")
        self._before.restore(state)

    @override
    def committed(self, state: State) -> None:
        self._before.committed(state)

    @override
    def close(self) -> None:
        self.end(None)

    def end(self, timeout_s: float | None) -> None:
        """Close the stage, and wait at most ``timeout_s`` for its thread; None = until it ends."""
        self._stop.set()
        self._before.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def is_running(self) -> bool:
        """True if the thread runs in this process."""
        return self._thread is not None and self._thread.is_alive()


_EXIT_S = 10.0
"""How long the end of the program waits for a thread that reads ahead."""

_running: weakref.WeakSet[PrefetchStage[Any]] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    for stage in list(_running):
        if stage.is_running:
            with contextlib.suppress(Exception):  # the program is over
                stage.end(_EXIT_S)
