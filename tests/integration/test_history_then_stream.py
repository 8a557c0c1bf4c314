"""``--data FILES --then log://...``: stops in the history, in the stream and between lose and double no record."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import counting_model
from monolith.cli import main as program
from monolith.data import Framing
from monolith.data.records.reader import RecordReader
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.ps import Security
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.worker_job import connect

TASK = f"{counting_model.__file__}:Counter"
HISTORY, STREAM = 35, 40


@pytest.fixture
def sources(tmp_path: Path) -> tuple[str, str]:
    """Records 0 to 34 as files, records 35 to 74 as a topic of two partitions."""
    counting_model.write_files(tmp_path, [20, 15, STREAM])
    last = tmp_path / "part-02.pb"
    topic = Topic.create(tmp_path / "log", "rows", TopicSettings(partitions=2))
    with LogWriter(topic) as writer, RecordReader(last, framing=Framing()) as reader:
        number = 0
        while (chunk := reader.read()) is not None:
            for index in range(len(chunk)):
                writer.write(chunk[index], key=b"%d" % number)
                number += 1
    last.unlink()
    return str(tmp_path / "part-*.pb"), f"{topic.url}?group=trainer&until_end=1"


def test_runs_that_stop_anywhere_train_each_record_once(tmp_path: Path, sources: tuple[str, str]) -> None:
    data, then = sources
    for steps in (3, 6, 2, None):
        more = [] if steps is None else ["--steps", str(steps)]
        arguments = ["train", "--task", TASK, "--data", data, "--then", then, "--record", "example_batch",
                     "--batch-size", "5", "--threads", "1", "--model-dir", str(tmp_path / "run"), *more]  # fmt: skip
        result = CliRunner().invoke(program.app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        seen = counting_model.counts(tmp_path / "run", HISTORY + STREAM)
        assert seen.max() == 1
        if steps == 3:
            assert not seen[HISTORY:].any(), "the stream waits for the end of the history"
    np.testing.assert_array_equal(seen, 1)


def test_workers_on_parameter_servers_train_each_record_once(tmp_path: Path, sources: tuple[str, str]) -> None:
    data, then = sources
    for steps in (5, 5, None):
        config = ClusterJobConfig(
            task=TASK, data=data, then=then, record="example_batch", batch_size=5, threads=1, num_ps=2, steps=steps,
            log_step_count_steps=0, save_summary_steps=0, model_dir=str(tmp_path / "run"),
        )  # fmt: skip
        with PsServers(2) as servers:
            connect(servers.addresses, config, Security()).train()
        assert counting_model.counts(tmp_path / "run", HISTORY + STREAM).max() == 1
    np.testing.assert_array_equal(counting_model.counts(tmp_path / "run", HISTORY + STREAM), 1)
