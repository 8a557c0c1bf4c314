"""The metrics of a stream's source reach the metrics page of the run."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import counting_model
from monolith.core.free_ports import free_port
from monolith.data import Framing
from monolith.data.records.reader import RecordReader
from monolith.data.sources.event_log.topic import Topic
from monolith.data.sources.event_log.writer import LogWriter
from monolith.training.config.job import JobConfig
from monolith.training.hooks import Hook
from monolith.training.runner import Job


class Page(Hook):
    """Reads the metrics page after a step."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.text = ""

    def after_step(self, run: Any, result: Any) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
            self.text = answer.read().decode()


def test_records_and_lag_of_a_topic_are_on_the_page_of_the_trainer(tmp_path: Path) -> None:
    counting_model.write_files(tmp_path, [20])
    topic = Topic.create(tmp_path / "log", "rows")
    with LogWriter(topic) as writer, RecordReader(tmp_path / "part-00.pb", framing=Framing()) as reader:
        while (chunk := reader.read()) is not None:
            for index in range(len(chunk)):
                writer.write(chunk[index])
    port = free_port()
    config = JobConfig(
        task=f"{counting_model.__file__}:Counter", data=f"{topic.url}?idle_end_s=0.2", record="example_batch",
        batch_size=5, threads=1, log_step_count_steps=0, metrics_port=port,
    )  # fmt: skip
    page = Page(port)
    Job(config, hooks=[page]).train()
    assert 'monolith_log_records_total{topic="rows"} 4' in page.text
    assert 'monolith_log_lag_seconds{topic="rows",partition="0"}' in page.text
