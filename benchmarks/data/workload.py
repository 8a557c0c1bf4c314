"""What is measured: rows drawn once, and the same rows as records of every format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monolith.data import DenseFeature, Framing, RecordWriter, Schema, SparseFeature
from monolith.data.records.messages import LABEL, LINE_ID, ExampleBatch, Instance, LineId, TfExample

__all__ = ["FRAMING", "FULL", "QUICK", "Rows", "Sizes", "draw_rows", "example_batch", "instances", "schema", "stream"]
__all__ += ["tf_examples", "write_tfrecords"]

SEED = 20240915
DENSE_WIDTHS = {"price": 1, "age": 1, "statistics": 8, "vector": 16}
FRAMING = Framing(sort_id=True, kafka_dump=True)
SIGNATURE_BITS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large a run is."""

    rounds: int
    """Interleaved rounds of a case; the median of their ratios is reported."""
    steps: int
    """Timed calls of a contestant's turn, after one that is not timed."""
    records: int
    """Distinct ExampleBatches, cycled."""
    stream_batch: int
    """Rows of a batch out of a stream of Instances."""
    tf_rows: int
    """Rows of the file that TensorFlow reads."""
    python_rows: int
    """Rows of the file that Python reads."""
    pipeline_bytes: int
    """Uncompressed bytes of the pipeline's files, about."""
    pipeline_rounds: int
    allocated_batches: int
    transformed_rows: int
    batch: int = 512
    features: int = 100
    quick: bool = False


FULL = Sizes(
    rounds=11,
    steps=3,
    records=8,
    stream_batch=4_096,
    tf_rows=16_384,
    python_rows=4_096,
    pipeline_bytes=200_000_000,
    pipeline_rounds=7,
    allocated_batches=10_000,
    transformed_rows=65_536,
)
QUICK = Sizes(
    rounds=3,
    steps=1,
    records=3,
    stream_batch=2_048,
    tf_rows=2_048,
    python_rows=1_024,
    pipeline_bytes=30_000_000,
    pipeline_rounds=3,
    allocated_batches=2_000,
    transformed_rows=8_192,
    quick=True,
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows before they are spelled as records."""

    counts: NDArray[np.int64]
    """(rows, features): how many ids each cell has, 1 to 3."""
    signatures: NDArray[np.int64]
    """The ids of all cells without their slots, row after row."""
    dense: dict[str, NDArray[np.float32]]
    labels: NDArray[np.float32]
    lines: list[Any]
    """A LineId per row."""

    def __len__(self) -> int:
        return len(self.counts)

    def slots(self) -> NDArray[np.int64]:
        """Return the slot of each id; the feature at place 0 has slot 1."""
        rows, features = self.counts.shape
        return np.repeat(np.tile(np.arange(1, features + 1), rows), self.counts.reshape(-1))

    def cells(self, ids: NDArray[np.int64]) -> list[list[list[int]]]:
        """Return ids as plain lists by row and feature."""
        ends = np.cumsum(self.counts.reshape(-1)).tolist()
        flat, features = ids.tolist(), self.counts.shape[1]
        lists = [flat[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return [lists[begin : begin + features] for begin in range(0, len(lists), features)]


def feature_name(place: int) -> str:
    """Return the name of the feature at a place."""
    return f"fc_feature_{place + 1:03d}"


def schema(sizes: Sizes) -> Schema:
    """Return what is read out of the records of every format."""
    return Schema(
        sparse=[SparseFeature(feature_name(place), slot=place + 1) for place in range(sizes.features)],
        dense=[DenseFeature(name, width) for name, width in DENSE_WIDTHS.items()],
    )


def draw_rows(sizes: Sizes, count: int, seed: int) -> Rows:
    """Draw rows. Each feature has a vocabulary of its own size, from ten to ten million, of which low ranks are hot."""
    random = np.random.default_rng([SEED, seed])
    counts = random.integers(1, 4, (count, sizes.features))
    vocabularies = np.logspace(1, 7, sizes.features)
    sizes_of_ids = np.repeat(np.tile(vocabularies, count), counts.reshape(-1))
    ranks = np.floor(sizes_of_ids ** random.random(len(sizes_of_ids))).astype(np.uint64)
    signatures = (_mixed(ranks + sizes_of_ids.astype(np.uint64)) >> np.uint64(64 - SIGNATURE_BITS)).astype(np.int64)
    uids, items = random.integers(1, 1 << 62, (2, count)).tolist()
    times = (1_700_000_000 - random.integers(0, 3600, count)).tolist()
    actions = random.integers(1, 5, count).tolist()
    return Rows(
        counts=counts,
        signatures=signatures,
        dense={name: random.random((count, width), np.float32) for name, width in DENSE_WIDTHS.items()},
        labels=(random.random(count) < 0.1).astype(np.float32),
        lines=[
            LineId(uid=uid, item_id=item, req_time=time, actions=[1, action], sample_rate=0.5, chnid=3)
            for uid, item, time, action in zip(uids, items, times, actions, strict=True)
        ],
    )


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # The finalizer of splitmix64.
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


# --- the same rows in each format -------------------------------------------------------------------------------------


def example_batch(rows: Rows) -> bytes:
    """Return one ExampleBatch: ids of version 2, floats, ``__LABEL__`` and ``__LINE_ID__``, a column each."""
    batch = ExampleBatch(batch_size=len(rows))
    cells = rows.cells(rows.slots() << 48 | rows.signatures)
    for place in range(rows.counts.shape[1]):
        column = batch.named_feature_list.add(name=feature_name(place), id=place + 1)
        for row in cells:
            column.feature.add().fid_v2_list.value.extend(row[place])
    for name, values in (*rows.dense.items(), (LABEL, rows.labels.reshape(-1, 1))):
        column = batch.named_feature_list.add(name=name)
        for numbers in values.tolist():
            column.feature.add().float_list.value.extend(numbers)
    column = batch.named_feature_list.add(name=LINE_ID)
    for line in rows.lines:
        column.feature.add().bytes_list.value.append(line.SerializeToString())
    return batch.SerializeToString()


def instances(rows: Rows, *, named: bool = False) -> list[bytes]:
    """Return an Instance per row.

    Args:
        rows: The rows.
        named: Ids are in named features, of version 2. By default they are flat, of version 1.
    """
    ids = rows.slots() << 48 | rows.signatures if named else rows.slots() << 54 | rows.signatures
    records = []
    for number, row in enumerate(rows.cells(ids)):
        instance = Instance(label=[rows.labels[number]], line_id=rows.lines[number])
        if named:
            for place, cell in enumerate(row):
                instance.feature.add(name=feature_name(place), fid=cell)
        else:
            instance.fid.extend([fid for cell in row for fid in cell])
        for name, values in rows.dense.items():
            instance.feature.add(name=name, float_value=values[number].tolist())
        records.append(instance.SerializeToString())
    return records


def stream(records: Sequence[bytes]) -> bytes:
    """Return records as they stand in a file with a sort id and a Kafka dump word."""
    return b"".join(FRAMING.frame(record, sort_id=b"%020d" % number) for number, record in enumerate(records))


def tf_examples(rows: Rows, shuffle_seed: int | None = None) -> Iterator[bytes]:
    """Yield a tf.Example per row; its ids are signatures, as the reader declares their slots.

    Args:
        rows: The rows.
        shuffle_seed: Features stand in another random order in every record, as a C++ program writes them. By default
            in the order that Python's protobuf gives to a map.
    """
    random = None if shuffle_seed is None else np.random.default_rng(shuffle_seed)
    for number, row in enumerate(rows.cells(rows.signatures)):
        example = TfExample()
        features = example.features.feature
        for place, cell in enumerate(row):
            features[feature_name(place)].int64_list.value.extend(cell)
        for name, values in rows.dense.items():
            features[name].float_list.value.extend(values[number].tolist())
        features["label"].float_list.value.append(rows.labels[number])
        record = example.SerializeToString()
        yield record if random is None else _reordered(record, random)


def _reordered(record: bytes, random: np.random.Generator) -> bytes:
    """Put the map entries of a tf.Example into random order."""
    body = TfExample.FromString(record).features
    entries = []
    for name in random.permutation(sorted(body.feature)).tolist():
        alone = TfExample()
        alone.features.feature[name].CopyFrom(body.feature[name])
        entries.append(alone.features.SerializeToString())
    joined = b"".join(entries)
    return b"\x0a" + _varint(len(joined)) + joined


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_tfrecords(path: Path, sizes: Sizes, count: int, shuffle_seed: int | None = None) -> Path:
    """Write a TFRecord file of ``count`` rows."""
    with RecordWriter(path, framing=Framing.tfrecord()) as writer:
        for number, begin in enumerate(range(0, count, 1024)):
            rows = draw_rows(sizes, min(1024, count - begin), seed=1000 + number)
            for record in tf_examples(rows, shuffle_seed):
                writer.write(record)
    return path
