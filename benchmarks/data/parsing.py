"""Cases against Python protobuf and NumPy: from bytes in memory, or in a file, to the arrays of a batch."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data import protobuf_peer
from data.arrays import Arrays, arrays_of, check_agreement
from data.results import progress
from data.workload import (
    FRAMING,
    Sizes,
    draw_rows,
    example_batch,
    instances,
    schema,
    stream,
    write_tfrecords,
)
from measure.results import Result, compare
from measure.timing import interleave
from monolith import _native
from monolith.data import BatchParser, Schema, files

__all__ = ["example_batch_cases", "instance_cases", "our_tf_arrays", "tf_example_cases"]

PEER = "Python protobuf (upb) and NumPy"
UNIT = "k rows/s"


def example_batch_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """ExampleBatches in memory."""
    progress("example_batch_protobuf")
    wanted = schema(sizes)
    records = [example_batch(draw_rows(sizes, sizes.batch, seed)) for seed in range(sizes.records)]
    parse = BatchParser("example_batch", wanted)
    yield _compared(
        "example_batch_protobuf",
        lambda record: arrays_of(parse([record])),
        lambda record: protobuf_peer.assemble_example_batch(record, wanted),
        records,
        sizes,
    )


def instance_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Framed streams of Instances in memory, with flat ids or with named features."""
    for case in cases:
        progress(case)
        small = _instances_compared(case, sizes.batch, sizes)
        yield _instances_compared(case, sizes.stream_batch, sizes, **{f"ratio_batch_{sizes.batch}": small.ratio})


def _instances_compared(case: str, rows: int, sizes: Sizes, **extra: Any) -> Result:
    wanted = schema(sizes)
    named = case == "instance_named_protobuf"
    parse = BatchParser("instance", wanted)

    def ours(data: bytes) -> Arrays:
        frames = _native.FrameReader(FRAMING.bits, "stream")
        frames.feed(data)
        frames.finish()
        records = frames.take(rows, len(data))
        assert records is not None
        return arrays_of(parse(records))

    def peer(data: bytes) -> Arrays:
        return protobuf_peer.assemble_instances(protobuf_peer.read_framed(data), wanted, named=named)

    streams = [stream(instances(draw_rows(sizes, rows, seed), named=named)) for seed in range(2)]
    return _compared(case, ours, peer, streams, sizes, rows=rows, batch=rows, **extra)


def tf_example_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """A TFRecord file of tf.Examples, from the file to batches."""
    progress("tf_example_protobuf")
    wanted = schema(sizes)
    with tempfile.TemporaryDirectory() as folder:
        path = write_tfrecords(Path(folder) / "rows.tfrecord", sizes, sizes.python_rows)
        mixed = write_tfrecords(Path(folder) / "mixed.tfrecord", sizes, sizes.python_rows, shuffle_seed=1)

        def ours(file: Path) -> Arrays:
            return list(our_tf_arrays(file, wanted, sizes))[-1]

        def peer(file: Path) -> Arrays:
            records = protobuf_peer.read_tfrecords(file)
            batches = [records[begin : begin + sizes.batch] for begin in range(0, len(records), sizes.batch)]
            return [protobuf_peer.assemble_tf_examples(batch, wanted) for batch in batches][-1]

        other = _compared("tf_example_protobuf", ours, peer, [mixed], sizes, rows=sizes.python_rows)
        extra = {"ratio_random_order": other.ratio}
        yield _compared("tf_example_protobuf", ours, peer, [path], sizes, rows=sizes.python_rows, **extra)


def our_tf_arrays(path: Path, wanted: Schema, sizes: Sizes) -> Iterator[Arrays]:
    """Read a TFRecord file of tf.Examples in batches."""
    for batch in files(path, record="tf_example", compression="none", schema=wanted).batch(sizes.batch):
        yield arrays_of(batch)


def _compared(
    case: str,
    ours: Callable[[Any], Arrays],
    peer: Callable[[Any], Arrays],
    inputs: Sequence[Any],
    sizes: Sizes,
    rows: int | None = None,
    **extra: Any,
) -> Result:
    for one in inputs:
        check_agreement(ours(one), peer(one), PEER)
    turns = [lambda call: ours(inputs[call % len(inputs)]), lambda call: peer(inputs[call % len(inputs)])]
    seconds = interleave(turns, rounds=sizes.rounds, steps=sizes.steps)
    count = rows or sizes.batch
    extra["ns_per_feature"] = float(np.median(seconds[0])) / count / sizes.features * 1e9
    return compare(case, seconds[0], seconds[1], count / 1e3, UNIT, peer_name=PEER, **extra)
