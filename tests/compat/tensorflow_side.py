"""What TensorFlow does in its own interpreter: reads and writes TFRecord files of tf.Examples.

Answers each JSON line of standard input with one JSON line. Runs without Monolith.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf
from json_lines import answer_lines


def write(path: str, compression: str, rows: list[dict[str, Any]]) -> int:
    """Write a tf.Example per row: ids, prices, words and a label."""
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for row in rows:
            feature = {
                "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=row["ids"])),
                "price": tf.train.Feature(float_list=tf.train.FloatList(value=row["price"])),
                "words": tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[word.encode() for word in row["words"]])
                ),
                "label": tf.train.Feature(float_list=tf.train.FloatList(value=row["label"])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return len(rows)


def read(path: str, compression: str) -> list[dict[str, Any]]:
    """Read what ``write`` describes."""
    spec = {
        "ids": tf.io.RaggedFeature(tf.int64),
        "price": tf.io.FixedLenFeature([2], tf.float32),
        "words": tf.io.RaggedFeature(tf.string),
        "label": tf.io.FixedLenFeature([1], tf.float32),
    }
    records = tf.data.TFRecordDataset(path, compression_type=compression)
    rows = []
    for record in records:
        row = {name: value.numpy().tolist() for name, value in tf.io.parse_single_example(record, spec).items()}
        rows.append(row | {"words": [word.decode() for word in row["words"]]})
    return rows


if __name__ == "__main__":
    answer_lines({"write": write, "read": read}, tf.errors.OpError)
