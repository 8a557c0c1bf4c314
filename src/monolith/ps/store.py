"""``RemoteStore``: the tables of a model on parameter servers, with the interface of local tables (``EmbeddingStore``).

It routes ids to servers, retries calls, and reconnects to servers that restart.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.artifacts.delta_log import LogPosition, position_in
from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError, ShardUnavailable
from monolith.core.retry import RetryPolicy, retry
from monolith.embedding.arguments import as_counts, as_ids, as_rates, as_rows, check_known, check_step, check_time
from monolith.embedding.multi_table import RestoreReport
from monolith.embedding.shard_map import shard_of
from monolith.embedding.snapshot import read_manifest
from monolith.embedding.specs import JOB_TABLES, TableSpec
from monolith.embedding.store import Ids, Manifest, Rows
from monolith.ps import messages
from monolith.ps.agreement import encode_specs
from monolith.ps.checkpoint import RemoteCut
from monolith.ps.fan_out import call_all
from monolith.ps.fused import PushedRecord
from monolith.ps.job_records import key_of
from monolith.ps.joint_cut import JointCut
from monolith.ps.link import MAX_MESSAGE_BYTES, Greeting, ServerLink
from monolith.ps.transport import (
    DataPlaneTransport,
    GrpcTransport,
    Push,
    TablePush,
    Transport,
    data_plane_addresses,
)
from monolith.rpc.security import Security

__all__ = ["RemoteStore", "Restart", "TransportName"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
TransportName: TypeAlias = Literal["auto", "grpc", "data_plane"]

RETRIES = RetryPolicy(attempts=10_000, initial_backoff_s=0.05, max_backoff_s=2.0, deadline_s=120.0)
"""How long a store retries calls to an unreachable server."""

_SILENT_S = 5.0
"""A server that restarts on the same machine answers earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A server that restarted while the store used it."""

    index: int
    address: str
    rows: int
    """Rows that it recovered; 0 if it recovered none."""


class RemoteStore:
    """An ``EmbeddingStore`` over parameter servers. Thread safe.

    A pull or push is one request per server, retried within ``retries``. A server applies each push once. A pull
    returns the rows of all servers, or raises.

    Args:
        addresses: gRPC addresses of all servers, in any order: each server knows its index.
        specs: The tables of the model.
        security: TLS and token of the servers.
        transport: ``"auto"`` uses the data plane if all servers offer it, and gRPC otherwise.
        half: Whether to send rows and gradients as float16: half the bytes, three digits. The state of a job, in tables
            whose names begin with ``JOB_TABLES``, is always exact.
        timeout_s: Timeout of one attempt of a call.
        save_timeout_s: Timeout of saving and restoring.
        retries: Backoff and total time of retries.
        connect_s: Total time of retries of the first connection; None = that of ``retries``.
        on_restart: Called when a server has restarted, before the store uses it; it may restore, or raise. Without it
            a server that restarts without its rows is an error.
        max_message_bytes: Limit of one request and one response.
        clock: Measures backoff and deadlines.

    Raises:
        ConfigError: A server is missing, or two servers have one index.
        SchemaMismatch: A server has other tables; the error names the field.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        specs: Iterable[TableSpec],
        *,
        security: Security | None = None,
        transport: TransportName = "auto",
        half: bool = False,
        timeout_s: float = 30.0,
        save_timeout_s: float = 3600.0,
        retries: RetryPolicy = RETRIES,
        connect_s: float | None = None,
        on_restart: Callable[[Restart], None] | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        clock: Clock | None = None,
    ) -> None:
        if not addresses:
            raise ConfigError("at least one PS address is required")
        if transport not in ("auto", "grpc", "data_plane"):
            raise ConfigError(f"transport is {transport!r}; choose 'auto', 'grpc' or 'data_plane'")
        ordered = sorted(specs, key=lambda spec: spec.name)
        self._specs = {spec.name: spec for spec in ordered}
        if len(self._specs) < len(ordered):
            raise ConfigError(f"the tables are {[spec.name for spec in ordered]}, expected distinct names")
        self._numbers = {name: number for number, name in enumerate(self._specs)}
        self._dims = [spec.dim for spec in ordered]
        self._encoded = encode_specs(ordered)
        self._wanted = transport
        exact = [name for name in self._specs if name.startswith(JOB_TABLES)]
        self._half = frozenset(number for name, number in self._numbers.items() if half and name not in exact)
        self._timeout_s = timeout_s
        self._save_timeout_s = save_timeout_s
        self._retries = retries
        self._on_restart = on_restart
        self._clock = clock or SystemClock()
        self._client = secrets.randbits(63)
        self._sequence = 0
        self._revision = 0
        self._is_waiting = False
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._links = [ServerLink(address, security, max_message_bytes) for address in addresses]
        try:
            connecting = retries if connect_s is None else replace(retries, deadline_s=connect_s)
            self._greetings = retry(connecting, lambda: self._greet(timeout_s), clock=self._clock)
            self._order_links()
            self._joint_cut = JointCut(self._links, self._clock)
            self._transport = self._open_transport()
        except BaseException:
            self._close_links()
            raise

    # --- EmbeddingStore ---

    @property
    def specs(self) -> Mapping[str, TableSpec]:
        """Name to spec, in sorted-name order."""
        return self._specs

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id; see ``EmbeddingStore.pull``."""
        keys_of = {self._number(name): as_ids(name, ids[name]) for name in sorted(ids)}
        present = {number: keys for number, keys in keys_of.items() if len(keys)}
        rows = self._retry(lambda transport, timeout_s: transport.pull(present, timeout_s)) if present else {}
        for number in keys_of.keys() - present.keys():
            rows[number] = np.empty((0, self._dims[number]), np.float32)
        return {name: rows[self._numbers[name]] for name in sorted(ids)}

    def push(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Rows],
        *,
        counts: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
        step: int = 0,
        job_change: messages.JobChange | None = None,
    ) -> None:
        """Take one optimizer step per id; see ``EmbeddingStore.push``.

        Args:
            ids: Ids per table.
            grads: A gradient per id.
            counts: Sightings per id.
            learning_rates: A rate per slice.
            time_s: Event time.
            step: Step of the training.
            job_change: Replaces a value of the job state at server 0, together with the rows of the push.
        """
        if ids.keys() != grads.keys():
            differing = ", ".join(sorted(ids.keys() ^ grads.keys()))
            raise ConfigError(f"ids and grads must name the same tables; these are in one only: {differing}")
        check_known("learning_rates", learning_rates, self._specs)
        check_known("counts", counts, self._specs)
        tables = {
            self._number(name): self._table_push(
                self._specs[name],
                as_ids(name, ids[name]),
                grads[name],
                (counts or {}).get(name),
                (learning_rates or {}).get(name),
                check_step(step),
            )
            for name in sorted(ids)
        }
        if not tables:
            return
        with self._lock:
            self._sequence += 1
            sequence = self._sequence
        push = Push(
            client=self._client,
            sequence=sequence,
            time_s=check_time(time_s),
            step=step,
            tables=tables,
            record=None if job_change is None else self._record(job_change),
        )
        self._retry(lambda transport, timeout_s: transport.push(push, timeout_s))

    def job_state(self) -> messages.JobState:
        """Return the state of the job, which server 0 has."""

        def get(transport: Transport, timeout_s: float) -> messages.JobState:
            request = messages.GetJobStateRequest(instance=self._greetings[0].instance)
            state: messages.JobState = self._links[0].call("GetJobState", request, timeout_s).state
            return state

        return self._retry(get)

    def update_job_state(self, change: messages.JobChange) -> None:
        """Replace a value of the job state. A repeated or delayed call does not undo a later change."""
        revision = self._record(change).revision

        def update(transport: Transport, timeout_s: float) -> None:
            instance = self._greetings[0].instance
            request = messages.UpdateJobStateRequest(
                instance=instance, change=change, client=self._client, revision=revision
            )
            self._links[0].call("UpdateJobState", request, timeout_s)

        self._retry(update)

    def _record(self, change: messages.JobChange) -> PushedRecord:
        with self._lock:
            self._revision += 1
            return PushedRecord(key_of(change), self._revision, change.SerializeToString())

    def snapshot(self, path: str | PathLike[str]) -> Manifest:
        """Write all tables to ``path``, a folder that all servers share; see ``EmbeddingStore.snapshot``."""
        return self.cut().write(path)

    def cut(self) -> RemoteCut:
        """Cut the tables of all servers at one consistent point; training continues while the cut is written.

        The cut has the same pushes of every worker on all servers. Pushes are delayed by some milliseconds.
        """

        def take(transport: Transport, timeout_s: float) -> dict[int, int]:
            return self._joint_cut.take(self._instances(), self._save_timeout_s)

        return RemoteCut(self._links, self._retry(take), self._specs, self._save_timeout_s)

    def restore(self, path: str | PathLike[str]) -> RestoreReport:
        """Replace all rows by a snapshot, of any number of servers or of local tables.

        Every server checks all files before it changes a row. If one server fails, repeat the restore.
        """
        return self._restore(path, range(len(self._links)))

    def restore_server(self, index: int, path: str | PathLike[str]) -> RestoreReport:
        """Restore the rows of one server, which has restarted, while the others continue; see ``restore``."""
        if not 0 <= index < len(self._links):
            raise ConfigError(f"invalid shard index: {index}")
        return self._restore(path, range(index, index + 1))

    def _restore(self, path: str | PathLike[str], servers: range) -> RestoreReport:
        return self._replace(str(Path(path).absolute()), servers)

    def rewind(self) -> None:
        """Roll all servers back to the snapshots that they recovered from; to empty tables without one."""
        self._replace("", range(len(self._links)))

    def _replace(self, path: str, servers: range) -> RestoreReport:
        request = messages.RestoreRequest(path=path)
        responses = call_all(self._links, "Restore", dict.fromkeys(servers, request), self._save_timeout_s)
        first = responses[servers[0]]
        return RestoreReport(restored=tuple(first.restored), skipped=tuple(first.skipped), missing=tuple(first.missing))

    # --- beyond EmbeddingStore ---

    @property
    def transport(self) -> str:
        """Name of the transport: grpc or data_plane."""
        return self._transport.name

    @property
    def addresses(self) -> tuple[str, ...]:
        """GRPC addresses of the servers, by index."""
        return tuple(link.address for link in self._links)

    def has_learnt(self) -> bool:
        """Return whether any server received a push since it started; recovered rows do not count."""
        requests = dict.fromkeys(range(len(self._links)), messages.GetStatsRequest())
        responses = call_all(self._links, "GetStats", requests, self._timeout_s)
        return any(response.apply_gradients_count for response in responses.values())

    def flush_deltas(self) -> tuple[int, ...]:
        """Flush the delta log of every server; return the newest segment of each, 0 without a log."""
        return tuple(position.sequence for position in self.flush_positions())

    def flush_positions(self) -> tuple[LogPosition, ...]:
        """Flush the delta log of every server; return log and segment of each.

        Raises:
            ShardUnavailable: A server is unreachable, or has restarted and may lack pushes that others have. The store
                calls ``on_restart``; retry.
        """
        transport = self._transport
        requests = {i: messages.FlushDeltasRequest(instance=instance) for i, instance in self._instances().items()}
        try:
            responses = call_all(self._links, "FlushDeltas", requests, self._save_timeout_s)
        except ClusterError as error:
            if error.retryable:
                self._reconnect(transport, self._timeout_s)
            raise
        return tuple(LogPosition(responses[index].log, responses[index].sequence) for index in sorted(responses))

    def flush_jointly(self, table: str) -> tuple[tuple[LogPosition, ...], Ids, Rows]:
        """Flush the delta logs of all servers at one consistent point, while workers push.

        The logs then have the same pushes of every worker. Pushes are delayed by some milliseconds.

        Args:
            table: The table whose rows at that point are returned, in any order.

        Returns:
            Position of each log, and ids and rows of the table.
        """
        dim = self._dims[self._number(table)]

        def flush(transport: Transport, timeout_s: float) -> dict[int, messages.FlushDeltasResponse]:
            return self._joint_cut.flush(self._instances(), self._save_timeout_s, table)

        responses = [response for _, response in sorted(self._retry(flush).items())]
        return (
            tuple(LogPosition(response.log, response.sequence) for response in responses),
            np.concatenate([np.frombuffer(response.ids, "<i8") for response in responses]),
            np.concatenate([np.frombuffer(response.rows, "<f4").reshape(-1, dim) for response in responses]),
        )

    def compact_deltas(self, path: str | PathLike[str]) -> int:
        """Remove the segments of all delta logs that a snapshot contains; return their number.

        Call it once the snapshot is durable and is the one to recover from.
        """
        saved, shards = read_manifest(path), len(self._links)
        positions = {index: position_in(saved, index, shards) for index in range(shards)}
        requests = {
            index: messages.CompactDeltasRequest(log=position.log, sequence=position.sequence)
            for index, position in positions.items()
            if position is not None
        }
        responses = call_all(self._links, "CompactDeltas", requests, self._timeout_s)
        return sum(response.segments for response in responses.values())

    def evict(self, now_s: int | None = None) -> int:
        """Remove the expired rows of all tables; return their number."""
        request = messages.EvictRequest(now_s=now_s)
        requests = dict.fromkeys(range(len(self._links)), request)
        responses = call_all(self._links, "Evict", requests, self._save_timeout_s)
        return sum(response.rows for response in responses.values())

    def delete(self, ids: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.bool_]]:
        """Remove rows by table; return for each id whether it had a row."""
        return {table: self._delete(table, as_ids(table, given)) for table, given in ids.items()}

    def _delete(self, table: str, ids: Ids) -> NDArray[np.bool_]:
        self._number(table)
        shards = shard_of(ids, len(self._links))
        places = {int(index): np.flatnonzero(shards == index) for index in np.unique(shards)}
        requests = {
            index: messages.DeleteRequest(table=table, fids=ids[place].tolist()) for index, place in places.items()
        }
        existed = np.zeros(len(ids), np.bool_)
        for index, response in call_all(self._links, "Delete", requests, self._timeout_s).items():
            existed[places[index]] = response.existed
        return existed

    def explain(self, table: str, fid: int) -> str:
        """Return one sentence that explains why an id is present or absent."""
        self._number(table)
        ids = as_ids(table, [fid])
        index = int(shard_of(ids, len(self._links))[0])
        request = messages.ExplainRequest(table=table, fid=int(ids[0]))
        return str(self._links[index].call("Explain", request, self._timeout_s).text)

    def drain(self) -> None:
        """Stop pulls and pushes of all clients permanently; the servers can still save."""
        requests = {index: messages.DrainRequest() for index in range(len(self._links))}
        call_all(self._links, "Drain", requests, self._timeout_s)

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._transport.close()
        self._close_links()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- arguments ---

    def _number(self, table: str) -> int:
        try:
            return self._numbers[table]
        except KeyError:
            raise ConfigError(f"there is no table {table!r}; the tables are {', '.join(self._specs)}") from None

    def _table_push(
        self,
        spec: TableSpec,
        ids: Ids,
        grads: ArrayLike,
        counts: ArrayLike | None,
        rates: ArrayLike | None,
        step: int,
    ) -> TablePush:
        return TablePush(
            ids,
            as_rows(spec.name, "gradients", grads, len(ids), spec.dim),
            np.ones(len(ids), np.uint32) if counts is None else as_counts(spec.name, counts, len(ids)),
            as_rates(spec, rates, step),
        )

    # --- retries and reconnection ---

    def _retry(self, call: Callable[[Transport, float], T]) -> T:
        """Retry a call until it succeeds; reconnect to restarted servers between attempts.

        A call that has waited for ``_SILENT_S`` logs its error, once per outage.
        """
        deadline = Deadline(self._clock, self._retries.deadline_s)
        began_s = self._clock.monotonic_s()

        def attempt() -> T:
            transport = self._transport
            try:
                return call(transport, min(self._timeout_s, max(0.001, deadline.remaining_s())))
            except ClusterError as error:
                if not (error.retryable or _is_token_rejected(error)):
                    raise
                self._reconnect(transport, min(self._timeout_s, max(0.001, deadline.remaining_s())))
                raise ShardUnavailable(str(error)) from error

        def logged_attempt() -> T:
            try:
                result = attempt()
            except ClusterError as error:
                if error.retryable:
                    self._log_wait(self._clock.monotonic_s() - began_s, error)
                raise
            self._log_answer(self._clock.monotonic_s() - began_s)
            return result

        return retry(self._retries, logged_attempt, clock=self._clock)

    def _log_wait(self, waited_s: float, error: ClusterError) -> None:
        with self._lock:
            if self._is_waiting or waited_s < _SILENT_S:
                return
            self._is_waiting = True
        logger.warning("parameter servers do not answer, retrying waited_s=%.0f error=%s", waited_s, error)

    def _log_answer(self, waited_s: float) -> None:
        with self._lock:
            has_waited, self._is_waiting = self._is_waiting, False
        if has_waited:
            logger.info("parameter servers answer again waited_s=%.0f", waited_s)

    def _instances(self) -> dict[int, int]:
        return {index: greeting.instance for index, greeting in enumerate(self._greetings)}

    def _greet(self, timeout_s: float) -> list[Greeting]:
        request = messages.ConnectRequest(tables=self._encoded, shards=len(self._links))
        responses = call_all(self._links, "Connect", dict.fromkeys(range(len(self._links)), request), timeout_s)
        return [Greeting.read(responses[index]) for index in range(len(self._links))]

    def _order_links(self) -> None:
        pairs = sorted(zip(self._greetings, self._links, strict=True), key=lambda pair: pair[0].index)
        self._greetings, self._links = [one for one, _ in pairs], [link for _, link in pairs]
        if [greeting.index for greeting in self._greetings] != list(range(len(pairs))):
            indexes = ", ".join(f"{link.address} is {greeting.index}" for greeting, link in pairs)
            raise ConfigError(f"server indexes are wrong: {indexes}; expected 0 to {len(pairs) - 1}, each once")

    def _open_transport(self) -> Transport:
        transport = self._new_transport()
        self._opened = self._channels()
        return transport

    def _channels(self) -> list[tuple[int, tuple[str, ...]]]:
        """Return the part of each greeting that a transport depends on."""
        return [(greeting.instance, greeting.data_plane) for greeting in self._greetings]

    def _new_transport(self) -> Transport:
        addresses = None if self._wanted == "grpc" else data_plane_addresses(self._greetings)
        if addresses is None:
            if self._wanted == "data_plane":
                raise ConfigError("transport is 'data_plane', which not all servers offer; choose 'auto' or 'grpc'")
            return GrpcTransport(self._links, self._greetings, self._dims, half=self._half)
        return DataPlaneTransport(
            self._greetings, addresses, list(self._specs), self._dims, half=self._half, timeout_s=self._timeout_s
        )

    def _reconnect(self, failed: Transport, timeout_s: float) -> None:
        """Connect to all servers again; accept those that have restarted.

        Raises:
            ShardUnavailable: A server is unreachable; retry.
        """
        with self._connecting:
            if self._transport is not failed:
                return  # another thread has reconnected
            for index, new in enumerate(self._greet(timeout_s)):
                old = self._greetings[index]
                if new.index != index:
                    raise ConfigError(
                        f"{self._links[index].address} is server {new.index}, expected {index}; check the addresses"
                    )
                if new.instance != old.instance:
                    self._accept_restart(Restart(index=index, address=self._links[index].address, rows=new.rows))
                self._greetings[index] = new
            if self._channels() != self._opened:  # also if an earlier attempt to open a transport failed
                self._transport = self._open_transport()
                failed.close()

    def _accept_restart(self, restart: Restart) -> None:
        logger.warning(
            "parameter server restarted index=%d address=%s rows=%d",
            restart.index,
            restart.address,
            restart.rows,
        )
        if self._on_restart is not None:
            self._on_restart(restart)
        elif restart.rows == 0 and self._sequence:
            raise ClusterError(
                f"server {restart.index} at {restart.address} has restarted without its rows; "
                "start it with --recover-from, or restore the last checkpoint"
            )

    def _close_links(self) -> None:
        for link in self._links:
            link.close()


def _is_token_rejected(error: ClusterError) -> bool:
    """Return whether a restarted server rejected our data-plane token; reconnecting fetches the new one."""
    return any(failure.kind == "refused" for failure in getattr(error, "failures", ()))
