"""The peer that TensorFlow's own interpreter runs: a TFRecord file through ``tf.data`` and ``tf.io.parse_example``.

Started by ``tensorflow_cases`` as ``tensorflow_peer.py SETTINGS``, SETTINGS being JSON. Answers each line of standard
input with one JSON line: ``pass`` reads the file once and tells the seconds, ``save PATH`` writes the last batch's
arrays. Knows nothing of Monolith, and runs without it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def main() -> None:
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        import numpy as np
        import tensorflow as tf

        settings = json.loads(sys.argv[1])
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        dataset = make_dataset(tf, settings)

        def answer(**fields: Any) -> None:
            print(json.dumps(fields), file=out, flush=True)

        answer(tensorflow=tf.__version__)
        for line in sys.stdin:
            command, _, path = line.strip().partition(" ")
            if command == "save":
                *_, last = dataset
                np.savez(path, **as_arrays(last))
                answer(saved=path)
                continue
            start = time.perf_counter()
            batches = sum(1 for _ in dataset)
            answer(seconds=time.perf_counter() - start, batches=batches)


def make_dataset(tf: Any, settings: dict[str, Any]) -> Any:
    """Return the dataset of batches: ragged ids, dense floats, the label."""
    spec: dict[str, Any] = {
        name: tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64) for name in settings["sparse"]
    }
    spec |= {name: tf.io.FixedLenFeature([width], tf.float32) for name, width in settings["dense"].items()}
    spec["label"] = tf.io.FixedLenFeature([1], tf.float32)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    dataset = tf.data.TFRecordDataset(settings["path"], buffer_size=4 << 20)
    dataset = dataset.batch(settings["batch"]).map(lambda records: tf.io.parse_example(records, spec))
    return dataset.with_options(options)


def as_arrays(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the arrays of a batch under the names that the other side uses."""
    arrays = {}
    for name, tensor in batch.items():
        if hasattr(tensor, "row_splits"):
            arrays[name], arrays[name + ".offsets"] = tensor.values.numpy(), tensor.row_splits.numpy()
        else:
            arrays[name] = tensor.numpy()
    return arrays


if __name__ == "__main__":
    main()
