"""The state of a job on server 0: typed messages, kept as one record per value in the native shard.

A record is replaced as a whole: by ``UpdateJobState``, or by a push, with the rows of that push. The native shard keeps
records under the lock and the marks of pushes, so a cut, a segment of the delta log and a snapshot have the records
that belong to their rows. A record has the client and the revision of its last change; the shard ignores a change that
arrives again or late.

Snapshots of earlier releases have the job state as rows of a table; ``read_saved_state`` reads both forms.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from monolith._proto.messages import parse_bytes, parse_json, write_json
from monolith.embedding.snapshot import read_extra, read_manifest, spec_of
from monolith.embedding.specs import JOB_TABLES
from monolith.embedding.table import Table
from monolith.ps import messages

__all__ = [
    "JOB_STATE",
    "Record",
    "decode_logged_state",
    "decode_records",
    "encode_logged_state",
    "encode_state",
    "key_of",
    "new_records",
    "read_saved_state",
]

Record: TypeAlias = tuple[int, int, int, bytes]
"""Key, client, revision and encoded ``JobChange``, as the native shard has them."""

JOB_STATE = "job_state"
"""Key of the job state in the manifest of a snapshot."""

_PAUSE, _RENDEZVOUS, _FIRST_WORKER = 0, 1, 2
_HEAD = struct.Struct("<I")
_LOGGED_VERSION = 2
"""Marks alone begin with 1, their own version."""

_OLD_TABLE = f"{JOB_TABLES}workers"
_OLD_PAUSE, _OLD_RENDEZVOUS = 1 << 40, (1 << 40) + 1
_OLD_HALF = 1 << 20
_OLD_PAUSED = 4


def key_of(change: messages.JobChange) -> int:
    """Return the key of the record that a change replaces."""
    if change.WhichOneof("value") == "worker":
        return _FIRST_WORKER + change.worker.index
    return _PAUSE if change.WhichOneof("value") == "paused_session" else _RENDEZVOUS


def decode_records(records: Iterable[Record]) -> messages.JobState:
    """Return the state of the job in records.

    Raises:
        RecordCorrupt: A record is invalid.
    """
    state = messages.JobState()
    for key, _, _, value in records:
        change = parse_bytes(messages.JobChange, value, f"job record {key}")
        kind = change.WhichOneof("value")
        if kind == "worker":
            state.workers[change.worker.index].CopyFrom(change.worker.entry)
        elif kind == "paused_session":
            state.paused_session = change.paused_session
        elif kind == "rendezvous":
            state.rendezvous.CopyFrom(change.rendezvous)
    return state


def new_records(state: messages.JobState | None) -> list[Record]:
    """Return the records of a saved state, which no live client has written."""
    return [] if state is None else [(key_of(one), 0, 0, one.SerializeToString()) for one in _changes(state)]


def _changes(state: messages.JobState) -> Iterator[messages.JobChange]:
    if state.paused_session:
        yield messages.JobChange(paused_session=state.paused_session)
    if state.HasField("rendezvous"):
        yield messages.JobChange(rendezvous=state.rendezvous)
    for index, entry in sorted(state.workers.items()):
        yield messages.JobChange(worker=messages.WorkerChange(index=index, entry=entry))


# --- delta log ---


def encode_logged_state(marks: bytes, records: Sequence[Record]) -> bytes:
    """Return the bytes of a segment that hold marks and records; without records, the marks alone."""
    if not records:
        return marks
    logged = messages.LoggedState(marks=marks)
    for _, client, revision, value in records:
        logged.records.add(change=messages.JobChange.FromString(value), client=client, revision=revision)
    return _HEAD.pack(_LOGGED_VERSION) + logged.SerializeToString()


def decode_logged_state(content: bytes) -> tuple[bytes, list[Record]]:
    """Return marks and records from the output of ``encode_logged_state``, or from marks alone.

    Raises:
        RecordCorrupt: The bytes are invalid.
    """
    if len(content) < _HEAD.size or _HEAD.unpack_from(content)[0] != _LOGGED_VERSION:
        return content, []
    logged = parse_bytes(messages.LoggedState, content[_HEAD.size :], "job state of the delta log")
    records = [(key_of(one.change), one.client, one.revision, one.change.SerializeToString()) for one in logged.records]
    return logged.marks, records


# --- snapshots ---


def encode_state(state: messages.JobState) -> dict[str, Any]:
    """Return the JSON form of a state, for the manifest of a snapshot."""
    return write_json(state)


def read_saved_state(path: str | PathLike[str]) -> messages.JobState | None:
    """Return the job state of a snapshot; None without one.

    Raises:
        SnapshotCorrupt: There is no valid snapshot.
        RecordCorrupt: The job state in it is invalid.
    """
    encoded = read_extra(path).get(JOB_STATE)
    if encoded is None:
        return _read_old_rows(path)
    return parse_json(messages.JobState, encoded, f"'{path}': {JOB_STATE}")


def _read_old_rows(path: str | PathLike[str]) -> messages.JobState | None:
    """Return the job state that an earlier release saved as rows: four floats per value, by the id of the value."""
    saved = next((table for table in read_manifest(path) if table.name == _OLD_TABLE), None)
    if saved is None:
        return None
    table = Table(spec_of(saved))
    table.restore(path)
    state = messages.JobState()
    for ids, rows in table.items():
        for key, row in zip(ids.tolist(), np.maximum(rows, 0).astype(np.int64).tolist(), strict=True):
            first, session, low, high = row
            if key == _OLD_PAUSE:
                state.paused_session = session if first == _OLD_PAUSED else 0
            elif key == _OLD_RENDEZVOUS:
                point = messages.Rendezvous(session=session, generation=low, port=high, is_over=bool(first))
                state.rendezvous.CopyFrom(point)
            else:
                entry = messages.WorkerEntry(phase=first, session=session, steps=low + high * _OLD_HALF)
                state.workers[key].CopyFrom(entry)
    return state
