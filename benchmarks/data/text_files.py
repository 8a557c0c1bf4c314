"""CSV and JSON lines against pyarrow's own readers: rows to batches of a model here, rows to Arrow batches there."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.json

from data.parsing import UNIT
from data.results import progress
from data.workload import Sizes
from measure.results import Result, compare
from measure.timing import interleave
from monolith.data import Dataset, Schema, SparseFeature, csv, json_lines

__all__ = ["text_cases"]

_INTEGERS = [f"id_{number}" for number in range(8)]
_TEXTS = [f"word_{number}" for number in range(4)]
_REALS = [f"real_{number}" for number in range(6)]


def text_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Files of 8 columns of integers, 4 of text, 6 of reals and a label."""
    rows = 10 * sizes.python_rows
    schema = Schema(
        sparse=[SparseFeature(name, slot + 1) for slot, name in enumerate([*_INTEGERS, *_TEXTS])],
        dense=_REALS,
        label_features=["click"],
    )
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            progress(case)
            path = Path(folder) / case.replace("_arrow", "").replace("csv", "rows.csv").replace("jsonl", "rows.jsonl")
            ours, peer = _write_csv(path, rows) if case == "csv_arrow" else _write_json(path, rows)
            yield _compare(case, functools.partial(ours, schema), peer, rows, sizes)


def _compare(case: str, ours: Callable[[], Dataset], peer: Callable[[], int], rows: int, sizes: Sizes) -> Result:
    def exhaust() -> int:
        return sum(batch.size for batch in ours().batch(sizes.batch))

    for count in (exhaust(), peer()):
        if count != rows:
            raise AssertionError(f"{case} read {count} rows, expected {rows}")
    seconds = interleave([lambda _: exhaust(), lambda _: peer()], rounds=sizes.rounds, steps=1)
    return compare(case, seconds[0], seconds[1], rows / 1e3, UNIT, peer_name="pyarrow to Arrow batches")


def _columns(rows: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {
        name: random.integers(0, 10 ** (3 + place), rows) for place, name in enumerate(_INTEGERS)
    }
    columns |= {name: [f"w{value}" for value in random.integers(0, 5000, rows)] for name in _TEXTS}
    columns |= {name: random.random(rows).round(4) for name in _REALS}
    return columns | {"click": random.integers(0, 2, rows)}


def _write_csv(path: Path, rows: int) -> tuple[Callable[[Schema], Dataset], Callable[[], int]]:
    pyarrow.csv.write_csv(pyarrow.table(_columns(rows)), path, pyarrow.csv.WriteOptions(quoting_style="needed"))

    def peer() -> int:
        options = pyarrow.csv.ReadOptions(use_threads=False)
        return sum(batch.num_rows for batch in pyarrow.csv.open_csv(path, read_options=options))

    return lambda schema: csv(path, schema=schema), peer


def _write_json(path: Path, rows: int) -> tuple[Callable[[Schema], Dataset], Callable[[], int]]:
    table = pyarrow.table(_columns(rows))
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))

    def peer() -> int:
        options = pyarrow.json.ReadOptions(use_threads=False)
        return int(pyarrow.json.read_json(path, read_options=options).num_rows)

    return lambda schema: json_lines(path, schema=schema), peer
