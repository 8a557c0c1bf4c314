"""The victim of test_crash.py: trains by a seeded script and saves again and again until it is killed.

Arguments: snapshot path, expected-state file, seed, first operation, failpoint or "-", saves before it is armed.
It says "ready" on standard output before the first operation.
"""

from __future__ import annotations

import mmap
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from monolith import _native
from monolith.core.errors import MonolithError
from monolith.embedding import Table
from monolith.embedding.initializers import RandomUniform
from monolith.embedding.optimizers import Adagrad, Adam
from monolith.embedding.snapshot import MANIFEST
from monolith.embedding.specs import SliceSpec, TableSpec

SPEC = TableSpec(
    "crash",
    [
        SliceSpec(2, optimizer=Adam(), initializer=RandomUniform()),
        SliceSpec(5, optimizer=Adagrad(0.1), initializer=RandomUniform()),
    ],
    expire_days=2,
    deterministic=True,
)
STATE = struct.Struct("<qq")
"""Operation whose save began last, operation whose save ended last; -1 = none."""
OPERATIONS_PER_SAVE = 3


def operate(table: Table, seed: int, number: int) -> None:
    """Operation ``number`` of the script: the same for the child, for its successor and for the judge."""
    rng = np.random.default_rng((seed, number))
    ids = rng.integers(-300, 300, 200)
    time_s = number * 7200
    match number % 5:
        case 0:
            table.assign(ids[:20], rng.normal(size=(20, 7)).astype(np.float32), time_s=time_s)
        case 1:
            table.delete(ids[:30])
        case _:
            table.apply_gradients(ids, rng.normal(size=(200, 7)).astype(np.float32), time_s=time_s, step=number)
    if (number + 1) % OPERATIONS_PER_SAVE == 0:
        table.evict()  # a snapshot leaves expired rows out, so they must not be there to be missed


def main(path: str, state_path: str, seed: int, start: int, failpoint: str, arm_after: int) -> None:
    with Path(state_path).open("r+b") as file, mmap.mmap(file.fileno(), STATE.size) as state:
        table = open_table(path)
        print("ready", flush=True)
        number, saves = start, 0
        while True:
            operate(table, seed, number)
            number += 1
            if number % OPERATIONS_PER_SAVE:
                continue
            if saves == arm_after and failpoint != "-":
                _native.set_failpoint(failpoint)
            ended: Any = STATE.unpack(state[:])[1]
            state[:] = STATE.pack(number, ended)
            table.save(path, shards=3)
            state[:] = STATE.pack(number, number)
            saves += 1


def open_table(path: str) -> Table:
    try:
        return Table.load(path)
    except MonolithError:
        if (Path(path) / MANIFEST).exists():
            raise  # a killed first save leaves a folder without a manifest: no snapshot, and no reason to stop
        return Table(SPEC)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], int(sys.argv[6]))
