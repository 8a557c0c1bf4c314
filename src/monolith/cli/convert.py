"""``monolith convert``: converts sparse checkpoints of the original to snapshots, and back."""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.compat.entry_dump.dump import Progress
    from monolith.embedding import Table
    from monolith.embedding.specs import TableSpec

__all__ = ["register"]

logger = logging.getLogger(__name__)

_EPILOG = (
    "Example: monolith convert --to snapshot --spec user.json model.ckpt-100.assets/MonolithHashTable_user_0 user.snap"
    "    All parts: monolith convert --to snapshot --multi --spec tables.json model.ckpt-100.assets tables.snap"
)


class ConvertTarget(StrEnum):
    """The format to write."""

    SNAPSHOT = "snapshot"
    ENTRY_DUMP = "entry-dump"


def register(app: typer.Typer) -> None:
    """Add ``convert`` to the program."""
    app.command("convert", epilog=_EPILOG)(convert)


def convert(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Snapshot folder to read; or EntryDump files: their path before '-00000-of-00001', one path per "
            "parameter server, or with --multi the folder that has them all."
        ),
    ],
    destination: Annotated[
        Path, typer.Argument(help="Snapshot folder to write, or EntryDump files: their path before '-00000-of-00001'.")
    ],
    to: Annotated[ConvertTarget, typer.Option(help="Format to write.")],
    spec: Annotated[
        list[Path] | None,
        typer.Option(help="JSON file of one TableSpec (TableSpec.to_json) or a list of them; for --to snapshot."),
    ] = None,
    multi: Annotated[
        bool, typer.Option("--multi", help="Convert multi-table files of the original, or a MultiTable.")
    ] = False,
    shards: Annotated[
        int | None, typer.Option(min=1, help="Number of files to write; default: by the number of rows.")
    ] = None,
    allow_missing_state: Annotated[
        bool, typer.Option("--allow-missing-state", help="Initialize optimizer state that the records lack.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing DESTINATION.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")] = False,
) -> None:
    """Convert a sparse checkpoint of the original (EntryDump files) to a snapshot, or a snapshot to EntryDump files."""
    specs = _read_specs(spec or [], to, multi)
    if to is ConvertTarget.ENTRY_DUMP and len(sources) > 1:
        raise ConfigError(f"SOURCE is {len(sources)} paths, expected one snapshot for --to entry-dump")
    source = sources[0]
    with _progress(f"{source.name} to {to.value}") as progress:
        if to is ConvertTarget.SNAPSHOT:
            if destination.exists() and not overwrite:
                raise ConfigError(f"destination '{destination}' exists, expected a new path; or add --overwrite")
            rows = _to_snapshot(sources, destination, specs, multi, shards, allow_missing_state, progress)
        else:
            rows = _to_entry_dump(source, destination, multi, shards, overwrite, progress)
    if as_json:
        typer.echo(json.dumps({"to": to.value, "destination": str(destination), "rows": rows}))
    else:
        for table, count in rows.items():
            typer.echo(f"{table}: {count:,} rows")


def _read_specs(paths: list[Path], to: ConvertTarget, multi: bool) -> list[TableSpec]:
    from monolith.embedding.specs import TableSpec

    if to is ConvertTarget.ENTRY_DUMP:
        if paths:
            raise ConfigError(
                "--spec is given with --to entry-dump, but a snapshot contains its specs; leave --spec out"
            )
        return []
    specs = []
    for path in paths:
        try:
            content = json.loads(path.read_text())
        except (OSError, ValueError) as exc:
            raise ConfigError(f"--spec '{path}' cannot be read ({exc}); give the JSON of a TableSpec") from exc
        specs += [
            TableSpec.from_json(json.dumps(each)) for each in (content if isinstance(content, list) else [content])
        ]
    if not specs or (len(specs) > 1 and not multi):
        rule = "at least one" if multi else "exactly one"
        raise ConfigError(f"--spec gives {len(specs)} tables, expected {rule} for --to snapshot")
    return specs


def _to_snapshot(
    sources: list[Path],
    destination: Path,
    specs: list[TableSpec],
    multi: bool,
    shards: int | None,
    allow_missing_state: bool,
    progress: Progress,
) -> dict[str, int]:
    from monolith.compat.entry_dump.convert import entry_dump_to_table, restore_multi_entry_dump
    from monolith.compat.entry_dump.shard_files import find_basenames
    from monolith.embedding import MultiTable

    if not multi:
        for path in sources:
            if any(path.parent.glob(f"{glob.escape(path.name)}.meta-*-of-*")):
                raise ConfigError(f"SOURCE '{path}' has .meta files, expected files of a single table; add --multi")
        table = entry_dump_to_table(sources, specs[0], allow_missing_state=allow_missing_state, progress=progress)
        table.save(destination, shards=shards)
        return _saved_rows(destination, {table.spec.name: table})
    basenames = [name for path in sources for name in (find_basenames(path) if path.is_dir() else [path])]
    tables = MultiTable(specs)
    by_name = {name: tables[name] for name in tables}
    restore_multi_entry_dump(basenames, by_name, allow_missing_state=allow_missing_state, progress=progress)
    tables.save(destination, shards=shards)
    return _saved_rows(destination, by_name)


def _saved_rows(destination: Path, tables: Mapping[str, Table]) -> dict[str, int]:
    """Return the rows of a new snapshot by table, and log a warning for the expired rows, which a save leaves out."""
    from monolith.embedding.snapshot import read_manifest

    rows = {saved.name: saved.rows for saved in read_manifest(destination)}
    for name, count in rows.items():
        if count < len(tables[name]):
            logger.warning("expired rows left out table=%s rows=%d", name, len(tables[name]) - count)
    return rows


def _to_entry_dump(
    source: Path, destination: Path, multi: bool, shards: int | None, overwrite: bool, progress: Progress
) -> dict[str, int]:
    from monolith.compat.entry_dump.convert import table_to_entry_dump, tables_to_multi_entry_dump
    from monolith.embedding import MultiTable, Table
    from monolith.embedding.snapshot import read_manifest

    if multi:
        saved = MultiTable.load(source)
        destination.parent.mkdir(parents=True, exist_ok=True)
        tables = {name: saved[name] for name in saved}
        return tables_to_multi_entry_dump(tables, destination, shards=shards, overwrite=overwrite, progress=progress)
    if len(saved_tables := read_manifest(source)) != 1:
        names = ", ".join(saved.name for saved in saved_tables)
        raise ConfigError(f"SOURCE '{source}' has {len(saved_tables)} tables ({names}), expected one; add --multi")
    table = Table.load(source)
    destination.parent.mkdir(parents=True, exist_ok=True)
    written = table_to_entry_dump(table, destination, shards=shards, overwrite=overwrite, progress=progress)
    return {table.spec.name: written}


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """Yield a callback that moves a progress bar on a terminal; elsewhere it does nothing."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
