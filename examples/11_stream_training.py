"""Trains on history, then on a live topic of the event log; a restarted run continues at the next event.

Run it with ``python examples/11_stream_training.py``. ``monolith train --data history.pb --then log://...`` does the
same in a separate process, and ``monolith join`` makes such a topic from impressions and actions.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import monolith as mt
from monolith.data.sources.event_log.topic import Topic
from monolith.data.sources.event_log.writer import LogWriter
from monolith.demo.world import World
from monolith.demo.world.files import example_batch, write_records

CLICKS = World(users=300, items=100, seed=4).clicks(6_000)
HISTORY, FIRST, BATCH = 2_000, 4_000, 100


def model() -> mt.Model:
    return mt.models.DeepFM(sparse={"user_id": 1, "item_id": 2}, dense=["price"], dim=4, hidden=[8])


def send(topic: Topic, first: int, last: int) -> None:
    """Append events as a producer does: some every few milliseconds."""
    with LogWriter(topic) as writer:
        for begin in range(first, last, BATCH):
            writer.write(example_batch(CLICKS.rows(begin, begin + BATCH)))
            writer.flush()
            time.sleep(0.005)


def train(folder: Path) -> tuple[int, float]:
    """Train until no event came for half a second; return the steps so far and the AUC."""
    history = mt.data.files(str(folder / "history.pb"), record="example_batch")
    stream = mt.data.event_log(folder / "log", "clicks", record="example_batch", group="trainer", idle_end_s=0.5)
    estimator = mt.Estimator(model, mt.RunConfig(model_dir=str(folder / "run"), seed=6, save_summary_steps=0))
    metrics = estimator.train(history.then(stream).batch(BATCH))
    return estimator.step, metrics["ctr/auc"]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with mt.data.RecordWriter(folder / "history.pb") as writer:
            write_records(CLICKS.rows(0, HISTORY), writer, batch_rows=BATCH)
        topic = Topic.create(folder / "log", "clicks")
        producer = threading.Thread(target=send, args=(topic, HISTORY, FIRST))
        producer.start()
        step, auc = train(folder)
        producer.join()
        print(f"{HISTORY:,} rows of history, then {FIRST - HISTORY:,} live events: step {step}, auc {auc:.3f}")
        send(topic, FIRST, len(CLICKS.user_id))
        step, auc = train(folder)
        print(f"restarted, {len(CLICKS.user_id) - FIRST:,} further events, none twice: step {step}, auc {auc:.3f}")
    print(
        "Next: docs/guide/event_log.md has topics, groups and retention; docs/guide/freshness.md publishes every second"
    )


if __name__ == "__main__":
    main()
