"""The two gRPC services of a parameter server: parse requests, call the tables, build responses.

``server`` starts and stops the process; the native shard implements pull and push. Handlers run in the threads of
gRPC's pool.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from monolith import _native
from monolith.artifacts.delta_log import LogPosition
from monolith.core.clock import Clock, Deadline
from monolith.core.errors import ConfigError, RpcTimeout, ShardUnavailable
from monolith.ps import messages
from monolith.ps.agreement import decode_specs
from monolith.ps.barrier import Barriers
from monolith.ps.cuts import PendingCut
from monolith.ps.health import ServerHealth
from monolith.ps.job_records import decode_records, key_of
from monolith.ps.single_table import ReplyBudget, SingleTableCalls
from monolith.ps.tables import FlushedLog, ShardTables
from monolith.rpc import grpc
from monolith.telemetry.histogram import CallMetrics

__all__ = ["DataPlaneOffer", "Drain", "PsService"]

T = TypeVar("T")

_MOST_TIMEOUT_S = 1e9
"""A call with a longer timeout has no deadline: gRPC reports 9e18 s for none, which no native deadline can hold."""

DataPlaneOffer = Callable[[_native.PsShard], tuple[list[str], bytes]]
"""Returns the data-plane addresses of a shard, and their token."""


class Drain:
    """Counts calls that read or change rows, and refuses further calls once draining."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._under_way = 0
        self.is_on = False
        """Whether new calls are refused."""

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count the block as a call.

        Raises:
            ShardUnavailable: The server is draining.
        """
        with self._changed:
            if self.is_on:
                raise ShardUnavailable("the server is draining and refuses calls")
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    def begin(self) -> None:
        """Refuse new calls, and wait for calls under way."""
        with self._changed:
            self.is_on = True
            self._changed.wait_for(lambda: self._under_way == 0)


class PsService:
    """Handles the calls of both services.

    Args:
        tables: Tables of the server.
        offer: Returns the data plane of the tables.
        end_data_plane: Closes the data plane.
        cut: The pending cut.
        health: Health of the server.
        drain: Counts and refuses calls.
        clock: Measures deadlines and durations.
        default_dim: Columns of undeclared tables.
        max_barrier_waiters: Limit of waiters at barriers.
        max_message_bytes: Limit of one response; a larger one is refused before its rows are read.
    """

    def __init__(
        self,
        tables: ShardTables,
        *,
        offer: DataPlaneOffer,
        end_data_plane: Callable[[], None],
        cut: PendingCut,
        health: ServerHealth,
        drain: Drain,
        clock: Clock,
        default_dim: int,
        max_barrier_waiters: int,
        max_message_bytes: int,
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._tables = tables
        self._offer = offer
        self._end_data_plane = end_data_plane
        self._cut = cut
        self._health = health
        self._drain = drain
        self._clock = clock
        self._single = SingleTableCalls(tables, default_dim)
        self.barriers = Barriers(max_barrier_waiters, clock)
        """Barriers of the workers."""
        self.on_shutdown: Callable[[str], None] | None = None
        """Called with the reason when the chief of a job ends this server; None = not a server of a job."""
        self.call_metrics = CallMetrics(clock)
        """Metrics of calls over gRPC."""

    def handlers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the handlers of both services, by the services' names."""
        training: dict[str, grpc.Handler] = {
            "Lookup": self._lookup,
            "ApplyGradients": self._apply_gradients,
            "Barrier": self._barrier,
            "HealthCheck": self._health_check,
            "GetStats": self._get_stats,
        }
        main: dict[str, grpc.Handler] = {
            "Connect": self._connect,
            "FusedPull": self._fused_pull,
            "FusedPush": self._fused_push,
            "GetJobState": self._get_job_state,
            "UpdateJobState": self._update_job_state,
            "BatchLookup": self._batch_lookup,
            "BatchApplyGradients": self._batch_apply_gradients,
            "Hold": self._hold,
            "Release": self._release,
            "Cut": self._take_cut,
            "DropCut": self._drop_cut,
            "Save": self._save,
            "Restore": self._restore,
            "FlushDeltas": self._flush_deltas,
            "CompactDeltas": self._compact_deltas,
            "Explain": self._explain,
            "Evict": self._evict,
            "Delete": self._delete,
            "Drain": self._begin_drain,
            "Shutdown": self._shutdown,
        }
        return {
            messages.TRAINING_SERVICE: grpc.method_handlers(messages.TRAINING_METHODS, self._measure(training)),
            messages.SERVICE: grpc.method_handlers(messages.METHODS, self._measure(main)),
        }

    def _measure(self, handlers: Mapping[str, grpc.Handler]) -> dict[str, grpc.Handler]:
        def measured(verb: str, answer: grpc.Handler) -> grpc.Handler:
            def call(request: Any, context: Any) -> Any:
                with self.call_metrics.call(verb) as outcome:
                    response = answer(request, context)
                    outcome.has_failed = getattr(response, "status_code", 0) != 0
                    return response

            return call

        return {verb: measured(verb, answer) for verb, answer in handlers.items()}

    def _deadline(self, context: Any, timeout_ms: int) -> Deadline:
        if timeout_ms < 0:
            raise ConfigError(f"timeout_ms is {timeout_ms}; give a number above 0, or 0 for none")
        limits = [context.time_remaining(), timeout_ms / 1000 if timeout_ms else None]
        bounds = [limit for limit in limits if limit is not None and limit <= _MOST_TIMEOUT_S]
        return Deadline(self._clock, max(0.0, min(bounds)) if bounds else None)

    # --- single tables ---

    def _lookup(self, request: messages.LookupRequest, context: Any) -> messages.LookupResponse:
        with self._drain.call():
            budget = ReplyBudget(self._max_message_bytes)
            return self._single.lookup(request, self._deadline(context, request.timeout_ms), budget)

    def _apply_gradients(
        self, request: messages.ApplyGradientsRequest, context: Any
    ) -> messages.ApplyGradientsResponse:
        with self._drain.call():
            return self._single.apply(request, self._deadline(context, request.timeout_ms))

    def _batch_lookup(self, request: messages.BatchLookupRequest, context: Any) -> messages.BatchLookupResponse:
        budget = ReplyBudget(self._max_message_bytes)  # of all answers together

        def lookup(one: messages.LookupRequest, context: Any) -> messages.LookupResponse:
            with self._drain.call():
                return self._single.lookup(one, self._deadline(context, one.timeout_ms), budget)

        return messages.BatchLookupResponse(
            responses=[_or_status(messages.LookupResponse, lookup, one, context) for one in request.requests]
        )

    def _batch_apply_gradients(
        self, request: messages.BatchApplyGradientsRequest, context: Any
    ) -> messages.BatchApplyGradientsResponse:
        return messages.BatchApplyGradientsResponse(
            responses=[
                _or_status(messages.ApplyGradientsResponse, self._apply_gradients, one, context)
                for one in request.requests
            ]
        )

    # --- barrier, health, metrics ---

    def _barrier(self, request: messages.BarrierRequest, context: Any) -> messages.BarrierResponse:
        result = self.barriers.wait(
            request.barrier_id, request.worker_id, request.num_workers, request.timeout_ms, grpc.on_cancel(context)
        )
        return messages.BarrierResponse(
            status_code=result.status, error_message=result.message, num_arrived=result.num_arrived
        )

    def _health_check(self, request: messages.HealthCheckRequest, context: Any) -> messages.HealthCheckResponse:
        state = self._health.of(request.component)
        return messages.HealthCheckResponse(
            status=state.status,
            message=state.message,
            uptime_seconds=self._health.uptime_s,
        )

    def _get_stats(self, request: messages.GetStatsRequest, context: Any) -> messages.GetStatsResponse:
        tables = self._tables.all
        calls = self.calls()
        lookups = _sum_calls(calls, "Lookup", "BatchLookup", "pull")
        updates = _sum_calls(calls, "ApplyGradients", "BatchApplyGradients", "push")
        return messages.GetStatsResponse(
            shard_id=self._tables.index,
            total_embeddings=sum(len(table) for table in tables),
            memory_bytes=sum(table.memory_bytes for table in tables),
            table_stats=[
                messages.TableStats(
                    name=table.spec.name,
                    num_embeddings=len(table),
                    dim_size=table.dim,
                    memory_bytes=table.memory_bytes,
                )
                for table in tables
                if request.include_table_stats
            ],
            lookup_count=lookups[0],
            apply_gradients_count=updates[0],
            avg_lookup_latency_us=_average(lookups),
            avg_apply_latency_us=_average(updates),
            delta_sequence=self._position.sequence,
        )

    def calls(self) -> Mapping[str, Mapping[str, Any]]:
        """Return metrics per call: those of gRPC by their names, and pull and push over any transport."""
        try:
            native = self._tables.shard.stats()
        except ShardUnavailable:
            native = {}
        return {**self.call_metrics.snapshot(), **{name: native[name] for name in ("pull", "push") if name in native}}

    # --- training ---

    def _connect(self, request: messages.ConnectRequest, context: Any) -> messages.ConnectResponse:
        if self._drain.is_on:
            raise ShardUnavailable("the server is draining and refuses clients")
        shard = self._tables.connect(decode_specs(request.tables), request.shards)
        addresses, token = self._offer(shard)
        return messages.ConnectResponse(
            instance=shard.instance,
            index=self._tables.index,
            shards=self._tables.shards,
            data_plane=addresses,
            data_plane_token=token,
            rows=self._tables.rows,
        )

    def _fused_pull(self, request: messages.FusedRequest, context: Any) -> messages.FusedResponse:
        with self._drain.call():
            pull = partial(
                self._tables.shard_of_instance(request.instance).pull, max_reply_bytes=self._max_message_bytes
            )
            return self._fused(pull, request, context)

    def _fused_push(self, request: messages.FusedRequest, context: Any) -> messages.FusedResponse:
        with self._drain.call():
            return self._fused(self._tables.shard_of_instance(request.instance).push, request, context)

    def _fused(
        self, call: Callable[..., bytes], request: messages.FusedRequest, context: Any
    ) -> messages.FusedResponse:
        remaining_s = self._deadline(context, request.timeout_ms).remaining_s()
        if remaining_s == 0:
            raise RpcTimeout("the deadline passed before the call started; nothing was changed")
        timeout_ms = None if remaining_s == float("inf") else max(1, int(remaining_s * 1000))
        return messages.FusedResponse(payload=call(request.payload, half=request.half, timeout_ms=timeout_ms))

    def _get_job_state(self, request: messages.GetJobStateRequest, context: Any) -> messages.GetJobStateResponse:
        with self._drain.call():
            shard = self._job_shard(request.instance)
            return messages.GetJobStateResponse(state=decode_records(shard.job_records()))

    def _update_job_state(
        self, request: messages.UpdateJobStateRequest, context: Any
    ) -> messages.UpdateJobStateResponse:
        with self._drain.call():
            shard, change = self._job_shard(request.instance), request.change
            if change.WhichOneof("value") is None:
                raise ConfigError("change is empty, expected a worker, a paused_session or a rendezvous")
            shard.put_job_record(key_of(change), request.client, request.revision, change.SerializeToString())
            return messages.UpdateJobStateResponse()

    def _job_shard(self, instance: int) -> _native.PsShard:
        if self._tables.index != 0:
            raise ConfigError(f"server is {self._tables.index}, expected 0, which has the job state; call server 0")
        return self._tables.shard_of_instance(instance)

    def _hold(self, request: messages.HoldRequest, context: Any) -> messages.HoldResponse:
        self._tables.shard_of_instance(request.instance)
        if not request.hold:
            raise ConfigError("hold is 0, expected a random number above 0")
        hold = self._cut.hold_for_flush if request.keeps_cut else self._cut.hold
        return messages.HoldResponse(marks=hold(request.hold))

    def _release(self, request: messages.ReleaseRequest, context: Any) -> messages.ReleaseResponse:
        self._cut.release(request.hold)
        return messages.ReleaseResponse()

    def _take_cut(self, request: messages.CutRequest, context: Any) -> messages.CutResponse:
        self._tables.shard_of_instance(request.instance)
        if not request.hold:
            return messages.CutResponse(cut=self._cut.take())
        cut = self._cut.take_under_hold(request.hold, _pushes(request.awaited), max(0, request.timeout_ms))
        return messages.CutResponse(cut=cut or 0)

    def _drop_cut(self, request: messages.DropCutRequest, context: Any) -> messages.DropCutResponse:
        self._cut.drop(request.cut)
        return messages.DropCutResponse()

    def _save(self, request: messages.SaveRequest, context: Any) -> messages.SaveResponse:
        entries, records = self._cut.save(request.cut, Path(request.path), request.generation)
        return messages.SaveResponse(
            tables=[json.dumps(entry) for entry in entries],
            job_state=decode_records(records) if records else None,
        )

    def _restore(self, request: messages.RestoreRequest, context: Any) -> messages.RestoreResponse:
        with self._cut.replacing_rows():
            if not request.path:
                self._tables.rewind()
                return messages.RestoreResponse()
            report = self._tables.restore(request.path)
        return messages.RestoreResponse(restored=report.restored, skipped=report.skipped, missing=report.missing)

    @property
    def _position(self) -> LogPosition:
        log = self._tables.log
        return (None if log is None else log.position) or LogPosition(0, 0)

    def _flush_deltas(self, request: messages.FlushDeltasRequest, context: Any) -> messages.FlushDeltasResponse:
        if request.instance or request.hold or request.table:
            self._tables.shard_of_instance(request.instance)
        if not request.hold and not request.table:
            if self._tables.log is not None:
                self._tables.log.flush()
            return messages.FlushDeltasResponse(sequence=self._position.sequence, log=self._position.log)
        flushed = self._flush_jointly(request)
        if flushed is None:
            return messages.FlushDeltasResponse(is_late=True)
        return messages.FlushDeltasResponse(
            sequence=flushed.position.sequence,
            log=flushed.position.log,
            ids=flushed.ids.astype("<i8", copy=False).tobytes(),
            rows=flushed.rows.astype("<f4", copy=False).tobytes(),
        )

    def _flush_jointly(self, request: messages.FlushDeltasRequest) -> FlushedLog | None:
        if not request.hold:
            return self._tables.flush(request.table)
        timeout_ms = max(0, request.timeout_ms)
        return self._cut.flush_under_hold(request.hold, _pushes(request.awaited), timeout_ms, request.table)

    def _compact_deltas(self, request: messages.CompactDeltasRequest, context: Any) -> messages.CompactDeltasResponse:
        log, position = self._tables.log, LogPosition(request.log, request.sequence)
        return messages.CompactDeltasResponse(segments=0 if log is None else log.compact(position))

    def _explain(self, request: messages.ExplainRequest, context: Any) -> messages.ExplainResponse:
        return messages.ExplainResponse(text=self._tables[request.table].explain(request.fid))

    def _evict(self, request: messages.EvictRequest, context: Any) -> messages.EvictResponse:
        return messages.EvictResponse(rows=self._tables.evict(request.now_s if request.HasField("now_s") else None))

    def _delete(self, request: messages.DeleteRequest, context: Any) -> messages.DeleteResponse:
        with self._drain.call():
            existed = self._tables.delete(request.table, np.asarray(request.fids, np.int64))
            return messages.DeleteResponse(existed=existed.tolist())

    def _begin_drain(self, request: messages.DrainRequest, context: Any) -> messages.DrainResponse:
        self._end_data_plane()
        self._drain.begin()
        return messages.DrainResponse(rows=self._tables.rows)

    def _shutdown(self, request: messages.ShutdownRequest, context: Any) -> messages.ShutdownResponse:
        if self.on_shutdown is None:
            return messages.ShutdownResponse(is_accepted=False)
        self.on_shutdown(request.reason)
        return messages.ShutdownResponse(is_accepted=True)


def _or_status(kind: Callable[..., T], answer: Callable[[Any, Any], T], request: Any, context: Any) -> T:
    """Return the response of an entry; its ConfigError does not fail the others."""
    try:
        return answer(request, context)
    except ConfigError as error:
        return kind(status_code=1, error_message=str(error))


def _pushes(names: Iterable[messages.PushName]) -> list[tuple[int, int]]:
    return [(push.client, push.sequence) for push in names]


def _sum_calls(calls: Mapping[str, Mapping[str, Any]], *names: str) -> tuple[int, int]:
    counted = [calls[name] for name in names if name in calls]
    return sum(one["count"] for one in counted), sum(one["sum_us"] for one in counted)


def _average(metrics: tuple[int, int]) -> int:
    count, sum_us = metrics
    return max(1, sum_us // count) if count else 0
