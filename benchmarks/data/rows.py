"""Cases of whole datasets: the cost of transforms and of shuffling, and Parquet against pyarrow and NumPy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from data.arrays import Arrays, arrays_of, check_agreement
from data.parsing import UNIT
from data.results import progress
from data.workload import FRAMING, Sizes, draw_rows, example_batch, schema
from measure.results import Result, compare
from measure.timing import interleave
from monolith.data import Dataset, RecordWriter, Schema, files, parquet

__all__ = ["row_cases"]


def row_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Files of ExampleBatches with and without a step, and a Parquet file."""
    with tempfile.TemporaryDirectory() as folder:
        steps = [case for case in cases if case != "parquet_arrow"]
        path = _write_records(Path(folder) / "rows.pb", sizes) if steps else Path()
        for case in cases:
            progress(case)
            yield _parquet(Path(folder), sizes) if case == "parquet_arrow" else _step(case, path, sizes)


def _write_records(path: Path, sizes: Sizes) -> Path:
    records = [example_batch(draw_rows(sizes, sizes.batch, seed)) for seed in range(sizes.records)]
    with RecordWriter(path, framing=FRAMING) as writer:
        for number in range(sizes.transformed_rows // sizes.batch):
            writer.write(records[number % len(records)])
    return path


def _transformed(plain: Dataset) -> Dataset:
    # Ids of slots that no row has, so that every id of every row is looked at, and no row is lost by that.
    return (
        plain.filter_by_fids(filter_fids=[(1000 << 48) + number for number in range(1000)])
        .add_label(config="2,3:1:1.0")
        .negative_sample(drop_rate=0.5, label_index=1)
    )


STEPS: dict[str, Callable[[Dataset], Dataset]] = {
    "transforms": _transformed,
    "shuffle": lambda plain: plain.shuffle(16_384),
}


def _step(case: str, path: Path, sizes: Sizes) -> Result:
    plain = files(path, record="example_batch", framing=FRAMING, compression="none", schema=schema(sizes))
    turns = [lambda _: _exhaust(STEPS[case](plain).batch(sizes.batch)), lambda _: _exhaust(plain.batch(sizes.batch))]
    seconds = interleave(turns, rounds=sizes.rounds, steps=1)
    extra: dict[str, Any] = {
        "peer_name": "the same dataset without that step",
        "ns_per_row": float(np.median(seconds[0] - seconds[1])) / sizes.transformed_rows * 1e9,
    }
    return compare(case, seconds[0], seconds[1], sizes.transformed_rows / 1e3, UNIT, **extra)


def _exhaust(batches: Dataset) -> None:
    for _ in batches:
        pass


# --- Parquet ----------------------------------------------------------------------------------------------------------


def _parquet(folder: Path, sizes: Sizes) -> Result:
    wanted = schema(sizes)
    path = _write_parquet(folder / "rows.parquet", wanted, sizes)

    def ours() -> Arrays:
        *_, last = (arrays_of(batch) for batch in parquet(path, schema=wanted).batch(sizes.batch))
        return last

    def peer() -> Arrays:
        file = pyarrow.parquet.ParquetFile(path)
        *_, last = (_arrow_arrays(batch, wanted) for batch in file.iter_batches(sizes.batch, use_threads=False))
        return last

    check_agreement(ours(), peer(), "pyarrow")
    seconds = interleave([lambda _: ours(), lambda _: peer()], rounds=sizes.rounds, steps=1)
    return compare(
        "parquet_arrow", seconds[0], seconds[1], sizes.python_rows / 1e3, UNIT, peer_name="pyarrow and NumPy"
    )


def _write_parquet(path: Path, wanted: Schema, sizes: Sizes) -> Path:
    rows = draw_rows(sizes, sizes.python_rows, seed=0)
    cells = rows.cells(rows.signatures)
    columns: dict[str, Any] = {
        each.name: pyarrow.array([row[place] for row in cells], pyarrow.list_(pyarrow.int64()))
        for place, each in enumerate(wanted.sparse_features)
    }
    floats = pyarrow.list_(pyarrow.float32())
    columns |= {name: pyarrow.array(values.tolist(), floats) for name, values in rows.dense.items()}
    columns["__LABEL__"] = pyarrow.array(rows.labels.reshape(-1, 1).tolist(), floats)
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    return path


def _arrow_arrays(batch: Any, wanted: Schema) -> Arrays:
    arrays: Arrays = {}
    for each in wanted.sparse_features:
        column = batch.column(each.name)
        offsets = column.offsets.to_numpy().astype(np.int64)
        arrays[each.name + ".offsets"] = offsets - offsets[0]
        arrays[each.name] = column.flatten().to_numpy()
    for dense in wanted.dense_features:
        arrays[dense.name] = batch.column(dense.name).flatten().to_numpy().reshape(-1, dense.width)
    arrays["label"] = batch.column("__LABEL__").flatten().to_numpy().reshape(-1, 1)
    return arrays
