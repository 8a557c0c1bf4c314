"""``PsClient``: single-table calls, barriers, health and statistics of all servers.

A model trains through ``RemoteStore``; this client is for tools, tests, and programs that know tables by name and width
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.core.errors import ClusterError, ConfigError, DimensionMismatch, MonolithError, RpcTimeout
from monolith.embedding.arguments import as_ids
from monolith.embedding.shard_map import Division, deduplicate, divide
from monolith.embedding.store import Ids, Rows
from monolith.ps import messages
from monolith.ps.barrier import CANCELLED, OK
from monolith.ps.fan_out import call_all
from monolith.ps.link import MAX_MESSAGE_BYTES, ServerLink
from monolith.rpc.security import Security

__all__ = ["ApplyResult", "GradientEntry", "LookupEntry", "LookupResult", "PsClient"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupEntry:
    """One lookup of a batch."""

    table: str
    fids: ArrayLike
    dim_size: int
    create_if_missing: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientEntry:
    """One update of a batch."""

    table: str
    fids: ArrayLike
    gradients: ArrayLike
    """One row per id; rows of equal ids are summed."""
    learning_rate: float
    global_step: int = 0


def _no_rows() -> Rows:
    return np.empty((0, 0), np.float32)


def _no_flags() -> NDArray[np.bool_]:
    return np.empty(0, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupResult:
    """The rows of the caller's ids, in the caller's order."""

    rows: Rows = field(default_factory=_no_rows)
    found: NDArray[np.bool_] = field(default_factory=_no_flags)
    """Per id: whether it had a row before the call."""
    num_found: int = 0
    num_initialized: int = 0
    """Rows that the call created."""
    status: int = 0
    """0, or 1 for an entry of a batch that failed."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyResult:
    """Result of an update, counted over distinct ids."""

    num_updated: int = 0
    num_not_found: int = 0
    status: int = 0
    """0, or 1 for an entry of a batch that failed."""
    message: str = ""


class PsClient:
    """Calls all servers of a job. Thread safe.

    Args:
        addresses: gRPC addresses, by index of the server.
        security: TLS and token.
        timeout_s: Timeout of a call.

    Raises:
        ConfigError: ``addresses`` is empty.
        ClusterError: A server cannot be reached.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        security: Security | None = None,
        timeout_s: float = 30.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        if not addresses:
            raise ConfigError("at least one PS address is required")
        self._timeout_s = timeout_s
        self._links = [ServerLink(address, security, max_message_bytes) for address in addresses]
        try:
            for link in self._links:
                _check_reachable(link, timeout_s)
        except BaseException:
            self.close()
            raise

    # --- tables ---

    def lookup(self, table: str, fids: ArrayLike, dim_size: int, *, create_if_missing: bool = True) -> Rows:
        """Return one row per id. Shapes: (N, dim_size)."""
        return self.lookup_detailed(table, fids, dim_size, create_if_missing=create_if_missing).rows

    def lookup_detailed(
        self, table: str, fids: ArrayLike, dim_size: int, *, create_if_missing: bool = True
    ) -> LookupResult:
        """Return rows, and which of them existed; counts are over the caller's list.

        Raises:
            ClusterError: A server is unreachable, or refused; the error names it.
        """
        lookup = _Lookup(
            LookupEntry(table=table, fids=fids, dim_size=dim_size, create_if_missing=create_if_missing),
            self._required(),
        )
        requests = {server: lookup.request(server, self._timeout_ms) for server in lookup.servers}
        answers = call_all(self._links, "Lookup", requests, self._timeout_s)
        self._check_status(answers)
        return lookup.result(answers)

    def apply_gradients(
        self, table: str, fids: ArrayLike, gradients: ArrayLike, learning_rate: float, *, global_step: int = 0
    ) -> tuple[int, int]:
        """Update ids that have a row; gradients of equal ids are summed first.

        Returns:
            Number of distinct ids that were updated, and of ids without a row.

        Raises:
            ClusterError: A server is unreachable, or refused; other servers may have applied their part.
        """
        update = _Update(
            GradientEntry(
                table=table, fids=fids, gradients=gradients, learning_rate=learning_rate, global_step=global_step
            ),
            self._required(),
        )
        requests = {server: update.request(server, self._timeout_ms) for server in update.servers}
        answers = call_all(self._links, "ApplyGradients", requests, self._timeout_s)
        self._check_status(answers)
        result = update.result(answers)
        return result.num_updated, result.num_not_found

    def batch_lookup(self, entries: Sequence[LookupEntry]) -> list[LookupResult]:
        """Look up several tables in one call per server; an entry that fails has status 1, the others succeed."""
        plans = [_plan(_Lookup, entry, self._required()) for entry in entries]
        answers = self._batch("BatchLookup", messages.BatchLookupRequest, plans)
        return [
            LookupResult(status=1, message=plan) if isinstance(plan, str) else plan.entry_result(answers[number])
            for number, plan in enumerate(plans)
        ]

    def batch_apply_gradients(self, entries: Sequence[GradientEntry]) -> list[ApplyResult]:
        """Update several tables in one call per server; an entry that fails has status 1, the others succeed."""
        plans = [_plan(_Update, entry, self._required()) for entry in entries]
        answers = self._batch("BatchApplyGradients", messages.BatchApplyGradientsRequest, plans)
        return [
            ApplyResult(status=1, message=plan) if isinstance(plan, str) else plan.entry_result(answers[number])
            for number, plan in enumerate(plans)
        ]

    def _batch(self, verb: str, request: type[Any], plans: Sequence[Any]) -> list[dict[int, Any]]:
        """Send each server its share of all entries; return the servers' responses per entry."""
        members: dict[int, list[int]] = {}
        for number, plan in enumerate(plans):
            for server in () if isinstance(plan, str) else plan.servers:
                members.setdefault(server, []).append(number)
        requests = {
            server: request(requests=[plans[number].request(server, self._timeout_ms) for number in numbers])
            for server, numbers in members.items()
        }
        answers = call_all(self._links, verb, requests, self._timeout_s)
        responses: list[dict[int, Any]] = [{} for _ in plans]
        for server, numbers in members.items():
            for number, response in zip(numbers, answers[server].responses, strict=True):
                responses[number][server] = response
        return responses

    # --- barrier, health, statistics ---

    def barrier(self, barrier_id: str, worker_id: int, num_workers: int, timeout_ms: int) -> int:
        """Wait at server 0 until all workers have arrived; return their number.

        Raises:
            RpcTimeout: Some workers did not arrive in time; retry.
            ConfigError: The call contradicts the calls of other workers.
        """
        return self.barrier_on_shard(0, barrier_id, worker_id, num_workers, timeout_ms)

    def barrier_on_shard(self, shard: int, barrier_id: str, worker_id: int, num_workers: int, timeout_ms: int) -> int:
        """Wait at server ``shard``; see ``barrier``."""
        link = self._link(shard)
        if timeout_ms <= 0:
            raise ConfigError("timeout_ms must be greater than zero")
        if num_workers <= 0:
            raise ConfigError("num_workers must be greater than zero")
        request = messages.BarrierRequest(
            barrier_id=barrier_id, worker_id=worker_id, num_workers=num_workers, timeout_ms=timeout_ms
        )
        answer = link.call("Barrier", request, timeout_ms / 1000 + self._timeout_s)
        if answer.status_code == OK:
            return int(answer.num_arrived)
        if answer.status_code == CANCELLED:
            raise ClusterError(f"Barrier cancelled: {barrier_id} at {link.address}")
        if answer.status_code == 1 and "timeout" in answer.error_message.lower():
            raise RpcTimeout(f"Barrier timeout: {barrier_id} at {link.address}. Timeout after {timeout_ms} ms")
        if answer.status_code == 1:
            raise ConfigError(f"Barrier invalid configuration: {answer.error_message}")
        raise ClusterError(f"Barrier RPC error: {answer.error_message} (status {answer.status_code})")

    def health_check(self, shard: int = 0, component: str = "") -> messages.HealthCheckResponse:
        """Return the health of a server."""
        answer: messages.HealthCheckResponse = self._link(shard).call(
            "HealthCheck", messages.HealthCheckRequest(component=component), self._timeout_s
        )
        return answer

    def health_check_all(self) -> list[messages.HealthCheckResponse]:
        """Return the health of all servers, by index."""
        return self._ask_all("HealthCheck", messages.HealthCheckRequest())

    def get_stats(self, shard: int = 0, *, include_table_stats: bool = False) -> messages.GetStatsResponse:
        """Return the statistics of a server."""
        answer: messages.GetStatsResponse = self._link(shard).call(
            "GetStats", messages.GetStatsRequest(include_table_stats=include_table_stats), self._timeout_s
        )
        return answer

    def get_stats_all(self, *, include_table_stats: bool = False) -> list[messages.GetStatsResponse]:
        """Return the statistics of all servers, by index."""
        return self._ask_all("GetStats", messages.GetStatsRequest(include_table_stats=include_table_stats))

    # --- the servers ---

    def close(self) -> None:
        """Close all connections."""
        for link in self._links:
            link.close()
        self._links = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _timeout_ms(self) -> int:
        return max(1, int(self._timeout_s * 1000))

    def _required(self) -> int:
        if not self._links:
            raise ConfigError("no PS clients configured")
        return len(self._links)

    def _link(self, shard: int) -> ServerLink:
        self._required()
        if not 0 <= shard < len(self._links):
            raise ConfigError(f"invalid shard index: {shard}")
        return self._links[shard]

    def _ask_all(self, verb: str, request: Any) -> list[Any]:
        answers = call_all(self._links, verb, dict.fromkeys(range(self._required()), request), self._timeout_s)
        return [answers[index] for index in sorted(answers)]

    def _check_status(self, answers: Mapping[int, Any]) -> None:
        failed = {index: answer for index, answer in answers.items() if answer.status_code}
        if failed:
            texts = "; ".join(f"{self._links[i].address}: {answer.error_message}" for i, answer in failed.items())
            raise ClusterError(f"RPC error: {texts}")


def _check_reachable(link: ServerLink, timeout_s: float) -> None:
    try:
        link.call("HealthCheck", messages.HealthCheckRequest(), timeout_s)
    except ClusterError as error:
        raise type(error)(f"Connection failed to {link.address}: {error}") from error


class _Routed:
    """Distinct ids of one entry, divided among the servers."""

    def __init__(self, table: str, fids: ArrayLike, servers: int) -> None:
        self.ids: Ids = as_ids(table, fids)
        self.unique, self.positions = deduplicate(self.ids)
        self.division: Division = divide(self.unique, servers)
        self.servers = [server for server, part in enumerate(self.division.parts) if len(part)]


class _Lookup(_Routed):
    def __init__(self, entry: LookupEntry, servers: int) -> None:
        if entry.dim_size <= 0:
            raise ConfigError("dim_size must be greater than zero")
        super().__init__(entry.table, entry.fids, servers)
        self._entry = entry

    def request(self, server: int, timeout_ms: int) -> messages.LookupRequest:
        return messages.LookupRequest(
            table_name=self._entry.table,
            fids=self.division.parts[server],
            dim_size=self._entry.dim_size,
            create_if_missing=self._entry.create_if_missing,
            timeout_ms=timeout_ms,
        )

    def result(self, answers: Mapping[int, messages.LookupResponse]) -> LookupResult:
        dim = self._entry.dim_size
        rows = np.empty((len(self.unique), dim), np.float32)
        found = np.empty(len(self.unique), np.bool_)
        for server, answer in answers.items():
            places = self.division.places[server]
            values = np.array(answer.embeddings, np.float32)
            if len(values) != len(places) * dim:
                raise DimensionMismatch(f"Dimension mismatch: expected {dim}, got {len(values) / len(places):g}")
            rows[places] = values.reshape(len(places), dim)
            found[places] = answer.found
        return LookupResult(
            rows=rows[self.positions],
            found=found[self.positions],
            num_found=int(found[self.positions].sum()),
            num_initialized=sum(answer.num_initialized for answer in answers.values()),
        )

    def entry_result(self, answers: Mapping[int, messages.LookupResponse]) -> LookupResult:
        failed = [answer.error_message for answer in answers.values() if answer.status_code]
        return LookupResult(status=1, message="; ".join(failed)) if failed else self.result(answers)


class _Update(_Routed):
    def __init__(self, entry: GradientEntry, servers: int) -> None:
        super().__init__(entry.table, entry.fids, servers)
        grads = np.asarray(entry.gradients, np.float32)
        if grads.ndim != 2 or len(grads) != len(self.ids):
            raise DimensionMismatch(
                f"Dimension mismatch: expected {len(self.ids)} rows of gradients, got shape {grads.shape}"
            )
        if grads.shape[1] <= 0:
            raise ConfigError("dim_size must be greater than zero")
        self._entry = entry
        self._grads = np.zeros((len(self.unique), grads.shape[1]), np.float32)
        np.add.at(self._grads, self.positions, grads)

    def request(self, server: int, timeout_ms: int) -> messages.ApplyGradientsRequest:
        return messages.ApplyGradientsRequest(
            table_name=self._entry.table,
            fids=self.division.parts[server],
            gradients=self._grads[self.division.places[server]].ravel(),
            dim_size=self._grads.shape[1],
            learning_rate=self._entry.learning_rate,
            global_step=self._entry.global_step,
            timeout_ms=timeout_ms,
        )

    def result(self, answers: Mapping[int, messages.ApplyGradientsResponse]) -> ApplyResult:
        return ApplyResult(
            num_updated=sum(answer.num_updated for answer in answers.values()),
            num_not_found=sum(answer.num_not_found for answer in answers.values()),
        )

    def entry_result(self, answers: Mapping[int, messages.ApplyGradientsResponse]) -> ApplyResult:
        failed = [answer.error_message for answer in answers.values() if answer.status_code]
        return ApplyResult(status=1, message="; ".join(failed)) if failed else self.result(answers)


def _plan(kind: Any, entry: Any, servers: int) -> Any:
    """Return the plan of an entry, or the text of its error."""
    try:
        return kind(entry, servers)
    except MonolithError as error:
        return str(error)
