"""Transports of pulls and pushes: gRPC and the native data plane, with the same semantics.

A transport belongs to the instances of the servers at its creation; a restart of a server needs a new transport.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monolith import _native
from monolith.core.errors import RpcTimeout
from monolith.embedding.shard_map import divide
from monolith.embedding.store import Ids, Rows
from monolith.ps import messages
from monolith.ps.fan_out import call_all
from monolith.ps.fused import PushedRecord, PushPart, decode_rows, encode_pull, encode_push
from monolith.ps.link import Greeting, ServerLink

__all__ = ["DataPlaneTransport", "GrpcTransport", "Push", "TablePush", "Transport", "data_plane_addresses"]


@dataclass(frozen=True, slots=True)
class TablePush:
    """Push to one table: unique ids, a gradient and a count per id, a rate per slice."""

    ids: Ids
    grads: Rows
    counts: NDArray[np.uint32]
    rates: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """One push of one client; servers apply it once, however often it is sent."""

    client: int
    sequence: int
    time_s: int
    step: int
    tables: Mapping[int, TablePush]
    """By table number."""
    record: PushedRecord | None = None


class Transport(Protocol):
    """Sends pulls and pushes; tables are numbered. Failures are ``MonolithError`` with a reliable ``retryable``."""

    name: str
    """Display name: grpc or data_plane."""

    def pull(self, ids: Mapping[int, Ids], timeout_s: float) -> dict[int, Rows]:
        """Return one row per id, all or none."""
        ...

    def push(self, push: Push, timeout_s: float) -> None:
        """Apply gradients at all servers; after an error, resend the same push."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class GrpcTransport:
    """Fused calls over the servers' gRPC."""

    name = "grpc"

    def __init__(
        self,
        links: Sequence[ServerLink],
        greetings: Sequence[Greeting],
        dims: Sequence[int],
        *,
        half: frozenset[int] = frozenset(),
    ) -> None:
        self._links = links
        self._instances = [greeting.instance for greeting in greetings]
        self._dims = dims
        self._half = half

    def pull(self, ids: Mapping[int, Ids], timeout_s: float) -> dict[int, Rows]:
        """Return one row per id, all or none."""
        divisions = {number: divide(keys, len(self._links)) for number, keys in ids.items()}
        half = ids.keys() <= self._half
        requests, tables_of = {}, {}
        for server in range(len(self._links)):
            tables = [(number, one.parts[server]) for number, one in divisions.items() if len(one.parts[server])]
            if tables:
                tables_of[server] = tables
                requests[server] = self._request(server, encode_pull(tables), timeout_s, half)
        responses = call_all(self._links, "FusedPull", requests, timeout_s)
        rows = {number: np.empty((len(keys), self._dims[number]), np.float32) for number, keys in ids.items()}
        for server, tables in tables_of.items():
            shapes = [(len(part), self._dims[number]) for number, part in tables]
            blocks = decode_rows(responses[server].payload, shapes, half=half)
            for (number, _), part in zip(tables, blocks, strict=True):
                rows[number][divisions[number].places[server]] = part
        return rows

    def push(self, push: Push, timeout_s: float) -> None:
        """Apply gradients at all servers; a server without any of the ids still gets the time and the step."""
        divisions = {number: divide(table.ids, len(self._links)) for number, table in push.tables.items()}
        half = push.tables.keys() <= self._half
        requests = {}
        for server in range(len(self._links)):
            parts = []
            for number, table in push.tables.items():
                places = divisions[number].places[server]
                ids, grads, counts = table.ids[places], table.grads[places], table.counts[places]
                parts.append(PushPart(number, ids, grads, counts, table.rates))
            payload = encode_push(
                push.client,
                push.sequence,
                push.time_s,
                push.step,
                parts,
                half=half,
                record=push.record if server == 0 else None,
            )
            requests[server] = self._request(server, payload, timeout_s, half)
        call_all(self._links, "FusedPush", requests, timeout_s)

    def _request(self, server: int, payload: bytes, timeout_s: float, half: bool) -> messages.FusedRequest:
        return messages.FusedRequest(
            payload=payload,
            half=half,
            timeout_ms=_milliseconds(timeout_s),
            instance=self._instances[server],
        )

    def close(self) -> None:
        """Do nothing: the store owns the links."""


class DataPlaneTransport:
    """Frames over Unix sockets or TCP; no Python on the path.

    Args:
        greetings: Greeting of each server, by index.
        addresses: Data-plane address of each server.
        names: Names of the tables, by number.
        dims: Their columns.
        half: Numbers of the tables whose rows and gradients travel as float16. A call with other tables is exact.
        timeout_s: Timeout of connecting.
    """

    name = "data_plane"

    def __init__(
        self,
        greetings: Sequence[Greeting],
        addresses: Sequence[str],
        names: Sequence[str],
        dims: Sequence[int],
        *,
        half: frozenset[int] = frozenset(),
        timeout_s: float,
    ) -> None:
        self._dims = dims
        self._half = half
        tables_hash = _native.ps_tables_hash(list(names), list(dims))
        self._connections = [
            _native.PsConnection(
                address,
                greeting.token,
                _milliseconds(timeout_s),
                shard=greeting.index,
                shards=greeting.shards,
                tables_hash=tables_hash,
            )
            for greeting, address in zip(greetings, addresses, strict=True)
        ]
        self._fan_out = _native.PsFanOut(self._connections, list(dims))

    def pull(self, ids: Mapping[int, Ids], timeout_s: float) -> dict[int, Rows]:
        """Return one row per id, all or none."""
        rows = {number: np.empty((len(keys), self._dims[number]), np.float32) for number, keys in ids.items()}
        tables = range(len(self._dims))
        self._fan_out.pull(
            [ids.get(number) for number in tables],
            [rows.get(number) for number in tables],
            half=ids.keys() <= self._half,
            timeout_ms=_milliseconds(timeout_s),
        )
        return rows

    def push(self, push: Push, timeout_s: float) -> None:
        """Apply gradients at all servers; a server without any of the ids still gets the time and the step."""
        record = push.record
        tables = [push.tables.get(number) for number in range(len(self._dims))]
        self._fan_out.push(
            [None if table is None else table.ids for table in tables],
            [None if table is None else table.grads for table in tables],
            [None if table is None else table.counts for table in tables],
            [None if table is None else table.rates for table in tables],
            client=push.client,
            sequence=push.sequence,
            time_s=push.time_s,
            step=push.step,
            half=push.tables.keys() <= self._half,
            timeout_ms=_milliseconds(timeout_s),
            job_record=None if record is None else (record.key, record.revision, record.value),
        )

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()


def data_plane_addresses(greetings: Sequence[Greeting]) -> list[str] | None:
    """Return one address per server, preferring a local Unix socket; None if a server offers no data plane."""
    chosen = []
    for greeting in greetings:
        local = [one for one in greeting.data_plane if one.startswith("unix:") and os.path.exists(one[5:])]
        remote = [one for one in greeting.data_plane if one.startswith("tcp:")]
        if not (local or remote):
            return None
        chosen.append((local or remote)[0])
    return chosen


def _milliseconds(timeout_s: float) -> int:
    if timeout_s <= 0:
        raise RpcTimeout("the deadline passed before the call was sent")
    return max(1, int(min(timeout_s * 1000, (1 << 31) - 1)))
