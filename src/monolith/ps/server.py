"""A parameter server as one object: ports, threads, housekeeping, a clean end. Starts without torch."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from monolith import _native
from monolith.core.clock import Clock, SystemClock
from monolith.discovery import ServiceInfo
from monolith.ps import _grpc
from monolith.ps.config import ServerConfig
from monolith.ps.cuts import WaitingCut
from monolith.ps.data_plane import DataPlane
from monolith.ps.health import Health
from monolith.ps.metrics import MetricsPage
from monolith.ps.service import Drain, PsService
from monolith.ps.tables import ShardTables

__all__ = ["ParameterServer"]

logger = logging.getLogger(__name__)

SERVICE_TYPE = "ps"
"""What servers are in discovery."""
GRACE_S = 10.0
"""How long calls under way may go on when the server stops."""

_HOUSEKEEPING_S = 1.0


class ParameterServer:
    """Holds one shard of the tables of a training. ``start`` opens the ports, ``stop`` closes them.

    >>> from monolith.ps import ServerConfig
    >>> with ParameterServer(ServerConfig()) as server:
    ...     server.address.split(":")[0]
    '127.0.0.1'
    """

    def __init__(self, config: ServerConfig, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self.config = config
        self.tables = ShardTables(config.index, config.shards)
        """The rows; made when the first client connects."""
        self.health = Health(self.tables, config.memory_limit_bytes, clock)
        self._cut = WaitingCut(self.tables, config.cut_lease_s, clock)
        self._drain = Drain()
        self._data_plane = None if config.security.is_encrypted or not config.data_plane else _data_plane(config)
        self.service = PsService(
            self.tables,
            offer=self._offer,
            end_data_plane=self._end_data_plane,
            cut=self._cut,
            health=self.health,
            drain=self._drain,
            clock=clock,
            default_dim=config.default_dim,
            max_barrier_waiters=config.max_barrier_waiters,
        )
        threads = config.threads + config.max_barrier_waiters
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="ps")
        self._server = _grpc.make_server(
            self._workers, self.service.handlers(), config.security, config.max_message_bytes
        )
        self._metrics: MetricsPage | None = None
        self._ending = threading.Event()
        self._housekeeper: threading.Thread | None = None
        self.address = ""
        """Where it listens, ``host:port``; empty before ``start``."""
        self.metrics_address = ""
        """Where /metrics and /healthz are; empty when they are not served."""

    def start(self) -> str:
        """Recover what it is to recover, begin to answer, and return the address.

        Raises:
            ClusterError: The port is taken.
            SnapshotCorrupt: There is nothing sound to recover from.
        """
        config = self.config
        if config.recover_from is not None:
            self.tables.recover(config.recover_from)
            logger.info("shard recovered index=%d rows=%d", config.index, self.tables.rows)
        port = _grpc.bind(self._server, _joined(config.host, config.port), config.security)
        self.address = _joined(config.advertised_host or config.host, port)
        if config.metrics_port is not None:
            self._metrics = MetricsPage(self.service, self.tables, self.health, config.host, config.metrics_port)
            self.metrics_address = _joined(config.advertised_host or config.host, self._metrics.port)
        self._housekeeper = threading.Thread(target=self._keep_house, name="ps-housekeeping", daemon=True)
        self._housekeeper.start()
        self._server.start()
        logger.info("parameter server listens index=%d shards=%d address=%s", config.index, config.shards, self.address)
        return self.address

    def service_info(self) -> ServiceInfo:
        """Return how it is to be registered with discovery; after ``start``."""
        host, _, port = self.address.rpartition(":")
        return ServiceInfo(
            service_type=SERVICE_TYPE,
            index=self.config.index,
            host=host.strip("[]"),
            port=int(port),
            metadata={"allow_update": "true"},
        )

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Refuse new calls, let those under way end for ``grace_s``, and close; a second call does nothing."""
        self._ending.set()
        self.health.is_draining = True
        stopped = self._server.stop(grace_s)
        if self._data_plane is not None:
            self._data_plane.close()
        stopped.wait()
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        if self._housekeeper is not None:
            self._housekeeper.join()
            self._housekeeper = None
        self._cut.close()
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

    def _keep_house(self) -> None:
        while not self._ending.wait(_HOUSEKEEPING_S):
            self.health.check()
            self._cut.drop_stale()


def _data_plane(config: ServerConfig) -> DataPlane:
    return DataPlane(
        config.host,
        config.data_port,
        advertised_host=config.advertised_host,
        max_frame_bytes=config.max_message_bytes,
        max_connections=config.max_connections,
    )


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
