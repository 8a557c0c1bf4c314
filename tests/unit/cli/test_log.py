"""``monolith log`` and ``monolith inspect log``: append, show, verify, repair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from monolith.cli import main as program
from monolith.core.errors import ConfigError, MonolithError, RecordCorrupt
from monolith.data.records.framing import Framing
from monolith.data.records.writer import RecordWriter
from monolith.data.sources.event_log.groups import commit_group
from monolith.data.sources.event_log.topic import Topic
from monolith.data.sources.event_log.writer import LogWriter

T0 = 1_700_000_000_000


def run(*arguments: object, given: str | None = None) -> str:
    result = CliRunner().invoke(program.app, [str(each) for each in arguments], input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(*arguments: object) -> tuple[MonolithError, str]:
    result = CliRunner().invoke(program.app, [str(each) for each in arguments])
    assert isinstance(result.exception, MonolithError)
    return result.exception, result.stdout


@pytest.fixture
def url(tmp_path: Path) -> str:
    topic = Topic.create(tmp_path, "clicks")
    with LogWriter(topic, batch_records=1) as writer:
        for number in range(5):
            writer.write(b"value %d" % number, key=b"k%d" % number, time_ms=T0 + number)
        writer.write(b"\xff\x00", time_ms=T0 + 5)
    return topic.url


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_append_accepts_the_output_of_cat(url: str, tmp_path: Path) -> None:
    lines = run("log", "cat", url).splitlines()
    assert lines[0] == f"0\t0\t{T0}\tk0\tvalue 0"
    assert lines[5] == f"0\t5\t{T0 + 5}\t\tbase64:/wA="
    shown = run("log", "cat", url, "--json")
    copy = f"log://{tmp_path}/copy"
    assert "6 records added" in run("log", "append", copy, "--create", "--json-lines", given=shown)
    for before, after in zip(rows(shown), rows(run("log", "cat", copy, "--json")), strict=True):
        assert {**before, "append_ms": 0} == {**after, "append_ms": 0}


def test_a_new_topic_has_the_settings_of_its_url(tmp_path: Path) -> None:
    url = f"log://{tmp_path}/kept?retain_bytes=8192&retain_s=60&partitions=3"
    run("log", "append", url, "--create", "--durability", "commit", given="one\n")
    settings = Topic.open(tmp_path, "kept").settings
    assert (settings.retain_bytes, settings.retain_s, settings.partitions) == (8192, 60, 3)
    assert settings.durability == "commit"
    for wrong, text in ((f"log://{tmp_path}/other?retain=1", "'retain'"), ("kafka://host:1/other", "log://PATH/TOPIC")):
        error, _ = fails("log", "append", wrong, "--create")
        assert isinstance(error, ConfigError)
        assert text in str(error)
    assert not (tmp_path / "other").exists()


def test_cat_begins_and_ends_where_it_is_asked_to(url: str) -> None:
    def offsets(*arguments: object) -> list[int]:
        return [row["offset"] for row in rows(run("log", "cat", url, "--json", *arguments))]

    assert offsets("--start", "latest") == []
    assert offsets("--start", (T0 + 3) / 1000) == [3, 4, 5]
    assert offsets("--partition", 0, "--offset", 4) == [4, 5]
    assert offsets("--limit", 2) == [0, 1]
    assert offsets("--limit", 6, "--follow") == list(range(6))


def test_append_takes_lines_and_record_files(url: str, tmp_path: Path) -> None:
    assert json.loads(run("log", "append", url, "--json", given="one\ntwo\n"))["records"] == 2
    path = tmp_path / "part.pb"
    with RecordWriter(path, framing=Framing()) as writer:
        for _ in range(3):
            writer.write(b"\x2a\x09\x11" + bytes(8))
    assert "3 records added" in run("log", "append", url, "--records", path)
    assert len(rows(run("log", "cat", url, "--json"))) == 11


def test_stats_show_groups_and_their_lag(url: str) -> None:
    topic = Topic.open(Path(url.removeprefix("log://")).parent, "clicks")
    commit_group(topic, "trainer", {0: {"offset": 2, "epoch": 1}})
    report = json.loads(run("log", "stats", url, "--json"))
    assert (report["records"], report["groups"]) == (6, [{"group": "trainer", "offsets": {"0": 2}, "lag": 4}])
    text = run("inspect", "log", topic.folder)
    assert "6 records" in text
    assert "group trainer  lag 4 records" in text


def test_verify_names_damage_and_exits_with_an_error(url: str) -> None:
    assert "every checksum holds" in run("log", "verify", url)
    segment = next(Path(url.removeprefix("log://")).glob("part-*/seg-*.log"))
    content = bytearray(segment.read_bytes())
    content[64 + 64 + 20] ^= 1
    segment.write_bytes(content)
    error, output = fails("log", "verify", url)
    assert isinstance(error, RecordCorrupt)
    assert "offsets 0 to 0 are damaged at byte 64 of segment 0" in output
    error, _ = fails("log", "cat", url)
    assert isinstance(error, RecordCorrupt)
    assert len(rows(run("log", "cat", url, "--json", "--skip-corrupt"))) == 5


def roll_segments(folder: Path, count: int) -> Topic:
    topic = Topic.create(folder, "rolled")
    partition = topic.open_partition(0)
    for number in range(count):
        partition.append([b"value"], [b""], [T0 + number])
        if number + 1 < count:
            partition.roll()
    return topic


def test_a_segment_that_is_removed_meanwhile_counts_no_bytes(tmp_path: Path) -> None:
    topic = roll_segments(tmp_path, 3)
    topic.open_partition(0).trim(1)
    kept = sum(path.stat().st_size for path in topic.partition_folder(0).glob("seg-*.log"))
    (topic.partition_folder(0) / f"seg-{0:020d}.log").symlink_to("gone")  # listed, and gone at the next look
    assert json.loads(run("log", "stats", topic.url, "--json"))["bytes"] == kept
    assert "every checksum holds" in run("log", "verify", topic.url)


class TrimmedMeanwhile:
    """A partition whose first two segments are removed after the report has read its first offset."""

    def __init__(self, partition: Any) -> None:
        self._partition = partition

    def __getattr__(self, name: str) -> Any:
        return getattr(self._partition, name)

    def verify(self) -> Any:
        assert self._partition.trim(2) == 2
        return self._partition.verify()


def test_verify_tells_removed_segments_from_missing_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = roll_segments(tmp_path, 5)
    with monkeypatch.context() as patch:
        open_partition = Topic.open_partition
        patch.setattr(Topic, "open_partition", lambda *arguments: TrimmedMeanwhile(open_partition(*arguments)))
        assert "every checksum holds" in run("log", "verify", topic.url)
    (topic.partition_folder(0) / f"seg-{3:020d}.log").unlink()
    error, output = fails("log", "verify", topic.url)
    assert isinstance(error, RecordCorrupt)
    assert "offsets 3 to 3 are missing before segment 4" in output


def test_repair_rebuilds_a_damaged_header(url: str) -> None:
    assert "nothing to repair" in run("log", "repair", url)
    folder = next(Path(url.removeprefix("log://")).glob("part-*"))
    segment = next(folder.glob("seg-*.log"))
    content = bytearray(segment.read_bytes())
    content[60] ^= 1
    segment.write_bytes(content)
    (folder / "HEAD").unlink()
    error, _ = fails("log", "stats", url)
    assert "monolith log repair" in str(error)
    changes = json.loads(run("log", "repair", url, "--json"))["changes"]
    assert changes == {"0": ["rebuilt the header of the last segment"]}
    assert len(rows(run("log", "cat", url, "--json"))) == 6


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("log", "cat", "log:///nowhere/clicks"), "topic 'clicks' does not exist in '/nowhere'"),
        (("log", "stats", "kafka://host/topic"), "expected log://PATH/TOPIC"),
        (("log", "append", "log:///nowhere/clicks"), "--create"),
    ],
)
def test_an_unknown_topic_is_named(arguments: tuple[str, ...], text: str) -> None:
    error, _ = fails(*arguments)
    assert isinstance(error, ConfigError)
    assert text in str(error)


def test_a_line_that_is_not_a_message_is_named(url: str) -> None:
    result = CliRunner().invoke(program.app, ["log", "append", url, "--json-lines"], input='{"key": "k"}\n')
    assert isinstance(result.exception, ConfigError)
    assert "line 1 is" in str(result.exception)


def test_an_event_time_without_a_date_is_shown(tmp_path: Path) -> None:
    topic = Topic.create(tmp_path, "micros")
    with LogWriter(topic) as writer:
        writer.write(b"value", time_ms=T0 * 1000)
    assert f"newest event unix time {T0} s" in run("log", "stats", topic.url)
    assert "every checksum holds" in run("log", "verify", topic.url)


@pytest.mark.parametrize(
    "line",
    [
        '{"value": null}',
        '{"value": {"user": 7}}',
        '{"value": [7]}',
        '{"value": true}',
        '{"value": "a", "key": {"user": 7}}',
        '{"value": "a", "time_ms": 1e999}',
        "[" * 100_000,
    ],
)
def test_a_json_line_without_a_text_value_is_refused(tmp_path: Path, line: str) -> None:
    topic = Topic.create(tmp_path, "clicks")
    with pytest.raises(ConfigError, match=r"line 1 is .*, expected JSON with value"):
        run("log", "append", topic.url, "--json-lines", given=line)
    assert run("log", "cat", topic.url) == ""


def test_a_json_line_may_have_numbers(tmp_path: Path) -> None:
    topic = Topic.create(tmp_path, "clicks")
    run("log", "append", topic.url, "--json-lines", given='{"value": 5, "key": 7}')
    (row,) = rows(run("log", "cat", topic.url, "--json"))
    assert (row["value"], row["key"]) == ("5", "7")


def test_records_before_an_invalid_line_are_counted(tmp_path: Path) -> None:
    topic = Topic.create(tmp_path, "clicks")
    given = '{"value": "1"}\n{"value": "2"}\nbad\n'
    result = CliRunner().invoke(program.app, ["log", "append", topic.url, "--json-lines"], input=given)
    assert isinstance(result.exception, ConfigError)
    assert "2 records added before the error" in result.stderr
    assert len(run("log", "cat", topic.url).splitlines()) == 2
