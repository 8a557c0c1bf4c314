"""``monolith filter``: copies the records that a transform keeps, from files or standard input to a file or output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.data.records.framing import Framing
    from monolith.data.sources.base import RecordKind, Source
    from monolith.data.transforms import Transform

__all__ = ["read_transform", "register"]

_EPILOG = (
    "Example: monolith filter 'part-*.pb' clicks.pb.zst --has-actions 2    As a pipe: monolith filter - - --record "
    "instance --transform @rules.pbtxt"
)
_STANDARD = "-"


def register(app: typer.Typer) -> None:
    """Add ``filter`` to the program."""
    app.command("filter", epilog=_EPILOG)(filter_records)


def filter_records(
    source: Annotated[str, typer.Argument(help="Files, globs and URLs, separated by commas; - = standard input.")],
    destination: Annotated[str, typer.Argument(help="File or URL to write; - = standard output.")],
    transform: Annotated[
        str | None,
        typer.Option(metavar="TEXT|@FILE", help="TransformConfig in protobuf text format, or the file that has it."),
    ] = None,
    has_fids: Annotated[list[int] | None, typer.Option(help="Keep records with any of these ids. Repeatable.")] = None,
    filter_fids: Annotated[list[int] | None, typer.Option(help="Drop records with any of these. Repeatable.")] = None,
    select_fids: Annotated[list[int] | None, typer.Option(help="Keep records with all of these. Repeatable.")] = None,
    has_actions: Annotated[list[int] | None, typer.Option(help="Keep records with any of these. Repeatable.")] = None,
    req_time_min: Annotated[int, typer.Option(min=0, help="Drop records whose req_time is smaller.")] = 0,
    record: Annotated[
        str | None,
        typer.Option(help="instance, example or example_batch; default: detected from the first file."),
    ] = None,
    framing: Annotated[
        str | None,
        typer.Option(metavar="FLAGS", help="sort_id,kafka_dump,... or none, tfrecord, bare; default: detected."),
    ] = None,
    to_framing: Annotated[
        str | None, typer.Option(metavar="FLAGS", help="Framing of DESTINATION; default: that of the source.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing DESTINATION.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as one JSON object.")] = False,
) -> None:
    """Copy the records that filters keep. Kept records stay as they are, except labels that a transform sets.

    Sort ids and Kafka words before the records become empty. DESTINATION is compressed by its suffix (.zst, .gz, ...)
    and appears when it is complete. Counts go to standard error if DESTINATION is standard output.
    """
    from monolith.core import storage
    from monolith.data.record_filter import RecordFilter
    from monolith.data.transforms import Compose, FilterByFids

    steps: list[Transform] = [
        FilterByFids(
            has_fids=has_fids or (),
            filter_fids=filter_fids or (),
            select_fids=select_fids or (),
            has_actions=has_actions or (),
            req_time_min=req_time_min,
        )
    ]
    if transform is not None:
        steps.append(read_transform(transform))
    if destination != _STANDARD and not overwrite and storage.is_file(destination):
        raise ConfigError(f"destination is {destination!r}, which exists, expected a new file; or add --overwrite")
    kind, read_framing = _format(source, record, framing)
    keep = RecordFilter(kind, Compose(steps))
    written_framing = read_framing if to_framing is None else _parse_framing(to_framing)
    counts = {"records": 0, "kept": 0}
    with ExitStack() as stack:
        write = _open(destination, written_framing, stack)
        for payload, key in _read(source, kind, read_framing):
            counts["records"] += 1
            content = keep(payload)
            if content is not None:
                counts["kept"] += 1
                write(content, key if written_framing.lagrangex_header else None)
    line = json.dumps(counts) if as_json else f"{counts['kept']:,} of {counts['records']:,} records kept"
    typer.echo(line, err=destination == _STANDARD)


def read_transform(text: str) -> Transform:
    """Return the transform of a ``TransformConfig``: its text, or @ and the file that has the text.

    Raises:
        ConfigError: The file cannot be read, or the text is not a TransformConfig.
    """
    from monolith.data.transforms import parse_transform_config

    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text()
        except (OSError, ValueError) as error:
            raise ConfigError(f"transform is {text!r}, expected @ and a readable text file ({error})") from error
    return parse_transform_config(text)


def _parse_framing(text: str) -> Framing:
    from monolith.data.records.framing import Framing

    return Framing.parse(text)


def _format(source: str, record: str | None, framing: str | None) -> tuple[Any, Framing]:
    """Return message type and framing, as given or as detected from the first file."""
    from monolith.data.records.detect import detect
    from monolith.data.records.framing import Framing
    from monolith.data.sources.patterns import expand

    if source == _STANDARD:
        if record is None:
            raise ConfigError("record is absent, expected --record with standard input, which is read once")
        return record, Framing() if framing is None else Framing.parse(framing)
    if record is not None and framing is not None:
        return record, Framing.parse(framing)
    first = expand(source)[0]
    detection = detect(first)
    chosen = detection.framing if framing is None else Framing.parse(framing)
    kind = detection.record if record is None else record
    if chosen is None or kind is None:
        missing = "--framing" if chosen is None else "--record"
        raise ConfigError(f"format of {first!r} is unknown; give {missing}")
    return kind, chosen


def _read(source: str, record: RecordKind, framing: Framing) -> Iterator[tuple[bytes, int]]:
    """Yield the records of all files, each with the key of its data source."""
    from monolith.data.sources.files import FileSource
    from monolith.data.sources.stdin import StdinSource

    opened: Source
    if source == _STANDARD:
        opened = StdinSource(sys.stdin.buffer, record=record, framing=framing)
    else:
        opened = FileSource(source, record=record, framing=framing)
    try:
        while (chunk := opened.read()) is not None:
            for index, key in enumerate(chunk.source_keys.tolist()):
                yield chunk[index], key
    finally:
        opened.close()


def _open(destination: str, framing: Framing, stack: ExitStack) -> Any:
    """Return the function that appends one record to the destination."""
    from monolith.data.records.writer import RecordWriter

    if destination != _STANDARD:
        writer = stack.enter_context(RecordWriter(destination, framing=framing))
        return lambda payload, key: writer.write(payload, source=key)
    stream = sys.stdout.buffer
    stack.callback(stream.flush)
    return lambda payload, key: stream.write(framing.frame(payload, source=key))
