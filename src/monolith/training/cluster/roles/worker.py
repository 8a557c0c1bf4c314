"""The role of a worker: finds the servers, trains on them, and reconnects after a lost server.

The chief, worker 0, shuts the servers down at the end. A worker whose place in discovery another process has taken ends
its run without a checkpoint: two workers of one index would train the same records twice, and two chiefs would save.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from typing_extensions import override

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import AlreadyRegistered, ClusterError, RetriesExhausted, RpcTimeout
from monolith.ps import Security
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.lifecycle import Session
from monolith.training.cluster.roles.server import shut_down_servers
from monolith.training.cluster.server_connection import RolledBack
from monolith.training.cluster.server_search import find_servers
from monolith.training.cluster.worker_job import connect
from monolith.training.hooks import Hook
from monolith.training.job_data import reads_stream
from monolith.training.run import Run

__all__ = ["train_worker"]

logger = logging.getLogger(__name__)

_LOSSES = 2
"""A worker that is refused, because ``model_dir`` is in use, holds the place for a moment and then leaves it."""


def train_worker(
    session: Session,
    config: ClusterJobConfig,
    security: Security,
    *,
    hooks: Sequence[Hook] = (),
    clock: Clock | None = None,
) -> dict[str, float]:
    """Train this worker's part of the data on the servers; return its metrics.

    After a fault that no retry heals, the worker looks for the servers again. It continues as often as needed while the
    addresses stay the same, and ``max_retry_times`` times when they change.

    Raises:
        AlreadyRegistered: Another process has taken the place of this worker.
        RpcTimeout: The servers were not found in ``session_creation_timeout_secs``.
        MonolithError: The error of the training.
    """
    session.config.check()
    clock = clock or SystemClock()
    session.register(session.config.advertised_host, session.config.listen.bind_port)
    place = _PlaceHook()
    with session.heartbeat(place.lose, _LOSSES):
        addresses = _find_servers(session, config, clock)
        moves = 0
        from_checkpoint = False
        while True:
            try:
                worker = connect(
                    addresses,
                    config,
                    security,
                    hooks=(place, *hooks),
                    clock=clock,
                    from_checkpoint=from_checkpoint,
                    chief_host=session.chief_host,
                )
                metrics = worker.train()
                break
            except ClusterError as error:
                from_checkpoint = isinstance(error, RolledBack)
                if not (error.retryable or from_checkpoint or isinstance(error, RetriesExhausted)):
                    raise
                logger.warning("worker lost its servers error=%s", error)
                lost = error
            clock.sleep_s(config.cluster.retry.retry_wait_s)
            before, addresses = addresses, _find_servers(session, config, clock)
            moves += before != addresses
            if moves > config.cluster.retry.max_retry_times:
                raise lost
    # Keep the servers of a streaming job running: the job restarts in place, and their state is newer than the last
    # checkpoint.
    if config.is_chief and (config.cluster.ps.force_shutdown_ps or not reads_stream(config.input)):
        shut_down_servers(addresses, security)
    return metrics


class _PlaceHook(Hook):
    """Ends the run of a worker that has lost its place in discovery, before its next step or save."""

    def __init__(self) -> None:
        self._loss: AlreadyRegistered | None = None

    def lose(self, error: AlreadyRegistered) -> None:
        """End the run; called by the thread of the heartbeats."""
        self._loss = error

    def _check(self) -> None:
        if self._loss is not None:
            raise self._loss

    @override
    def before_step(self, run: Run) -> None:
        self._check()

    @override
    def on_idle(self, run: Run) -> None:
        self._check()

    @override
    def before_save(self, run: Run) -> None:
        self._check()

    @override
    def before_end(self, run: Run) -> None:
        self._check()


def _find_servers(session: Session, config: ClusterJobConfig, clock: Clock) -> tuple[str, ...]:
    """Look for the servers until all are registered: processes of a cluster start in any order, some after minutes."""
    deadline = Deadline(clock, config.cluster.wait.session_creation_timeout_s)
    while True:
        try:
            return find_servers(session, clock)
        except RpcTimeout as error:
            if deadline.is_past:
                raise
            logger.warning("servers not found, retrying error=%s", error)
        clock.sleep_s(min(config.cluster.retry.retry_wait_s, deadline.remaining_s()))
