"""Runs operations of the native engine under the fault layer while its allocations fail.

    LD_PRELOAD=fault_layer.so python memory_fault_child.py FOLDER OPERATION LEAST_BYTES NUMBER...

Every attempt is a forked child: the allocation of this number fails, of those with at least LEAST_BYTES.
After the MemoryError the child checks that nothing is half done, repeats the operation without the fault, and checks
the result. The last line is a list of JSON: the number of failed allocations, and problems.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from monolith.artifacts.delta_log import DeltaReader, DeltaWriter
from monolith.core.clock import SystemClock
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.embedding import Constant, MultiTable, Sgd, SliceSpec, TableSpec

DIM = 8
OLD = np.arange(1, 10_001)
NEW = np.arange(50_001, 70_001)
TEXT = "out of memory"


def make_tables() -> MultiTable:
    """Return an empty table whose rows begin at 0 and fall by 1 with each push."""
    return MultiTable([TableSpec("t", [SliceSpec(DIM, optimizer=Sgd(1.0), initializer=Constant(0.0))])])


def push(tables: MultiTable, ids: np.ndarray) -> None:
    tables.apply_gradients({"t": ids}, {"t": np.ones((len(ids), DIM), np.float32)})


def values_of(tables: MultiTable, ids: np.ndarray) -> set[float]:
    """Return the values of rows; a row with two values is an error."""
    rows = np.asarray(tables["t"].lookup(ids))
    if (rows != rows[:, :1]).any():
        raise AssertionError("a row is half written")
    return {float(value) for value in np.unique(rows)}


class Operation(ABC):
    """An operation, and the promises after its failure and after its repetition."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables = make_tables()
        push(self.tables, OLD)

    @abstractmethod
    def run(self) -> None: ...

    @abstractmethod
    def check_failed(self) -> None: ...

    @abstractmethod
    def check_done(self) -> None: ...


class Push(Operation):
    def run(self) -> None:
        push(self.tables, NEW)

    def check_failed(self) -> None:
        assert values_of(self.tables, OLD) == {-1.0}
        assert values_of(self.tables, NEW) <= {0.0, -1.0}

    def check_done(self) -> None:
        assert values_of(self.tables, OLD) == {-1.0}
        assert values_of(self.tables, NEW) <= {-1.0, -2.0}


class Save(Operation):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tables.save(folder / "snapshot")
        push(self.tables, OLD)

    def run(self) -> None:
        self.tables.save(self.folder / "snapshot")

    def check_failed(self) -> None:
        self._check({-1.0})

    def check_done(self) -> None:
        self._check({-2.0})

    def _check(self, wanted: set[float]) -> None:
        restored = make_tables()
        restored.restore(self.folder / "snapshot")
        assert values_of(restored, OLD) == wanted
        assert len(restored["t"]) == len(OLD)


class Restore(Operation):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tables.save(folder / "snapshot")
        self.restored = make_tables()

    def run(self) -> None:
        self.restored.restore(self.folder / "snapshot")

    def check_failed(self) -> None:
        assert values_of(self.restored, OLD) <= {0.0, -1.0}

    def check_done(self) -> None:
        assert values_of(self.restored, OLD) == {-1.0}
        assert len(self.restored["t"]) == len(OLD)


class Log(Operation):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.writer = DeltaWriter(folder / "log", (0, 1), self.tables, clock=SystemClock())
        self.writer.write()
        push(self.tables, OLD)

    def run(self) -> None:
        self.writer.write()

    def check_failed(self) -> None:
        self._check({-1.0})

    def check_done(self) -> None:
        self._check({-2.0})

    def _check(self, wanted: set[float]) -> None:
        restored = make_tables()
        DeltaReader(self.folder / "log").replay(restored)
        assert values_of(restored, OLD) == wanted


class Images(Operation):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tables.to_serving().save_images(folder / "images")
        self.loaded: MultiTable | None = None

    def run(self) -> None:
        self.loaded = MultiTable.load_images(self.folder / "images", in_memory=True)

    def check_failed(self) -> None:
        assert self.loaded is None

    def check_done(self) -> None:
        assert self.loaded is not None
        assert values_of(self.loaded, OLD) == {-1.0}


class Append(Operation):
    MESSAGES = tuple(b"%06d" % number + bytes(1000) for number in range(500))

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.topic = Topic.create(folder, "events", TopicSettings(durability="never"))
        self.writer = LogWriter(self.topic)
        self.writer.append(0, [b"first"])

    def run(self) -> None:
        self.writer.append(0, self.MESSAGES)

    def check_failed(self) -> None:
        assert self._read() == [b"first"]

    def check_done(self) -> None:
        assert self._read() == [b"first", *self.MESSAGES]

    def _read(self) -> list[bytes]:
        source = EventLogSource(self.topic, "example", until_end=True)
        records: list[bytes] = []
        while (chunk := source.read()) is not None:
            records += [chunk[index] for index in range(len(chunk))]
        return records


OPERATIONS: dict[str, Callable[[Path], Operation]] = {
    "push": Push,
    "save": Save,
    "restore": Restore,
    "log": Log,
    "images": Images,
    "append": Append,
}


def attempt(make: Callable[[Path], Operation], folder: Path, number: int, least: int) -> int:
    """Run the operation while one allocation fails; return 0 if none did, 1 if the promises hold."""
    layer = ctypes.CDLL(None)
    operation = make(folder)
    assert layer.fault_layer_rules(b"on=alloc,do=ENOMEM,least=%d,skip=%d,times=1" % (least, number)) == 0
    try:
        operation.run()
        failure = None
    except MemoryError as error:
        failure = str(error)
    layer.fault_layer_rules(b"")
    has_fault = layer.fault_layer_count(0) > 0
    if failure is not None:
        assert TEXT in failure
        operation.check_failed()
        operation.run()
    operation.check_done()
    return int(has_fault)


def main(root: Path, name: str, least: int, numbers: Sequence[int]) -> None:
    """Print the number of failed allocations, and the problems."""
    faults, problems = 0, []
    for number in numbers:
        folder = Path(tempfile.mkdtemp(dir=root))
        pid = os.fork()
        if pid == 0:
            status = 99
            try:
                status = attempt(OPERATIONS[name], folder, number, least)
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        faults += status != 0
        if status not in (0, 1):
            problems.append(f"allocation {number}: status {status}")
    print(json.dumps([faults, problems]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), [int(number) for number in sys.argv[4:]])
