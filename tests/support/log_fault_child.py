"""Appends numbered records to a topic under the fault layer, and notes each record that is acknowledged.

    LD_PRELOAD=fault_layer.so python log_fault_child.py FOLDER RECORD DURABILITY COUNT RULES

The rules are in force after the first record. The last line of standard output is the error, or ``done``.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import cast

from monolith.core.errors import MonolithError
from monolith.data.sources.event_log.topic import Durability, Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter


def main(folder: str, record: str, durability: str, count: int, rules: str) -> None:
    layer = ctypes.CDLL(None)
    assert layer.fault_layer_begin(os.fsencode(folder), os.fsencode(record)) == 0
    topic = Topic.create(folder, "events", TopicSettings(durability=cast(Durability, durability), segment_bytes=4096))
    writer = LogWriter(topic, linger_ms=60_000)
    result = "done"
    for number in range(count):
        if number == 1:
            assert layer.fault_layer_rules(rules.encode()) == 0
        writer.write(b"%d " % number + bytes(number * 97 % 1500))
        try:
            writer.flush()
        except MonolithError as error:
            result = f"{type(error).__name__}: {error}"
            break
        layer.fault_layer_note(b"done %d" % number)
    layer.fault_layer_pause(1)
    print(result, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5])
