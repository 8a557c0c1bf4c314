"""Writes a day of impressions, detects the format of the files, reads them in batches, stops half-way and resumes.

Run it with ``python examples/02_read_records.py``. It takes a few seconds and needs no PyTorch.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np

import monolith as mt
from monolith.data import DenseFeature, Framing, RecordWriter, Schema, SparseFeature
from monolith.data.records.detect import detect
from monolith.data.records.generate import RandomRows, write_random_records

FRAMING = Framing(lagrangex_header=True)
ROWS = RandomRows(
    sparse={"user": 1, "item": 2, "history": 3}, dense={"price": 1}, shared=["user"], actions=(0, 1, 2), max_ids=5
)


def write(folder: Path) -> None:
    for part in range(4):
        with RecordWriter(folder / f"part-{part}.pb.zst", framing=FRAMING, compression="zstd") as writer:
            write_random_records(writer, "example_batch", ROWS, 5_000, seed=part, batch_size=256)


def dataset(folder: Path) -> mt.data.Dataset:
    schema = Schema(
        sparse=[SparseFeature(name, slot) for name, slot in ROWS.sparse.items()], dense=[DenseFeature("price")]
    )
    rows = mt.data.files(f"{folder}/part-*", record="example_batch", framing=FRAMING, schema=schema, interleave=2)
    rows = rows.add_label(config="1,2::1.0").negative_sample(drop_rate=0.5, label_index=1, threshold=0.5)
    return rows.shuffle(4_096, seed=1).batch(512).prefetch(2)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        found = detect(folder / "part-0.pb.zst")
        print(f"part-0.pb.zst is {found.compression}, {found.framing}, {found.record}: {found.confidence}")

        ds = dataset(folder)
        reading = iter(ds)
        first = next(reading)
        ids = first["history"]
        print(f"a batch: {first.size} rows, {len(ids.values):,} ids of history, labels {first.label.shape}")
        for _ in range(9):
            next(reading)
        state = json.dumps(ds.state())
        rest = np.concatenate([batch.uid for batch in reading])
        print(f"stopped after 10 batches; the state is {len(state)} bytes of JSON")

        again = dataset(folder)
        again.restore(json.loads(state))
        same = np.array_equal(rest, np.concatenate([batch.uid for batch in again]))
        print(
            f"resumed in a new dataset: {len(rest):,} rows left, {'the same' if same else 'NOT the same'} in each run"
        )
        for step, count in ds.counts().items():
            print(f"  {step:<28} {count:,}")
    print("Next: docs/guide/data.md, or identify your own file: monolith inspect records FILE")


if __name__ == "__main__":
    main()
