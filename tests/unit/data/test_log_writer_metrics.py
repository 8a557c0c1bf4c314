"""The metrics of the event log writers of a process."""

from __future__ import annotations

from pathlib import Path

from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.data.sources.event_log.writer_metrics import log_writer_samples


def read(topic: str) -> dict[str, float]:
    return {
        metric.name.removeprefix("monolith_log_"): value
        for metric, samples in log_writer_samples()
        for labels, value in samples
        if labels == (topic,)
    }


def test_appends_bytes_and_syncs_are_counted_and_stay_after_a_close(tmp_path: Path) -> None:
    topic = Topic.create(tmp_path, "metrics-of-writers", TopicSettings(durability="commit"))
    assert read(topic.name) == {}
    with LogWriter(topic, linger_ms=60_000) as writer:
        writer.write(b"12345")
        waiting = read(topic.name)
        assert (waiting["appended_records_total"], waiting["waiting_bytes"] > 0) == (0, True)
        writer.flush()
        written = read(topic.name)
        assert (written["appended_records_total"], written["waiting_bytes"]) == (1, 0)
        assert written["append_bytes_total"] >= 5
        assert written["fsyncs_total"] >= 1
        assert written["fsync_seconds_total"] > 0
        assert (written["append_failures_total"], written["failed_partitions"]) == (0, 0)
    with LogWriter(topic) as second:
        second.write(b"6")
        second.flush()
        assert read(topic.name)["appended_records_total"] == 2
    closed = read(topic.name)
    assert closed["appended_records_total"] == 2
    assert closed["fsyncs_total"] >= written["fsyncs_total"]
