"""A process that trains and writes its delta log is killed at random and at named points; nothing written is lost.

The child, which is this file run as a program, notes in a file outside which segment began and which ended. The judge
replays the same script: snapshot plus log must give the state of the one or the other, to the last bit. The next child
recovers from them as a server would, and goes on. ``MONOLITH_CRASH_CYCLES`` sets the number of cycles,
``MONOLITH_CRASH_SEED`` repeats a run.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

from monolith import _native
from monolith.artifacts.delta_log import DeltaReader, DeltaWriter, Replayed
from monolith.core.clock import SystemClock
from monolith.embedding import Adagrad, Adam, MultiTable, RandomUniform, SliceSpec, TableSpec
from monolith.embedding.snapshot import MANIFEST

CYCLES = int(os.environ.get("MONOLITH_CRASH_CYCLES", "10"))
SEED = int(os.environ.get("MONOLITH_CRASH_SEED", str(random.SystemRandom().randrange(2**32))))
BEFORE_THE_RENAME = ["delta.collected", "delta.file_made", "delta.before_rename"]
POINTS = [*BEFORE_THE_RENAME, "delta.after_rename", "delta.compacting", "snapshot.before_rename"]
SPECS = [
    TableSpec("a", [SliceSpec(3, optimizer=Adam(), initializer=RandomUniform())], expire_days=2, deterministic=True),
    TableSpec(
        "b", [SliceSpec(2, optimizer=Adagrad(0.1), initializer=RandomUniform())], expire_days=1, deterministic=True
    ),
]
STATE = struct.Struct("<qq")
"""Operation whose segment began last, operation whose segment ended last; -1 = none."""
OPERATIONS_PER_SEGMENT = 2
SEGMENTS_PER_SNAPSHOT = 3


def operate(tables: MultiTable, seed: int, number: int) -> None:
    """Operation ``number`` of the script: the same for the child, for its successor and for the judge."""
    rng = np.random.default_rng((seed, number))
    ids = rng.integers(-300, 300, 200)
    time_s = number * 7200
    match number % 5:
        case 0:
            tables["a"].assign(ids[:20], rng.normal(size=(20, 3)).astype(np.float32), time_s=time_s)
        case 1:
            tables["b"].delete(ids[:30])
        case _:
            grads = {name: rng.normal(size=(200, tables[name].dim)).astype(np.float32) for name in tables}
            tables.apply_gradients(dict.fromkeys(tables, ids), grads, time_s=time_s, step=number)
    if (number + 1) % OPERATIONS_PER_SEGMENT == 0:
        tables.evict()  # a snapshot leaves expired rows out, so they must not be there to be missed


def recover(place: Path) -> tuple[MultiTable, Replayed]:
    """What a server does when it starts: the newest whole snapshot, then the segments after it."""
    tables = MultiTable(SPECS)
    whole = [path for path in place.glob("snapshot-*") if (path / MANIFEST).exists()]
    after = max((int(path.name.rpartition("-")[2]) for path in whole), default=0)
    if after:
        tables.restore(place / f"snapshot-{after}")
    return tables, DeltaReader(place / "log").replay(tables, after=after)


def main(place: Path, state_path: Path, seed: int, number: int, failpoint: str, arm_after: int) -> None:
    marks = [b"0"]
    with state_path.open("r+b") as file, mmap.mmap(file.fileno(), STATE.size) as state:
        tables, replayed = recover(place)
        writer = DeltaWriter(
            place / "log", (0, 1), tables, clock=SystemClock(), marks=lambda: marks[0], holds=replayed.sequence
        )
        print("ready", flush=True)
        segments = 0
        while True:
            operate(tables, seed, number)
            number += 1
            if number % OPERATIONS_PER_SEGMENT:
                continue
            if segments == arm_after and failpoint != "-":
                _native.set_failpoint(failpoint)
            marks[0] = str(number).encode()
            state[:] = STATE.pack(number, STATE.unpack(state[:])[1])
            sequence, cut = writer.cut(tables.cut)
            state[:] = STATE.pack(number, number)
            segments += 1
            if segments % SEGMENTS_PER_SNAPSHOT == 0:
                cut.write(place / f"snapshot-{sequence}")
                writer.compact(sequence)
            else:
                cut.drop()


# --- the judge ---


def state_of(tables: MultiTable) -> dict[str, tuple[int, list[bytes]]]:
    def arrays(name: str) -> list[bytes]:
        native = tables[name]._native
        ids = np.sort(np.concatenate([native.part_ids(part) for part in range(native.parts)]))
        return [np.asarray(array).tobytes() for array in native.raw_rows(ids)]

    return {name: (tables[name].max_time_s, arrays(name)) for name in tables}


class Judge:
    """Replays the script and knows the state after any operation, in order."""

    def __init__(self) -> None:
        self.tables = MultiTable(SPECS)
        self.number = 0

    def advance_to(self, number: int) -> None:
        while self.number < number:
            operate(self.tables, SEED, self.number)
            self.number += 1


def run_until_killed(arguments: list[str], failpoint: str, chance: random.Random) -> None:
    with subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            child.wait(timeout=60 if failpoint != "-" else chance.uniform(0, 0.2))
        except subprocess.TimeoutExpired:
            assert failpoint == "-", f"the failpoint {failpoint} was never reached"
            child.kill()
        assert child.wait() == -signal.SIGKILL


def test_a_killed_writer_loses_no_segment_that_was_written(tmp_path: Path) -> None:
    print(f"MONOLITH_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    place, state_path = tmp_path / "server", tmp_path / "expected"
    place.mkdir()
    judge = Judge()
    points = [*POINTS, *(chance.choice(["-", "-", *POINTS]) for _ in range(max(0, CYCLES - len(POINTS))))]
    for cycle, failpoint in enumerate(points[:CYCLES]):
        state_path.write_bytes(STATE.pack(-1, judge.number or -1))
        arguments = [str(place), str(state_path), str(SEED), str(judge.number), failpoint, str(chance.randrange(3))]
        run_until_killed(arguments, failpoint, chance)
        begun, ended = STATE.unpack(state_path.read_bytes())
        where = f"seed {SEED}, cycle {cycle}, {failpoint}: segment of {begun} began, segment of {ended} ended"
        tables, replayed = recover(place)
        assert int(replayed.marks or b"0") in (max(ended, 0), begun), where
        if failpoint in BEFORE_THE_RENAME:
            assert int(replayed.marks or b"0") == max(ended, 0), where
        judge.advance_to(int(replayed.marks or b"0"))
        assert state_of(tables) == state_of(judge.tables), where
    assert judge.number > 0, "no segment was ever written"
    from torture_counts import add_counts  # this file is also a program, without the path of the tests

    add_counts(cycles=CYCLES, operations=judge.number, faults=CYCLES)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
