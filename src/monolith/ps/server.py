"""``ParameterServer``: ports, threads, housekeeping and shutdown of one server. Does not import torch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from monolith import _native
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ArtifactError, ClusterError
from monolith.discovery import ServiceInfo
from monolith.embedding.expiry import ExpirySchedule
from monolith.ps.config import ServerConfig
from monolith.ps.cuts import PendingCut
from monolith.ps.data_plane import DataPlane
from monolith.ps.durable_log import DurableLog
from monolith.ps.health import ServerHealth
from monolith.ps.metrics import serve_metrics
from monolith.ps.service import Drain, PsService
from monolith.ps.tables import ShardTables
from monolith.rpc import grpc
from monolith.telemetry.page import MetricsPage

__all__ = ["ParameterServer"]

logger = logging.getLogger(__name__)

SERVICE_TYPE = "ps"
"""Service type of servers in discovery."""
GRACE_S = 10.0
"""Grace period of calls that are under way when the server stops."""

_HOUSEKEEPING_S = 1.0
_CANCEL_S = 5.0


class ParameterServer:
    """Serves one shard of the tables of a job. ``start`` opens the ports, ``stop`` closes them.

    >>> from monolith.ps import ServerConfig
    >>> with ParameterServer(ServerConfig()) as server:
    ...     server.address.split(":")[0]
    '127.0.0.1'
    """

    def __init__(self, config: ServerConfig, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self.config = config
        folder = config.recovery.delta_log
        self._log = None if folder is None else DurableLog(folder, config.index, config.shards, clock)
        self.tables = ShardTables(config.index, config.shards, self._log, force_expiry=config.tables.force_expiry)
        """The tables; created when the first client connects."""
        hours = config.tables.evict_every_hours
        self._expiry = None if hours is None else ExpirySchedule(hours)
        self.health = ServerHealth(self.tables, config.tables.memory_limit_bytes, clock, config.tables.when_full)
        self._cut = PendingCut(self.tables, config.tables.cut_lease_s, clock, config.tables.hold_lease_s)
        self._drain = Drain()
        self._data_plane = None if config.security.is_encrypted or not config.listen.data_plane else _data_plane(config)
        self.service = PsService(
            self.tables,
            offer=self._offer,
            end_data_plane=self._end_data_plane,
            cut=self._cut,
            health=self.health,
            drain=self._drain,
            clock=clock,
            default_dim=config.tables.default_dim,
            max_barrier_waiters=config.limits.max_barrier_waiters,
            max_message_bytes=config.limits.max_message_bytes,
        )
        threads = config.limits.threads + config.limits.max_barrier_waiters
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="ps")
        self._server = grpc.make_server(
            self._workers, self.service.handlers(), config.security, config.limits.max_message_bytes
        )
        self._metrics: MetricsPage | None = None
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self.address = ""
        """gRPC address, ``host:port``; empty before ``start``."""
        self.metrics_address = ""
        """Address of /metrics and /healthz; empty without ``metrics_port``."""

    def start(self) -> str:
        """Recover the shard, start to serve, and return the address. A server starts once.

        Raises:
            ClusterError: The port is taken, or the server has been started or stopped before.
            ConfigError: The delta log is of another number of servers, and there is no snapshot.
            SnapshotCorrupt: ``recover_from`` is missing or corrupt.
            DeltaLogBroken: The delta log is corrupt.
        """
        if self.address or self._ending.is_set():
            state = "has been stopped" if self._ending.is_set() else f"serves at {self.address}"
            raise ClusterError(
                f"parameter server {self.config.index} {state}, expected a new one; create another server"
            )
        config = self.config
        try:
            if self._log is not None and config.recovery.recover_from is None and not config.recovery.discard_log:
                self._log.check_shards()
            if config.recovery.recover_from is not None:
                self.tables.recover(config.recovery.recover_from)
                logger.info("shard recovered index=%d rows=%d", config.index, self.tables.rows)
            if config.listen.metrics_port is not None:
                self._metrics = serve_metrics(
                    self.service, self.tables, self.health, config.listen.host, config.listen.metrics_port
                )
                self.metrics_address = _join_address(config.listen.dialed_host, self._metrics.port)
            # The last step that can fail: gRPC cannot release the port of a server that never started.
            port = grpc.bind(self._server, _join_address(config.listen.host, config.listen.port), config.security)
            self.address = _join_address(config.listen.dialed_host, port)
        except BaseException:
            if self._metrics is not None:
                self._metrics.close()
                self._metrics, self.metrics_address = None, ""
            if self._log is not None:
                self._log.close()
            raise
        self._start_thread("ps-housekeeping", self._run_housekeeping)
        if self._log is not None:
            self._start_thread("ps-delta-log", self._run_log)
        self._server.start()
        logger.info(
            "parameter server listening index=%d shards=%d address=%s", config.index, config.shards, self.address
        )
        if self.metrics_address:
            logger.info("metrics served url=http://%s/metrics", self.metrics_address)
        return self.address

    def service_info(self) -> ServiceInfo:
        """Return the entry for discovery; call it after ``start``."""
        host, _, port = self.address.rpartition(":")
        return ServiceInfo(
            service_type=SERVICE_TYPE,
            index=self.config.index,
            host=host.strip("[]"),
            port=int(port),
            metadata={"allow_update": "true"},
        )

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Refuse new calls, wait ``grace_s`` for calls under way, and close. Idempotent.

        Flushes the delta log at the end; a failure is logged.
        """
        self._ending.set()
        self.health.is_draining = True
        stopped = self._server.stop(grace_s)
        self._cut.end_hold()  # delayed pushes are calls under way
        if self._data_plane is not None:
            self._data_plane.close()
        if not stopped.wait(grace_s + _CANCEL_S):
            logger.warning("cancelled calls still running, stopping without them")
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        while self._threads:
            self._threads.pop().join()
        self._cut.close()
        if self._log is not None:
            self._write_log()
            self._log.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(0.0 if kind is not None else GRACE_S)

    def _offer(self, shard: _native.PsShard) -> tuple[list[str], bytes]:
        self.health.check()  # new tables have no budget yet
        return ([], b"") if self._data_plane is None else self._data_plane.offer(shard)

    def _end_data_plane(self) -> None:
        self.health.is_draining = True
        if self._data_plane is not None:
            self._data_plane.close()

    def _start_thread(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run_housekeeping(self) -> None:
        while not self._ending.wait(_HOUSEKEEPING_S):
            self.health.check()
            self._cut.drop_expired()
            self._evict_due()

    def _evict_due(self) -> None:
        if self._expiry is None:
            return
        try:
            self._expiry.evict(self.tables.all)
        except Exception:  # the thread has other duties too
            logger.exception("scheduled eviction failed, retrying")

    def _run_log(self) -> None:
        while not self._ending.wait(self.config.recovery.delta_interval_s):
            self._write_log()

    def _write_log(self) -> None:
        assert self._log is not None
        try:
            self._log.flush()
        except ArtifactError:
            pass  # logged and counted by the log; the next interval retries
        except Exception:
            logger.exception("delta log flush failed, retrying")


def _data_plane(config: ServerConfig) -> DataPlane:
    return DataPlane(
        config.listen.host,
        config.listen.data_port,
        advertised_host=config.listen.advertised_host,
        max_frame_bytes=config.limits.max_message_bytes,
        max_connections=config.limits.max_connections,
        max_inflight_bytes=config.limits.max_inflight_bytes,
    )


def _join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
