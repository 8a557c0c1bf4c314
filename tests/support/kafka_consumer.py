"""The victim of test_kafka.py: reads a topic as a member of a group until it is killed.

Arguments: servers, topic, group, start, state file, lots per checkpoint, librdkafka settings as JSON. For each lot it
prints a line of JSON (what was read), then, after every few lots, saves its position with what it has read since (a
checkpoint: one rename) and commits. Before the first lot it resumes from the state file when there is one. It goes on
with each line of standard input, so that the judge decides when it is killed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from monolith.data.sources.kafka.source import KafkaSource


def main() -> None:
    servers, topic, group, start, state_file, every, settings = sys.argv[1:]
    path = Path(state_file)
    source = KafkaSource(
        servers, topic, group, "example", start=start, poll_records=7, max_wait_s=0.05, config=json.loads(settings)
    )
    trained: list[str] = []
    if path.exists():
        state = json.loads(path.read_text())
        trained = state["trained"]
        source.resume(state["position"])
    lots = 0
    while (lot := source.read()) is not None:
        records = [lot[index].decode() for index in range(len(lot))]
        trained.extend(records)
        lots += 1
        print(json.dumps({"source": lot.source, "records": records}), flush=True)
        if sys.stdin.readline() == "":
            break
        if lots % int(every) == 0:
            position = source.position()
            unfinished = path.with_suffix(".new")
            unfinished.write_text(json.dumps({"position": position, "trained": trained}))
            os.replace(unfinished, path)
            source.committed(position)
    source.close()


if __name__ == "__main__":
    main()
