"""A trainer is killed at random and at named points; what it leaves behind is always a whole snapshot.

After RocksDB's db_crashtest: the child notes in a file outside which save began and which ended; the judge replays the
same script and requires that the reopened table equals the one or the other, to the last bit. The next child goes on
from there. ``MONOLITH_CRASH_CYCLES`` sets the number of cycles, ``MONOLITH_CRASH_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from monolith.core.errors import MonolithError
from monolith.embedding import Table
from monolith.embedding.snapshot import MANIFEST
from torture_counts import add_counts

CHILD = Path(__file__).parents[1] / "support" / "crash_child.py"
SCRIPT = runpy.run_path(str(CHILD), run_name="crash_child")
SPEC, STATE, operate = SCRIPT["SPEC"], SCRIPT["STATE"], SCRIPT["operate"]

CYCLES = int(os.environ.get("MONOLITH_CRASH_CYCLES", "25"))
SEED = int(os.environ.get("MONOLITH_CRASH_SEED", str(random.SystemRandom().randrange(2**32))))
POINTS = ["snapshot.part_written", "snapshot.before_rename", "snapshot.after_rename"]


class Judge:
    """Replays the script and knows the state after any operation, in order."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._table = Table(SPEC)
        self.number = 0

    def advance_to(self, number: int) -> None:
        while self.number < number:
            operate(self._table, self._seed, self.number)
            self.number += 1

    def agrees_with(self, table: Table) -> bool:
        if len(table) != len(self._table) or table.max_time_s != self._table.max_time_s:
            return False
        return all(
            same_entry(table.entry(fid), self._table.entry(fid)) for ids, _ in table.items() for fid in ids.tolist()
        )


def same_entry(ours: Any, theirs: Any) -> bool:
    return (
        theirs is not None
        and ours.time_s == theirs.time_s
        and np.array_equal(ours.values, theirs.values)
        and all(
            np.array_equal(one[name], other[name])
            for one, other in zip(ours.state, theirs.state, strict=True)
            for name in other
        )
    )


def run_until_killed(arguments: list[str], failpoint: str, chance: random.Random) -> None:
    with subprocess.Popen([sys.executable, str(CHILD), *arguments], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            child.wait(timeout=60 if failpoint != "-" else chance.uniform(0, 0.25))
        except subprocess.TimeoutExpired:
            assert failpoint == "-", f"the failpoint {failpoint} was never reached"
            child.kill()
        assert child.wait() == -signal.SIGKILL


def reopen(path: Path, ended: int) -> Table | None:
    """The table that lies at ``path``; None when no save was ever finished and none is there."""
    try:
        return Table.load(path)
    except MonolithError:
        if ended >= 0 or (path / MANIFEST).exists():
            raise
        return None


def test_a_killed_trainer_always_leaves_a_whole_snapshot(tmp_path: Path) -> None:
    print(f"MONOLITH_CRASH_SEED={SEED}")
    chance = random.Random(SEED)
    path, state_path = tmp_path / "table", tmp_path / "expected"
    judge = Judge(SEED)
    for cycle in range(CYCLES):
        state_path.write_bytes(STATE.pack(-1, judge.number if judge.number else -1))
        failpoint = chance.choice(["-", "-", *POINTS])
        arguments = [str(path), str(state_path), str(SEED), str(judge.number), failpoint, str(chance.randrange(3))]
        run_until_killed(arguments, failpoint, chance)
        begun, ended = STATE.unpack(state_path.read_bytes())
        where = f"seed {SEED}, cycle {cycle}, {failpoint}: save of {begun} began, save of {ended} ended"
        table = reopen(path, ended)
        if table is None:
            continue
        if ended > judge.number:
            judge.advance_to(ended)
        agrees = judge.agrees_with(table)
        if failpoint in POINTS:
            assert agrees == (failpoint != "snapshot.after_rename"), where
        if not agrees:
            assert begun > ended, where
            judge.advance_to(begun)
            assert judge.agrees_with(table), where
    assert judge.number > 0, "no save was ever finished"
    add_counts(cycles=CYCLES, operations=judge.number, faults=CYCLES)


def test_saving_after_a_crash_removes_what_the_crash_left(tmp_path: Path) -> None:
    path, state_path = tmp_path / "table", tmp_path / "expected"
    state_path.write_bytes(STATE.pack(-1, -1))
    for point in POINTS:
        run_until_killed([str(path), str(state_path), "7", "0", point, "1"], point, random.Random(0))
    table = Table.load(path)
    table.save(path, shards=2)
    names = sorted(file.name for file in path.iterdir())
    assert len(names) == 3, names
    assert len(Table.load(path)) == len(table)
