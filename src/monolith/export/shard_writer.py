"""Writes the serving tables of one shard of a snapshot; a separate process writes a large shard.

The exporting process holds torch and the traced model. A shard in another process adds nothing to that memory. The
process ends when the shard is written, so its memory returns to the system. Run as a program, this module reads a
request from standard input and prints the rows of each table, both as JSON.

``write_ahead`` writes the shards of a large snapshot before the caller imports torch, so that the two large processes
are never alive together. ``write_shard`` then takes the files, if the request is the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from monolith.core.errors import ArtifactError
from monolith.embedding import MultiTable, TableSpec
from monolith.embedding.snapshot import read_manifest, spec_of
from monolith.embedding.specs import JOB_TABLES

__all__ = ["ShardRequest", "encode_specs", "write_ahead", "write_shard"]

_OWN_PROCESS_ROWS = 1_000_000
"""Rows of a snapshot from which each shard is written by another process."""
_ahead: dict[str, tuple[Path, dict[str, int]]] = {}
"""Shards that ``write_ahead`` wrote: files and rows by ``_key``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRequest:
    """One shard to write. Plain values."""

    snapshot: str
    """Folder of the snapshot."""
    target: str
    """Folder of the images."""
    shard: tuple[int, int]
    specs: tuple[str, ...]
    """Specs of the model's tables, as JSON."""
    skip_zero_rows: bool = False
    full_precision: bool = False


def encode_specs(specs: Iterable[TableSpec]) -> tuple[str, ...]:
    """Return specs as JSON, without learning rates: some are functions, and serving needs none."""
    return tuple(
        replace(spec, slices=[replace(piece, learning_rate=None) for piece in spec.slices]).to_json() for spec in specs
    )


def write_shard(request: ShardRequest) -> dict[str, int]:
    """Write the images of one shard; return the rows of each table.

    Raises:
        ArtifactError: The snapshot is damaged, or the process that writes a large shard failed.
    """
    written = _ahead.pop(_key(request), None)
    if written is not None:
        folder, rows = written
        Path(request.target).parent.mkdir(parents=True, exist_ok=True)
        folder.rename(request.target)
        return rows
    if not _is_large(request.snapshot):
        return _write(request)
    return _write_elsewhere(request)


@contextmanager
def write_ahead(snapshot: Path, scratch: Path, shards: int, **options: bool) -> Iterator[None]:
    """Write the shards of a large snapshot with the specs that it was saved with; ``write_shard`` takes them.

    Files that no request takes, because the model has changed since, are removed at the end. Used by one thread.

    Args:
        snapshot: Folder of the snapshot.
        scratch: Existing folder on the file system of the export.
        shards: Number of shards.
        options: ``skip_zero_rows`` and ``full_precision`` of the requests.
    """
    saved = [table for table in read_manifest(snapshot) if not table.name.startswith(JOB_TABLES)]
    if not _is_large(snapshot) or any(table.spec is None for table in saved):
        yield
        return
    specs = encode_specs(spec_of(table) for table in sorted(saved, key=lambda table: table.name))
    with tempfile.TemporaryDirectory(prefix=".shards-", dir=scratch) as folder:
        try:
            for index in range(shards):
                request = ShardRequest(
                    snapshot=str(snapshot),
                    target=f"{folder}/{index}",
                    shard=(index, shards),
                    specs=specs,
                    **options,
                )
                _ahead[_key(request)] = Path(request.target), _write_elsewhere(request)
            yield
        finally:
            _ahead.clear()


def _is_large(snapshot: str | Path) -> bool:
    return sum(table.rows for table in read_manifest(snapshot)) >= _OWN_PROCESS_ROWS


def _key(request: ShardRequest) -> str:
    """Return a text that is equal for requests with equal files: settings of training alone do not count."""
    served = []
    for text in request.specs:
        spec = TableSpec.from_json(text).for_serving(request.full_precision)
        seed = spec.seed if spec.on_miss == "initial" else 0
        plain = replace(
            spec, seed=seed, deterministic=False, max_bytes=None, nan_gradients="skip", touched_capacity=None
        )
        served.append(plain.to_json())
    return json.dumps(
        {**asdict(request), "snapshot": os.path.realpath(request.snapshot), "target": "", "specs": served}
    )


def _write_elsewhere(request: ShardRequest) -> dict[str, int]:
    """Write a shard in another process."""
    command = [sys.executable, "-m", "monolith.export.shard_writer"]
    done = subprocess.run(command, input=json.dumps(asdict(request)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise ArtifactError(f"shard {request.shard} of '{request.snapshot}' was not written: {reason[0]}")
    rows: dict[str, int] = json.loads(done.stdout)
    return rows


def _write(request: ShardRequest) -> dict[str, int]:
    tables = MultiTable.load_serving(
        request.snapshot,
        specs=[TableSpec.from_json(spec) for spec in request.specs],
        shard=request.shard,
        skip_zero_rows=request.skip_zero_rows,
        full_precision=request.full_precision,
    )
    tables.save_images(Path(request.target))
    return {name: len(tables[name]) for name in tables}


def _main() -> None:
    body = json.loads(sys.stdin.read())
    request = ShardRequest(**{**body, "shard": tuple(body["shard"]), "specs": tuple(body["specs"])})
    print(json.dumps(_write(request)))


if __name__ == "__main__":
    _main()
