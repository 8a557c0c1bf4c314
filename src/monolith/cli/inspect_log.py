"""``monolith inspect log``, and the reports of ``monolith log``: partitions, segments, groups and damage of a topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from monolith.cli._display import size_text, time_text
from monolith.core.errors import ConfigError, RecordCorrupt

if TYPE_CHECKING:
    from monolith.data.sources.event_log.topic import Topic

__all__ = ["EXAMPLE", "log", "open_topic", "show_stats", "topic_report"]

EXAMPLE = "Example: monolith inspect log log:///data/events/clicks --verify"

Report: TypeAlias = dict[str, Any]
Url: TypeAlias = Annotated[str, typer.Argument(metavar="LOG", help="log://PATH/TOPIC, or the folder of a topic.")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def log(
    url: Url,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and check every checksum.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a topic of the event log: partitions, offsets, times, sizes, settings, and the lag of its groups."""
    show_stats(open_topic(url), verify=verify, as_json=as_json)


def open_topic(url: str) -> Topic:
    """Open the topic of a URL or a folder.

    Raises:
        ConfigError: The URL is invalid, or the topic does not exist.
    """
    from monolith.data.sources.event_log.topic import Topic
    from monolith.data.sources.urls import parse_url

    parts = parse_url(url if "://" in url else f"log://{url}" if "/" in url else f"log://./{url}")
    if parts.kind != "log":
        raise ConfigError(f"url is {url!r}, expected log://PATH/TOPIC")
    return Topic.open(parts.place, parts.topic)


def show_stats(topic: Topic, *, verify: bool, as_json: bool) -> None:
    """Print the report of a topic.

    Raises:
        RecordCorrupt: ``verify`` found damage; the report is printed first.
    """
    report = topic_report(topic, verify=verify)
    typer.echo(json.dumps(report) if as_json else "\n".join(_lines(report)))
    damaged = sum(len(partition.get("damage", ())) for partition in report["partitions"])
    if damaged:
        raise RecordCorrupt(
            f"{report['url']} has {damaged} damaged places; run monolith log repair, which mends headers and ends, and "
            "read behind other damage with ?on_corrupt=skip in the URL, or join --on-corrupt skip"
        )


def topic_report(topic: Topic, *, verify: bool = False) -> Report:
    """Return the state of a topic as plain data."""
    import dataclasses

    partitions = [_partition_report(topic, number, verify) for number in range(topic.settings.partitions)]
    return {
        "url": topic.url,
        "id": topic.id,
        "settings": dataclasses.asdict(topic.settings),
        "records": sum(each["records"] for each in partitions),
        "bytes": sum(each["bytes"] for each in partitions),
        "is_verified": verify,
        "partitions": partitions,
        "groups": _group_reports(topic, partitions),
    }


def _partition_report(topic: Topic, number: int, verify: bool) -> Report:
    partition = topic.open_partition(number)
    folder = topic.partition_folder(number)
    report: Report = {
        "partition": number,
        "first": partition.first,
        "end": partition.visible_end,
        "written_end": partition.written_end,
        "durable_end": partition.durable_end,
        "records": partition.visible_end - partition.first,
        "epoch": partition.epoch,
        "largest_ms": max(partition.largest_ms, 0),
        "append_ms": partition.append_ms,
        "segments": len(partition.segments()),
        "bytes": sum(map(_size_of, folder.glob("seg-*.log"))),
        "has_failed": partition.has_failed,
    }
    if verify:
        report["damage"] = list(_damage(partition, report["first"]))
    return report


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # retention has removed the segment meanwhile
        return 0


def _damage(partition: Any, first: int) -> Iterator[str]:
    expected = first
    for segment in partition.verify():
        is_removed = expected < segment.base <= partition.first  # by retention, since the report began
        if segment.base != expected and not is_removed:
            yield f"offsets {expected} to {segment.base - 1} are missing before segment {segment.base}"
        if not segment.has_header:
            yield f"segment {segment.base} has a damaged header"
        for begin, end, first_byte, _ in segment.bad:
            yield f"offsets {begin} to {end - 1} are damaged at byte {first_byte} of segment {segment.base}"
        if segment.is_torn:
            yield f"segment {segment.base} has damaged bytes after offset {segment.end}"
        expected = segment.end


def _group_reports(topic: Topic, partitions: list[Report]) -> list[Report]:
    from monolith.data.sources.event_log.groups import load_group

    reports = []
    for path in sorted((topic.folder / "groups").glob("*.json")):
        committed = load_group(topic, path.stem)
        lag = sum(max(0, partitions[number]["end"] - each["offset"]) for number, each in committed.items())
        reports.append({"group": path.stem, "offsets": {n: p["offset"] for n, p in committed.items()}, "lag": lag})
    return reports


def _lines(report: Report) -> Iterator[str]:
    settings = report["settings"]
    yield f"{report['url']}: {report['records']:,} records, {size_text(report['bytes'])}, log {report['id']}"
    yield f"  durability   {settings['durability']}"
    if settings["retain_bytes"] or settings["retain_s"]:
        size = size_text(settings["retain_bytes"]) if settings["retain_bytes"] else "any size"
        age = f"{settings['retain_s']:g} s" if settings["retain_s"] else "any age"
        yield f"  retention    {size}, {age}"
    for each in report["partitions"]:
        failed = ", FAILED: run monolith log repair" if each["has_failed"] else ""
        yield (
            f"  partition {each['partition']}  offsets {each['first']} to {each['end']}, {size_text(each['bytes'])} in "
            f"{each['segments']} segments, epoch {each['epoch']}, newest event {time_text(each['largest_ms'] / 1000)}, "
            f"last append {time_text(each['append_ms'] / 1000)}{failed}"
        )
        yield from (f"    damage: {text}" for text in each.get("damage", ()))
    for group in report["groups"]:
        yield f"  group {group['group']}  lag {group['lag']:,} records"
    if report["is_verified"] and not any(each["damage"] for each in report["partitions"]):
        yield "  every checksum holds"
