"""The datasets of a job: framings of files and of standard input, and settings that contradict each other."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from monolith.core.config_sections import build_section
from monolith.core.errors import ConfigError
from monolith.data import Framing, RecordWriter
from monolith.data.records.generate import RandomRows, write_random_records
from monolith.data.records.reader import RecordReader
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.data.sources.kafka.client import read_settings
from monolith.training.config.job import DataConfig
from monolith.training.job_data import open_rows, reads_stream

ROWS = 5


def write(path: Path, record: Any, framing: Framing) -> Path:
    with RecordWriter(path, framing=framing) as writer:
        write_random_records(writer, record, RandomRows(sparse={"user": 1}), ROWS, seed=3)
    return path


def count_rows(path: str, **settings: Any) -> int:
    return sum(1 for _ in open_rows(build_section(DataConfig, **settings), path))


@pytest.mark.parametrize("settings", [{}, {"record_framing": "tfrecord"}])
def test_a_named_tf_example_is_read_out_of_tfrecords(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = write(tmp_path / "part.tfrecord", "tf_example", Framing.tfrecord())
    assert count_rows(str(path), record="tf_example", **settings) == ROWS


def test_tfrecords_are_read_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "part.tfrecord", "tf_example", Framing.tfrecord())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert count_rows("-", record="tf_example") == ROWS


@pytest.mark.parametrize(
    ("framing", "settings"),
    [
        (Framing(), {}),
        (Framing(sort_id=False), {"sort_id": False}),
        (Framing(sort_id=False), {"record_framing": "none"}),
        (Framing(lagrangex_header=True), {"lagrangex_header": True}),
        (Framing(kafka_dump=True), {"record_framing": "sort_id,kafka_dump"}),
        (Framing.tfrecord(), {"record_framing": "tfrecord"}),
        (Framing.tfrecord(), {"record": "auto", "record_framing": "tfrecord"}),
    ],
)
def test_a_file_is_read_with_the_framing_of_the_settings(
    tmp_path: Path, framing: Framing, settings: dict[str, Any]
) -> None:
    path = write(tmp_path / "part.pb", "example", framing)
    assert count_rows(str(path), **{"record": "example", **settings}) == ROWS


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"record_framing": "lines"}, "'lines'"),
        ({"record_framing": "tfrecord", "lagrangex_header": True}, "lagrangex_header is True .* 'tfrecord'"),
        ({"kafka_start": "oldest"}, "kafka_start is 'oldest'"),
        ({"kafka_start": "1700000000000"}, "kafka_start is .1700000000000"),
        ({"kafka_idle_end_s": -1.0}, "kafka_idle_end_s is -1.0"),
        ({"kafka_poll_records": 0}, "kafka_poll_records is 0"),
        ({"batch_wait_s": 1.0}, "batch_wait_s is 1.0 and .*data is None, expected a stream"),
        (
            {"batch_wait_s": 1.0, "data": "a.parquet"},
            "batch_wait_s is 1.0 and .*'a.parquet', expected a stream",
        ),
        ({"batch_wait_s": -1.0, "data": "-"}, "batch_wait_s is -1.0"),
        ({"kafka_config": " "}, "kafka_config is ' '"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_read(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build_section(DataConfig, **settings)


def test_settings_of_kafka_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("# of the cluster\nsecurity.protocol = SASL_SSL\n\nsasl.password=a=b#c\n")
    assert read_settings(path) == {"security.protocol": "SASL_SSL", "sasl.password": "a=b#c"}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a=1\nsecret", "line 2 has no name=value"),
        ("=secret", "line 1 has no name=value"),
        ("sasl.password=secret\nsasl.password=secret", "line 2 sets 'sasl.password' again"),
    ],
)
def test_an_invalid_line_of_settings_is_named_without_its_value(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "client.properties"
    path.write_text(content)
    with pytest.raises(ConfigError, match=text) as raised:
        read_settings(path)
    assert "secret" not in str(raised.value)


def test_a_missing_file_of_settings_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.properties"):
        read_settings(tmp_path / "absent.properties")


def fill_log(folder: Path) -> str:
    path = write(folder / "part.pb", "example", Framing())
    topic = Topic.create(folder, "rows", TopicSettings(partitions=2))
    with LogWriter(topic) as writer, RecordReader(path, framing=Framing()) as reader:
        while (chunk := reader.read()) is not None:
            for index in range(len(chunk)):
                writer.write(chunk[index], partition=index % 2)
    return topic.url


def test_a_topic_of_the_event_log_is_read_by_its_url(tmp_path: Path) -> None:
    url = fill_log(tmp_path)
    assert count_rows(f"{url}?until_end=1", record="example") == ROWS
    assert count_rows(f"{url}?idle_end_s=0&partitions=1", record="example") == ROWS // 2
    assert reads_stream(DataConfig(data=url))
    assert not reads_stream(DataConfig(data="part-*.pb"))


def test_workers_share_the_partitions_of_a_log(tmp_path: Path) -> None:
    url = f"{fill_log(tmp_path)}?until_end=1"
    config = DataConfig(record="example")
    assert [sum(1 for _ in open_rows(config, url, shard=(index, 2))) for index in range(2)] == [3, 2]
    with pytest.raises(ConfigError, match="2 partitions for 3 workers"):
        list(open_rows(config, url, shard=(2, 3)))


def test_a_dataset_of_a_log_resumes_and_commits_with_its_checkpoint(tmp_path: Path) -> None:
    url = f"{fill_log(tmp_path)}?until_end=1&group=trainer"
    config = DataConfig(record="example")
    rows = open_rows(config, url)
    iterator = iter(rows)
    next(iterator)
    state = rows.state()
    rows.committed(state)
    rest = sum(1 for _ in iterator)
    assert rest == ROWS - 1
    again = open_rows(config, url)
    again.restore(state)
    assert sum(1 for _ in again) == rest


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("log://", "expected log://PATH/TOPIC"),
        ("log://topic", "expected log://PATH/TOPIC"),
        ("log://a/b?colour=red", "option 'colour' of topic 'b' is unknown"),
        ("log://a/b?idle_end_s=soon", "option idle_end_s of topic 'b' is 'soon'"),
        ("log://a/b?until_end=maybe", "option until_end of topic 'b' is 'maybe'"),
        ("log://a/b?partitions=3-1", "partitions is '3-1'"),
        ("log://a/b?group=g&group=h", "each option once"),
        ("log://a/b", "topic 'b' does not exist"),
        ("kafka://host:9092/b", "has no group"),
    ],
)
def test_an_invalid_url_is_named(url: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=text):
        list(open_rows(DataConfig(record="example"), url))
