"""Writes the serving tables of one shard of a snapshot; a separate process writes a large shard.

The exporting process holds torch and the traced model. A shard in another process adds nothing to that memory. The
process ends when the shard is written, so its memory returns to the system. Run as a program, this module reads a
request from standard input and prints the rows of each table, both as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from monolith.core.errors import ArtifactError
from monolith.embedding import MultiTable, TableSpec
from monolith.embedding.snapshot import read_manifest

__all__ = ["ShardRequest", "encode_specs", "write_shard"]

_OWN_PROCESS_ROWS = 1_000_000
"""Rows of a snapshot from which each shard is written by another process."""


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
    if sum(table.rows for table in read_manifest(request.snapshot)) < _OWN_PROCESS_ROWS:
        return _write(request)
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
