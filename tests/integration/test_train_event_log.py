"""``monolith train --data log://...``: several runs train each row once, and the group follows the checkpoint."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from monolith.artifacts import CheckpointFolder
from monolith.cli import main as program
from monolith.data import Framing, RecordWriter
from monolith.data.records.generate import RandomRows, write_random_records
from monolith.data.records.reader import RecordReader
from monolith.data.sources.event_log.groups import load_group
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.training.checkpoints.choice import CHECKPOINTS

ROWS = RandomRows(sparse={"user": 1, "item": 2}, labels=1)


def append_rows(topic: Topic, folder: Path, count: int, seed: int) -> None:
    path = folder / f"rows-{seed}.pb"
    with RecordWriter(path, framing=Framing()) as records:
        write_random_records(records, "example", ROWS, count, seed=seed)
    with LogWriter(topic) as writer, RecordReader(path, framing=Framing()) as reader:
        while (chunk := reader.read()) is not None:
            for index in range(len(chunk)):
                writer.write(chunk[index], key=b"%d" % index)


def train(topic: Topic, model_dir: Path) -> None:
    data = f"{topic.url}?group=trainer&until_end=1"
    arguments = ["train", "--task", "deepfm", "--data", data, "--record", "example", "--model-dir", str(model_dir)]
    result = CliRunner().invoke(program.app, [*arguments, "--batch-size", "10"], catch_exceptions=False)
    assert result.exit_code == 0, result.output


def newest_step(model_dir: Path) -> int:
    newest = CheckpointFolder(model_dir / CHECKPOINTS).newest()
    assert newest is not None
    return newest.step


def test_runs_continue_where_the_last_checkpoint_ended(tmp_path: Path) -> None:
    topic = Topic.create(tmp_path / "log", "rows", TopicSettings(partitions=2))
    append_rows(topic, tmp_path, 100, seed=1)
    model_dir = tmp_path / "model"
    train(topic, model_dir)
    assert newest_step(model_dir) == 10
    assert sum(each["offset"] for each in load_group(topic, "trainer").values()) == 100
    append_rows(topic, tmp_path, 50, seed=2)
    train(topic, model_dir)
    assert sum(each["offset"] for each in load_group(topic, "trainer").values()) == 150
    assert newest_step(model_dir) == 15  # 10 steps, then 5: no row was trained twice
