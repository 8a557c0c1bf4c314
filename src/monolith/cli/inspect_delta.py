"""``monolith inspect delta``: shows and checks a delta log, and the segments of a replay up to a moment."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from monolith.core.errors import ConfigError, DeltaLogBroken

if TYPE_CHECKING:
    from monolith.artifacts.delta_log import DeltaReader, Segment

__all__ = ["EXAMPLE", "delta"]

EXAMPLE = "Example: monolith inspect delta deltas/shard-00000-of-00002 --at 2026-01-31T12:00:00"

Report: TypeAlias = dict[str, Any]
Verifying: TypeAlias = Callable[[str, int, int], None]

_MOST_SHOWN = 20


def delta(
    path: Annotated[Path, typer.Argument(help="Folder of one shard's log, or the folder above all shards.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and check every checksum.")] = False,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="SEQ|TIME",
            help="Show the segments of a replay up to a sequence, an ISO time (UTC) or @unix seconds.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the segments of a delta log: times, changed and removed rows; and the published cut."""
    from monolith.artifacts.delta_log import DeltaReader, read_cut

    moment = None if at is None else _moment(at)
    folders = _logs(path)
    report: Report = {"path": str(path), "cut": _cut_report(read_cut(path)), "logs": []}
    damage: DeltaLogBroken | None = None
    for folder in folders:
        log, broken = _log_report(DeltaReader(folder), verify, moment)
        report["logs"].append(log)
        damage = damage or broken
    if as_json:
        typer.echo(json.dumps(report))
    else:
        for line in _lines(report):
            typer.echo(line)
    if damage is not None:
        raise damage


def _logs(path: Path) -> list[Path]:
    if not path.is_dir():
        raise ConfigError(f"path is '{path}', expected the folder of a delta log; check the path")
    if any(path.glob("seg-*.delta")):
        return [path]
    folders = sorted(folder for folder in path.glob("shard-*-of-*") if folder.is_dir())
    if not folders:
        raise ConfigError(f"'{path}' contains no delta log, expected seg-*.delta or shard-*-of-* in it; check the path")
    return folders


def _moment(text: str) -> dict[str, Any]:
    """Return the end of a replay, as ``DeltaReader.plan`` takes it."""
    if text.isdecimal():
        return {"until": int(text)}
    try:
        if text.startswith("@"):
            return {"until_time_s": float(text[1:])}
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--at is {text!r}, expected a sequence or a time; write 42, 2026-01-31T12:00:00 or @1700000000"
        ) from None
    return {"until_time_s": (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).timestamp()}


# --- the report ---


def _cut_report(cut: Any) -> Report | None:
    if cut is None:
        return None
    return {
        "number": cut.number,
        "sequences": {str(shard): sequence for shard, sequence in cut.sequences.items()},
        "dense": cut.dense,
        "published_at_s": cut.published_at_s,
        "newest_event_s": cut.newest_event_s,
    }


def _log_report(
    reader: DeltaReader, verify: bool, moment: dict[str, Any] | None
) -> tuple[Report, DeltaLogBroken | None]:
    """Return the report of one log, and the error that its damage raises, if any."""
    report: Report = {"path": str(reader.folder), "segments": [], "is_verified": False, "damage": None, "replay": None}
    try:
        segments = reader.segments()
        report["segments"] = [_segment_report(segment) for segment in segments]
        if segments:
            report.update(flavour=segments[0].flavour, shard=list(segments[0].shard))
        if verify:
            _verify(reader, segments)
            report["is_verified"] = True
        if moment is not None:
            planned = reader.plan(_start(segments), **moment)
            report["replay"] = [segment.sequence for segment in planned]
    except DeltaLogBroken as error:
        report["damage"] = str(error)
        return report, error
    return report, None


def _start(segments: list[Segment]) -> int:
    """Return the sequence before the oldest segment: 0, or that of a snapshot."""
    return segments[0].previous if segments and not segments[0].is_complete else 0


def _verify(reader: DeltaReader, segments: list[Segment]) -> None:
    total, done = sum(segment.bytes for segment in segments), 0
    with _progress() as progress:
        for segment in segments:
            progress(segment.path.name, done, total)
            reader.verify(segment)
            done += segment.bytes
    if segments:
        reader.plan(_start(segments))  # raises on gaps


def _segment_report(segment: Segment) -> Report:
    return {
        "sequence": segment.sequence,
        "previous": segment.previous,
        "bytes": segment.bytes,
        "wall_time_s": segment.wall_time_s,
        "newest_event_s": segment.newest_event_s,
        "is_complete": segment.is_complete,
        "tables": {
            name: {"upserts": table.upserts, "tombstones": table.tombstones, "is_complete": table.is_complete}
            for name, table in segment.tables.items()
        },
    }


# --- output ---


def _time(time_s: float) -> str:
    if time_s == 0:
        return "none"
    return f"{datetime.datetime.fromtimestamp(time_s, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def _lines(report: Report) -> Iterator[str]:
    if cut := report["cut"]:
        sequences = ", ".join(f"{shard}: {sequence}" for shard, sequence in cut["sequences"].items())
        yield f"cut {cut['number']} of {_time(cut['published_at_s'])}: dense {cut['dense']}, shards {{{sequences}}}"
    for log in report["logs"]:
        yield from _log_lines(log)


def _log_lines(log: Report) -> Iterator[str]:
    segments = log["segments"]
    size = sum(segment["bytes"] for segment in segments)
    verified = ", all checksums match" if log["is_verified"] else ""
    kind = f"{log['flavour']}, shard {log['shard'][0]} of {log['shard'][1]}, " if segments else ""
    yield f"{log['path']}: {kind}{len(segments)} segments, {size:,} bytes{verified}"
    if len(segments) > _MOST_SHOWN:
        yield f"  ... {len(segments) - _MOST_SHOWN} earlier segments (--json has all)"
    for segment in segments[-_MOST_SHOWN:]:
        whole = ", all rows" if segment["is_complete"] else ""
        when, newest = _time(segment["wall_time_s"]), _time(segment["newest_event_s"])
        yield f"  {segment['sequence']}  {when}, newest event {newest}, {segment['bytes']:,} bytes{whole}"
        for name, table in segment["tables"].items():
            if table["upserts"] or table["tombstones"]:
                yield f"    {name}: {table['upserts']:,} rows changed, {table['tombstones']:,} removed"
    if log["replay"] is not None:
        chosen = log["replay"]
        yield f"  replay: {f'segments {chosen[0]} to {chosen[-1]} ({len(chosen)})' if chosen else 'nothing'}"
    if log["damage"] is not None:
        yield f"  damage: {log['damage']}"


@contextlib.contextmanager
def _progress() -> Iterator[Verifying]:
    """Yield a callback that moves a progress bar on a terminal; elsewhere it does nothing."""
    if not sys.stderr.isatty():
        yield lambda name, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("checking {task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)
