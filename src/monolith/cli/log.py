"""``monolith log``: shows, appends, checks and repairs topics of the event log."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from monolith.cli.inspect_log import AsJson, Url, open_topic, show_stats
from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith._native import EventLogChunk
    from monolith.data.sources.event_log.writer import LogWriter

__all__ = ["register"]

_CAT_EXAMPLE = "Example: monolith log cat log:///data/events/clicks --start latest --follow"
_APPEND_EXAMPLE = "Example: echo hello | monolith log append log:///data/events/clicks --create --partitions 4"
_STATS_EXAMPLE = "Example: monolith log stats log:///data/events/clicks --json"
_VERIFY_EXAMPLE = "Example: monolith log verify log:///data/events/clicks"
_REPAIR_EXAMPLE = "Example: monolith log repair log:///data/events/clicks"


def register(app: typer.Typer) -> None:
    """Add ``log`` and its subcommands to the program."""
    commands = typer.Typer(
        no_args_is_help=True, epilog=_STATS_EXAMPLE, help="Show, append to, check and repair topics of the event log."
    )
    commands.callback()(_commands)
    commands.command("cat", epilog=_CAT_EXAMPLE)(cat)
    commands.command("append", epilog=_APPEND_EXAMPLE)(append)
    commands.command("stats", epilog=_STATS_EXAMPLE)(stats)
    commands.command("verify", epilog=_VERIFY_EXAMPLE)(verify)
    commands.command("repair", epilog=_REPAIR_EXAMPLE)(repair)
    app.add_typer(commands, name="log")


def _commands() -> None:
    """Show, append to, check and repair topics of the event log."""


def cat(
    url: Url,
    start: Annotated[
        str, typer.Option(metavar="START", help="earliest, latest, or a unix time in seconds (event time).")
    ] = "earliest",
    partition: Annotated[int | None, typer.Option(min=0, help="Read this partition only.")] = None,
    offset: Annotated[int | None, typer.Option(min=0, help="Begin at this offset; needs --partition.")] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=0, help="Stop after N records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records at the end.")] = False,
    record: Annotated[
        str | None, typer.Option(metavar="KIND", help="Show values as messages: example, instance, example_batch.")
    ] = None,
    skip: Annotated[bool, typer.Option("--skip-corrupt", help="Skip damaged batches.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per record.")] = False,
) -> None:
    """Print the records of a topic: partition, offset, event time, key and value."""
    from monolith import _native
    from monolith.data.sources.kafka.start_offsets import parse_start

    topic = open_topic(url)
    begin = parse_start(start)
    if begin == "committed":
        raise ConfigError("start is 'committed', expected earliest, latest or a unix time in seconds")
    if offset is not None and partition is None:
        raise ConfigError("offset is given without a partition, expected both; give --partition")
    handles = topic.open_partitions(None if partition is None else [partition])
    reader = _native.EventLogReader(handles, topic.wake_path, skips_lost=False, skips_corrupt=skip)
    for index, handle in enumerate(handles):
        if offset is not None:
            reader.seek(index, offset)
        elif begin == "latest":
            reader.seek(index, handle.visible_end)
        elif not isinstance(begin, str):
            reader.seek(index, reader.find_time(index, int(begin * 1000)))
    left = sys.maxsize if limit is None else limit
    ends = [handle.visible_end for handle in handles]
    while left > 0:
        chunk = reader.read(min(left, 4096), 1000) if follow else _read_to(reader, ends, min(left, 4096))
        if chunk is not None:
            left -= len(chunk)
            for line in _record_lines(chunk, record, as_json):
                sys.stdout.write(line + "\n")
            sys.stdout.flush()
        elif not follow:
            return


def _read_to(reader: Any, ends: list[int], most_records: int) -> EventLogChunk | None:
    for index, end in enumerate(ends):
        chunk: EventLogChunk | None = reader.read_partition(index, most_records, end)
        if chunk is not None:
            return chunk
    return None


def _record_lines(chunk: EventLogChunk, record: str | None, as_json: bool) -> Iterator[str]:
    times, appends = chunk.times_ms.tolist(), chunk.append_ms.tolist()
    for index, key in enumerate(chunk.keys):
        value = chunk.records[index]
        if as_json:
            yield json.dumps(
                {
                    "partition": chunk.partition,
                    "offset": chunk.begin + index,
                    "time_ms": times[index],
                    "append_ms": appends[index],
                    "key": _text(key),
                    "value": _text(value) if record is None else _describe(value, record),
                }
            )
        else:
            shown = _text(value) if record is None else _describe(value, record)
            yield f"{chunk.partition}\t{chunk.begin + index}\t{times[index]}\t{_text(key)}\t{shown}"


def _text(value: bytes) -> str:
    """Return readable text as it is, and other bytes as ``base64:...``."""
    try:
        text = value.decode()
        if text.isprintable() and not text.startswith("base64:"):
            return text
    except UnicodeDecodeError:
        pass
    return "base64:" + base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text[7:], validate=True) if text.startswith("base64:") else text.encode()


def _content(given: object) -> bytes:
    """Return the bytes of a JSON value. Text of an object or of null would be Python's, not the JSON of the line."""
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise TypeError(f"{given!r} is not text; write an object as a JSON string")
    return _bytes(str(given))


def _describe(value: bytes, record: str) -> str:
    from monolith.cli.inspect_records import describe

    return " ".join(describe(value, record).split())


def append(
    url: Url,
    records: Annotated[
        str | None, typer.Option(metavar="FILE", help="Append the records of this file, whose format is detected.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--json-lines", help='Lines are {"value": ..., "key": ..., "time_ms": ...}, as cat --json.')
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the topic where it does not exist.")] = False,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of a new topic.")] = 1,
    durability: Annotated[str, typer.Option(help="Durability of a new topic: commit, interval or never.")] = "interval",
    as_json: AsJson = False,
) -> None:
    """Append the lines of standard input to a topic, or the records of a file."""
    from monolith.data.sources.event_log.writer import LogWriter

    writer = _create(url, partitions, durability) if create else LogWriter(open_topic(url))
    topic = writer.topic
    try:
        with writer:
            for number, (value, key, time_ms) in enumerate(_messages(records, lines), 1):
                try:
                    writer.write(value, key, time_ms)
                except ConfigError as error:
                    raise ConfigError(f"message {number}: {error}") from error
    except BaseException:  # a second run would append the first records again
        typer.echo(f"{topic.url}: {writer.written_records:,} records added before the error", err=True)
        raise
    count = writer.written_records
    typer.echo(json.dumps({"url": topic.url, "records": count}) if as_json else f"{topic.url}: {count:,} records added")


def _create(url: str, partitions: int, durability: str) -> LogWriter:
    """Return a writer of a topic that is created where it is absent. Options of the URL replace the arguments."""
    from monolith.data.sources.urls import open_sink, parse_url

    parts = parse_url(url if "://" in url else f"log://{url}" if "/" in url else f"log://./{url}")
    if parts.kind != "log":
        raise ConfigError(f"url is {url!r}, expected log://PATH/TOPIC")
    options = {"partitions": str(partitions), "durability": durability, **parts.options}
    return cast("LogWriter", open_sink(replace(parts, options=options)))


def _messages(path: str | None, lines: bool) -> Iterator[tuple[bytes, bytes | None, int | None]]:
    if path is not None:
        yield from ((value, None, None) for value in _file_records(path))
        return
    for number, line in enumerate(sys.stdin.buffer, 1):
        text = line.rstrip(b"\n")
        if not lines:
            yield text, None, None
            continue
        try:
            body = json.loads(text)
            key, time_ms = body.get("key"), body.get("time_ms")
            value = _content(body["value"]), None if key is None else _content(key)
            yield *value, None if time_ms is None else int(time_ms)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"line {number} is {text[:80]!r}, expected JSON with value, and perhaps key and time_ms: {error}"
            ) from error


def _file_records(path: str) -> Iterator[bytes]:
    from monolith.data.records.detect import detect
    from monolith.data.records.reader import RecordReader

    found = detect(path)
    if found.framing is None:
        raise ConfigError(f"{path}: {' '.join(found.evidence)}; expected framed records, see: monolith inspect records")
    with RecordReader(path, framing=found.framing, compression=found.compression) as reader:
        while (chunk := reader.read()) is not None:
            yield from (chunk[index] for index in range(len(chunk)))


def stats(url: Url, as_json: AsJson = False) -> None:
    """Show the partitions, offsets and sizes of a topic, and the lag of its groups."""
    show_stats(open_topic(url), verify=False, as_json=as_json)


def verify(url: Url, as_json: AsJson = False) -> None:
    """Read every byte of a topic and check every checksum; exit with 1 where a batch is damaged."""
    show_stats(open_topic(url), verify=True, as_json=as_json)


def repair(url: Url, as_json: AsJson = False) -> None:
    """Repair a topic: rebuild damaged headers, cut torn tails, and resume after a failed fdatasync.

    Damaged records in the middle of a segment stay where they are: readers skip them with on_corrupt="skip".
    """
    from monolith import _native

    topic = open_topic(url)
    changes = {
        number: _native.EventLogPartition.repair(topic.native_settings(number))
        for number in range(topic.settings.partitions)
    }
    if as_json:
        typer.echo(json.dumps({"url": topic.url, "changes": changes}))
        return
    for number, texts in changes.items():
        typer.echo(f"partition {number}: {'; '.join(texts) if texts else 'nothing to repair'}")
