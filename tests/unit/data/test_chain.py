"""``Dataset.then``: a history, then a stream; a restored position continues exactly, in either of them and between."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import monolith as mt
from monolith.core.errors import ConfigError, DataError
from monolith.data import Dataset, Framing, RecordWriter
from monolith.data.records import messages
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.training.config.job import JobConfig
from monolith.training.job_data import chain_stream

BATCH = 3


def row(number: int, time_s: int | None = None) -> bytes:
    example = messages.Example()
    example.named_feature.add(name="n").feature.fid_v2_list.value.append(number)
    example.label.append(1.0)
    if time_s is not None:
        example.line_id.req_time = time_s
    return example.SerializeToString()


def write_history(folder: Path, numbers: Iterable[int], **times: Any) -> str:
    path = folder / "history.pb"
    with RecordWriter(path, framing=Framing()) as writer:
        for number in numbers:
            writer.write(row(number, **times))
    return str(path)


def write_log(folder: Path, numbers: Iterable[int], partitions: int = 3) -> Topic:
    topic = Topic.create(folder / "log", "rows", TopicSettings(partitions=partitions))
    with LogWriter(topic, linger_ms=0) as writer:
        for number in numbers:
            writer.write(row(number), key=b"%d" % number)
            writer.flush()  # small batches, so that partitions take turns
    return topic


def chained(history: str, folder: Path) -> Dataset:
    files = mt.data.files(history, record="example", framing=Framing())
    stream = mt.data.event_log(folder / "log", "rows", until_end=True, poll_records=2)
    schema = mt.data.Schema(sparse=[mt.data.SparseFeature("n", 1, value_type="fid")], labels=1)
    return files.shuffle(4).repeat(2).then(stream).with_schema(schema).batch(BATCH)


def numbers_of(batches: Iterable[Any]) -> list[list[int]]:
    return [batch.ids["n"].values.tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [number for batch in batches for number in batch]


def test_a_stream_follows_every_epoch_of_the_history(tmp_path: Path) -> None:
    history = write_history(tmp_path, range(1, 8))
    write_log(tmp_path, range(100, 120))
    rows = flat(numbers_of(chained(history, tmp_path)))
    assert sorted(rows[:14]) == sorted([*range(1, 8), *range(1, 8)])
    assert sorted(rows[14:]) == list(range(100, 120))


def test_a_restored_position_continues_exactly_in_history_stream_and_at_the_seam(tmp_path: Path) -> None:
    history = write_history(tmp_path, range(1, 8))
    write_log(tmp_path, range(100, 120))
    whole = chained(history, tmp_path)
    batches, marks = [], [whole.mark()]
    for batch in whole:
        batches.append(batch.ids["n"].values.tolist())
        marks.append(whole.mark())
    assert len(batches) == 12
    for taken, mark in enumerate(marks):
        resumed = chained(history, tmp_path)
        resumed.restore(mark())
        assert numbers_of(resumed) == batches[taken:], f"after {taken} batches"
        early = chained(history, tmp_path)  # a state that was saved when the batch was read
        iterator = iter(early)
        for _ in range(taken):
            next(iterator)
        state = early.state()
        iterator.close()
        later = chained(history, tmp_path)
        later.restore(state)
        assert sorted(flat(numbers_of(later))) == sorted(flat(batches[taken:])), f"after {taken} batches"


@pytest.mark.parametrize("steps", ["plain", "repeated", "merged"])
def test_an_interrupt_in_the_history_is_not_its_end(steps: str, tmp_path: Path) -> None:
    """The source of the history ends at the interrupt, between two of its chunks. A later run resumes there."""
    schema = mt.data.Schema(sparse=[mt.data.SparseFeature("n", 1, value_type="fid")], labels=1)
    history = write_history(tmp_path, range(1, 9001))  # more than two chunks
    write_log(tmp_path, range(100_000, 100_005))

    def chain() -> Dataset:
        files = mt.data.files(history, record="example", framing=Framing())
        if steps == "repeated":
            files = files.repeat(2)
        if steps == "merged":
            files = files.merge_flow(mt.data.files(history, record="example", framing=Framing()), block=100)
        stream = mt.data.event_log(tmp_path / "log", "rows", until_end=True)
        return files.then(stream).with_schema(schema).batch(64)

    whole = flat(numbers_of(chain()))
    interrupted = chain()
    rows: list[int] = []
    for batch in interrupted:
        rows += batch.ids["n"].values.tolist()
        interrupted.interrupt()
    resumed = chain()
    resumed.restore(interrupted.state())
    assert len(rows) < 9000
    assert rows + flat(numbers_of(resumed)) == whole


def test_rows_are_divided_at_an_event_time(tmp_path: Path) -> None:
    path = tmp_path / "history.pb"
    with RecordWriter(path, framing=Framing()) as writer:
        for number, time_s in ((1, 10), (2, 19), (3, 20), (4, None)):
            writer.write(row(number, time_s))
    topic = Topic.create(tmp_path / "log", "rows", TopicSettings())
    with LogWriter(topic) as writer:
        for number, time_s in ((2, 19), (3, 20), (5, 30), (6, None)):
            writer.write(row(number, time_s), time_ms=(time_s or 40) * 1000)
    files = mt.data.files(str(path), record="example", framing=Framing())
    stream = mt.data.event_log(tmp_path / "log", "rows", until_end=True)
    schema = mt.data.Schema(sparse=[mt.data.SparseFeature("n", 1, value_type="fid")], labels=1)
    rows = numbers_of(chain_stream(files, stream, 20).with_schema(schema).batch(10))
    assert rows == [[1, 2, 4, 3, 5, 6]]


def test_a_state_of_another_chain_is_refused(tmp_path: Path) -> None:
    history = write_history(tmp_path, range(1, 4))
    write_log(tmp_path, range(100, 103))
    state = chained(history, tmp_path).state()
    files = mt.data.files(history, record="example", framing=Framing())
    with pytest.raises(DataError, match="was saved by the steps"):
        files.batch(2).restore(state)
    with pytest.raises(ConfigError, match="then works on rows"):
        files.batch(2).then(files)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"until_time": 5}, "until_time is 5 and then is None"),
        ({"data": "a.pb", "then": "b.pb"}, "then is 'b.pb', expected log://PATH/TOPIC"),
        ({"then": "log://a/b"}, "data is None and then is 'log://a/b', expected the files of the history"),
        ({"data": "a.pb", "then": "log://a/b", "epochs": 0}, "epochs is 0"),
        ({"data": "a.pb", "then": "log://a/b?start=latest"}, "other than 'latest'"),
        ({"data": "a.pb", "then": "log://a/b", "enable_dynamic_sharding": True}, "enable_dynamic_sharding is True"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        JobConfig(**settings)
    assert text in str(caught.value)
