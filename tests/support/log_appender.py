"""Appends numbered messages to a topic until it is killed, and prints each number once it is flushed.

    python log_appender.py FOLDER TOPIC NAME FIRST

Messages are ``NAME NUMBER``. A line ``NUMBER`` means that all messages up to this number are acknowledged.
"""

from __future__ import annotations

import os
import random
import sys

from monolith.data.sources.event_log.topic import Topic
from monolith.data.sources.event_log.writer import LogWriter


def main(folder: str, topic: str, name: str, first: int) -> None:
    writer = LogWriter(Topic.open(folder, topic), batch_records=8)
    chance = random.Random(f"{name} {first}")
    number = first
    os.write(1, b"ready\n")
    while True:
        for _ in range(chance.randint(1, 20)):
            writer.write(f"{name} {number} ".encode() + bytes(chance.randint(0, 600)), key=name.encode())
            number += 1
        writer.flush()
        os.write(1, b"%d\n" % (number - 1))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
