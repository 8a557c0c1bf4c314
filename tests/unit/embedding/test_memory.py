"""A table reports the memory that the process pays. Measured in processes that do nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    "MONOLITH_SANITIZED" in os.environ or not os.path.exists("/proc/self/smaps_rollup"),
    reason="a sanitizer keeps memory of its own; resident memory is read from Linux's /proc",
)

PRELUDE = """
import gc, json, re
import numpy as np
from monolith.embedding import *

def resident():
    gc.collect()
    return int(re.search(r"^Rss:\\s+(\\d+) kB", open("/proc/self/smaps_rollup").read(), re.M)[1]) * 1024

def fill(table, first, count, batch=65536):
    grads = np.ones((batch, table.dim), np.float32)
    for start in range(first, first + count, batch):
        ids = np.arange(start, min(start + batch, first + count)) * -7046029254386353131
        table.apply_gradients(ids, grads[: len(ids)], time_s=start // batch)

set_threads(2)
# Shared by all tables: the pool's threads and their scratch memory.
fill(Table(TableSpec("warm", [SliceSpec(64, optimizer=Sgd())])), 0, 65536)
"""


def measure(code: str) -> dict[str, int]:
    """Run ``code`` in a new process."""
    program = PRELUDE + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    measured: dict[str, int] = json.loads(done.stdout)
    return measured


KINDS = pytest.mark.parametrize(
    ("rows", "slices", "payload"),
    [
        (1_500_000, "[SliceSpec(16, optimizer=Adagrad())]", 128),
        (4_000_000, "[SliceSpec(1, optimizer=Sgd())]", 4),
    ],
    ids=["dim 16, adagrad", "dim 1, sgd"],
)


def grow(rows: int, slices: str) -> dict[str, int]:
    code = f"""
        before = resident()
        table = Table(TableSpec("t", {slices}))
        fill(table, 0, {rows})
        print(json.dumps(dict(rows=len(table), reported=table.memory_bytes, grown=resident() - before)))
    """
    return measure(code)


@KINDS
def test_memory_bytes_is_the_growth_of_the_process(rows: int, slices: str, payload: int) -> None:
    measured = grow(rows, slices)
    assert measured["rows"] == rows
    assert abs(measured["reported"] - measured["grown"]) <= 0.05 * measured["grown"], measured
    assert measured["reported"] / rows - payload <= 40, measured


def test_the_memory_of_removed_rows_is_used_again() -> None:
    measured = measure("""
        def replace(round):
            table.delete(np.concatenate([ids for ids, _ in table.items()]))
            fill(table, round * 300_000, 300_000)

        table = Table(TableSpec("t", [SliceSpec(16, optimizer=Adagrad())]))
        fill(table, 0, 300_000)
        full = table.memory_bytes
        replace(1)
        before = resident()
        for round in range(2, 6):
            replace(round)
        print(json.dumps(dict(rows=len(table), full=full, reported=table.memory_bytes, grown=resident() - before)))
    """)
    assert measured["rows"] == 300_000
    assert measured["reported"] <= 1.05 * measured["full"], measured
    assert measured["grown"] <= 0.1 * measured["full"], measured


def test_clear_gives_the_memory_back() -> None:
    measured = measure("""
        before = resident()
        table = Table(TableSpec("t", [SliceSpec(16, optimizer=Adagrad())]))
        fill(table, 0, 300_000)
        full = resident() - before
        table.clear()
        print(json.dumps(dict(full=full, left=resident() - before, reported=table.memory_bytes)))
    """)
    assert measured["left"] <= 0.1 * measured["full"], measured
    assert measured["reported"] <= 0.01 * measured["full"], measured


def test_a_load_without_a_thread_names_the_limits(tmp_path: Path) -> None:
    program = """
import resource, sys
import numpy as np
from monolith.core.errors import EngineError
from monolith.embedding import *

table = Table(TableSpec("t", [SliceSpec(2, optimizer=Sgd())]))
table.assign(np.arange(100), np.ones((100, 2), np.float32))
table.save(sys.argv[1])
pages = int(open("/proc/self/statm").read().split()[0])
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (24 << 20), before[1]))
try:
    Table.load(sys.argv[1])
except EngineError as error:
    assert "limits of threads and memory" in str(error), error
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert len(Table.load(sys.argv[1])) == 100
    print("refused")
"""
    command = [sys.executable, "-c", program, str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
