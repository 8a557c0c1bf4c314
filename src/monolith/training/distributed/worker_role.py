"""The role of a worker: an estimator whose tables are on the servers that discovery tells of.

Worker 0 is the chief: it restores and saves for all. The others keep nothing on disk but their place in the data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from monolith.artifacts import CheckpointFolder
from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError, RetriesExhausted, RpcTimeout
from monolith.data.sources.patterns import expand
from monolith.embedding import EmbeddingStore, TableSpec
from monolith.ps import RemoteStore, Restart, Security
from monolith.sync.remote_rows import ServerDeltaLogs
from monolith.training.checkpoints.choice import CHECKPOINTS
from monolith.training.checkpoints.files import TABLES
from monolith.training.config import slow_start_step
from monolith.training.distributed.cluster_store import ClusterStore
from monolith.training.distributed.compaction import CompactionHook
from monolith.training.distributed.job_config import ClusterJobConfig
from monolith.training.distributed.job_gate import JobGate
from monolith.training.distributed.lifecycle import Session
from monolith.training.distributed.ps_role import end_servers, log_folder, newest_tables
from monolith.training.distributed.publishing import flush_alone, flush_jointly
from monolith.training.distributed.server_memory import ServerMemoryHook
from monolith.training.distributed.server_search import find_servers
from monolith.training.distributed.shared_files import (
    SharedFiles,
    SharedFilesHook,
    finished_files,
    unread_files,
    worker_name,
)
from monolith.training.distributed.shared_rows import READY, SharedRows, shared_specs
from monolith.training.distributed.team_hook import TeamChiefHook, TeamWorkerHook
from monolith.training.distributed.worker_hook import ChiefHook, Waiting, WorkerHook, wait_for_chief, weights_of
from monolith.training.distributed.worker_places import PlaceHook, WorkerPlaces
from monolith.training.estimator import Estimator
from monolith.training.groups import Group
from monolith.training.groups.workers import SyncGroup, Workers
from monolith.training.groups.workers.connections import GroupAddress
from monolith.training.groups.workers.rendezvous import ChiefRendezvous, WorkerRendezvous
from monolith.training.hooks import ControllerHook, Hook, PublishHook, PushHook, SlowStartHook
from monolith.training.hooks.publish import stream_of
from monolith.training.job_data import WorkListShare
from monolith.training.run import Run
from monolith.training.runner import Job

__all__ = ["TrainedWorker", "train_worker"]

logger = logging.getLogger(__name__)


class _TakenBack(ClusterError):
    """A server was lost, and the whole job goes back to its last checkpoint."""


def train_worker(
    session: Session,
    config: ClusterJobConfig,
    security: Security,
    *,
    hooks: Sequence[Hook] = (),
    clock: Clock | None = None,
) -> dict[str, float]:
    """Train this worker's part of the data on the servers; return its metrics.

    A fault that no retry heals makes the worker look for the servers again. Where they are the same it goes on as often
    as it takes; where they are others, ``max_retry_times`` times.

    Raises:
        RpcTimeout: The servers were not found in ``session_creation_timeout_secs``.
        MonolithError: What the training raised.
    """
    session.config.check()
    clock = clock or SystemClock()
    session.register(session.config.advertised_host or session.config.bind_host, session.config.bind_port)
    with session.heartbeat():
        addresses = _find_servers(session, config, clock)
        comebacks = 0
        goes_back = False
        while True:
            worker = TrainedWorker(
                addresses,
                config,
                security,
                hooks=hooks,
                clock=clock,
                goes_back=goes_back,
                chief_host=session.chief_host,
            )
            try:
                metrics = worker.train()
                break
            except ClusterError as error:
                goes_back = isinstance(error, _TakenBack)
                if not (error.retryable or goes_back or isinstance(error, RetriesExhausted)):
                    raise
                logger.warning("the servers are lost to this worker error=%s", error)
                lost = error
            clock.sleep_s(config.retry_wait_in_secs)
            before, addresses = addresses, _find_servers(session, config, clock)
            comebacks += before != addresses
            if comebacks > config.max_retry_times:
                raise lost
    # Who reads a stream is started again, and its servers know more than any checkpoint.
    if config.is_chief and (config.force_shutdown_ps or not config.kafka_topics):
        end_servers(addresses, security)
    return metrics


def _find_servers(session: Session, config: ClusterJobConfig, clock: Clock) -> tuple[str, ...]:
    """Look for the servers until they are there: on a cluster, processes start in any order and some take minutes."""
    deadline = Deadline(clock, config.session_creation_timeout_secs)
    while True:
        try:
            return find_servers(session, clock)
        except RpcTimeout as error:
            if deadline.is_past:
                raise
            logger.warning("not all servers are there; this worker goes on looking: %s", error)
        clock.sleep_s(min(config.retry_wait_in_secs, deadline.remaining_s()))


class TrainedWorker:
    """One worker connected to one set of servers.

    Args:
        addresses: The servers, by index.
        config: The job and this worker's place in it.
        security: TLS and token of the servers.
        hooks: What runs beside the training.
        clock: Measures waits.
        goes_back: Go on from the newest checkpoint, whatever the servers hold.
        chief_host: Where the chief is, for workers that step together; None when nobody knows.

    Raises:
        ConfigError: There is no folder that several workers could share.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        config: ClusterJobConfig,
        security: Security,
        *,
        hooks: Sequence[Hook] = (),
        clock: Clock | None = None,
        goes_back: bool = False,
        chief_host: Callable[[], str | None] = lambda: "127.0.0.1",
    ) -> None:
        if config.num_workers > 1 and not config.model_dir:
            raise ConfigError(
                f"num_workers is {config.num_workers} and model_dir is empty; give a folder that all workers see"
            )
        if config.publish_dir is not None and not config.model_dir:
            raise ConfigError(
                f"publish_dir is {str(config.publish_dir)!r} and model_dir is empty; a job on servers publishes from "
                "their logs in model_dir: give one"
            )
        self._addresses = addresses
        self._config = config
        self._security = security
        self._hooks = hooks
        self._clock = clock or SystemClock()
        self._goes_back = goes_back
        self._remote: RemoteStore | None = None
        self._is_live = False
        self._estimator: Estimator | None = None
        self._member: ChiefHook | WorkerHook | None = None
        self._chief_host = chief_host
        self._sync = self._make_sync() if config.enable_partial_sync_training and config.num_workers > 1 else None
        self._places = WorkerPlaces(config.model_dir)
        self._files = self._shared_files() if config.enable_dynamic_sharding and config.num_workers > 1 else None
        self._waiting = Waiting(
            restore_timeout_s=config.restore_sync_timeout_secs,
            restore_poll_s=config.restore_sync_poll_interval_ms / 1000,
            chief_timeout_s=config.chief_timeout_secs,
        )

    def train(self) -> dict[str, float]:
        """Train to the end of this worker's data or steps; return the metrics."""
        config = self._config
        is_alone = config.num_workers == 1
        # Only one process may write to the model folder, and to ports that the settings name.
        own = replace(config, publish_dir=None, publish_port=None, sync_targets=())
        if not config.is_chief:
            own = replace(own, model_dir="", metrics_port=None)
        job_config = config if config.is_chief else replace(config, eval_data=None)
        if not is_alone:
            own = replace(own, controller_port=None)  # the chief's acts for all workers; see _steering
        watching = [self._memory_guard()] if config.is_chief and config.ps_memory_limit_mb is not None else []
        sharing = [] if is_alone else self._sharing()
        if config.is_chief:
            sharing = [*sharing, *self._publishing(), CompactionHook(self._compact)]
        try:
            job = Job(
                job_config,
                hooks=[*sharing, *watching, *self._hooks],
                run_config=own,
                store=self._open,
                extra=None if is_alone else self._shared_state,
                files=None if self._files is None else WorkListShare(self._files, worker_name(config.index)),
                group=None if self._sync is None else self._workers(self._sync),
            )
            self._estimator = job.estimator
            if not is_alone:
                self._go_on()
            return job.train()
        finally:
            if self._sync is not None:
                self._sync.close()
            if self._files is not None:
                self._files.close()
            if self._remote is not None:
                self._remote.close()

    # --- servers ---

    def _open(self, specs: Sequence[TableSpec]) -> EmbeddingStore:
        """Connect to the servers; several workers share more than the tables of the model."""
        if self._config.num_workers == 1:
            self._remote = self._connect(specs)
            self._forget_lost_training(self._remote)
            return self._remote
        hidden = shared_specs()
        self._remote = self._connect([*specs, *hidden])
        self._is_live = self._has_training(self._remote)
        self._forget_lost_training(self._remote)
        return ClusterStore(
            self._remote,
            frozenset(spec.name for spec in hidden),
            is_live=self._is_live,
            steps_beside=lambda: 0 if self._member is None else self._member.steps_beside,
        )

    def _connect(self, specs: Sequence[TableSpec]) -> RemoteStore:
        config = self._config
        options: dict[str, Any] = {}
        if config.operation_timeout_in_ms is not None:
            options["timeout_s"] = config.operation_timeout_in_ms / 1000
        return RemoteStore(
            self._addresses, specs, security=self._security, on_restart=self._on_restart, clock=self._clock, **options
        )

    def _on_restart(self, restart: Restart) -> None:
        """A server recovers by itself before it answers, but for the last second at most.

        The others keep what they have, unless all are to go back.
        """
        logger.warning(
            "a server was lost and is back; its rows are those of its recovery index=%d rows=%d",
            restart.index,
            restart.rows,
        )
        if self._config.partial_recovery:
            return
        if not CheckpointFolder(f"{self._config.model_dir}/{CHECKPOINTS}").saved():
            raise ClusterError(
                f"server {restart.index} was lost before the first checkpoint, and partial_recovery is False: there is "
                "nothing to go back to; start the job anew, servers too"
            )
        raise _TakenBack(f"server {restart.index} was lost; all go back to the last checkpoint (partial_recovery)")

    def _has_training(self, remote: RemoteStore) -> bool:
        """Whether the servers hold a training that goes on: then they know more than any checkpoint.

        What servers have recovered is none. When all of them were started anew and nobody has pushed since, the whole
        job was: it goes on from the checkpoint, because its place in the data is the checkpoint's.
        """
        config = self._config
        if self._goes_back or config.restore_ckpt is not None or config.restore_dir is not None or config.clear_nn:
            return False
        state = SharedRows(remote, 0, config.num_workers, 0).read()[0].state
        return state == READY and remote.has_learnt()

    def _forget_lost_training(self, remote: RemoteStore) -> None:
        """Begin with empty tables where there is no checkpoint: the place in the data is lost, so are the rows.

        With a checkpoint its restoring replaces them.
        """
        config = self._config
        is_restored = newest_tables(config.model_dir) is not None or config.restore_dir is not None
        if config.is_chief and not self._is_live and not is_restored:
            remote.rewind()

    def _memory_guard(self) -> Hook:
        config = self._config
        gate = self._gate if config.num_workers > 1 else None
        return ServerMemoryHook(self._addresses, self._security, config.ps_memory_action, evict=self._evict, gate=gate)

    def _evict(self) -> int:
        assert self._remote is not None  # a run begins after its store is open
        return self._remote.evict()

    # --- several workers ---

    @property
    def _session(self) -> int:
        return 0 if self._member is None else self._member.session

    def _go_on(self) -> None:
        """Begin where this worker stands in its data: when the chief has restored, or as the chief that was away."""
        assert self._remote is not None
        assert self._estimator is not None
        config = self._config
        rows = SharedRows(self._remote, config.index, config.num_workers, 0)
        if config.is_chief:
            step = self._estimator.step  # looking at it restores what the chief has of its own
            if not self._is_live:
                return
            logger.info("the chief comes back to a training that went on without it step=%d", step)
        else:
            wait_for_chief(rows, config.index, self._waiting, self._clock, self._remote.has_learnt)
        place = self._places.read(config.index, rows.read()[0].session)
        if place is not None and config.resume_data:
            self._estimator.resume_at(place)
        elif self._files is not None:
            self._files.begin_worker(worker_name(config.index))

    def _on_restored(self) -> None:
        """The job goes on from a checkpoint, or begins: so do the workers."""
        assert self._estimator is not None
        extra = self._estimator.restored_extra
        files = extra.get("files")
        has_ended = extra.get("data_ended") and (files is None or not unread_files(files))
        self._places.begin(self._session, {} if has_ended else extra.get("workers", {}))
        if self._files is not None:
            self._files.begin(None if has_ended or not self._config.resume_data else files)

    def _on_taken_back(self) -> None:
        raise _TakenBack("the chief has taken all servers back to the last checkpoint (partial_recovery)")

    def _shared_state(self) -> dict[str, Any]:
        """Return what a checkpoint holds of all workers: the list of files last, for it may be ahead of the places."""
        state: dict[str, Any] = {"workers": self._places.all(self._session)}
        if self._files is not None:
            state["files"] = self._files.state()
        return state

    def _shared_files(self) -> SharedFiles:
        config = self._config
        return SharedFiles(
            config.model_dir,
            lambda: expand(config.data or ""),
            self._finished_files,
            is_over=lambda: self._member is not None and self._member.is_over(),
        )

    def _finished_files(self, index: int) -> int:
        if self._places.is_through(index, self._session):
            return len(expand(self._config.data or ""))
        return finished_files(self._places.read(index, self._session), worker_name(index))

    def _publishing(self) -> list[Hook]:
        """Return what publishes from the servers' logs. Its base is noted before the logs are shortened to it."""
        config = self._config
        if config.publish_dir is None:
            return []

        def rows(between_steps: AbstractContextManager[None]) -> ServerDeltaLogs:
            assert self._remote is not None
            assert self._estimator is not None
            folders = [log_folder(config.model_dir, index) for index in range(len(self._addresses))]
            if config.num_workers == 1:
                flush = flush_alone(self._remote, between_steps)
            else:
                flush = flush_jointly(self._remote, between_steps, self._estimator.model)
            return ServerDeltaLogs(flush, [folder for folder in folders if folder is not None])

        hook = PublishHook(config.publish_dir, every_s=config.publish_interval_s, rows=rows, stream=stream_of(config))
        return [*([PushHook(config.publish_dir, config)] if config.sync_targets else []), hook]

    def _compact(self, path: Path) -> None:
        assert self._remote is not None
        self._remote.compact_deltas(path / TABLES)

    def _rows(self, run: Run) -> SharedRows:
        assert self._remote is not None  # a run begins after its store is open
        weights = sum(weight.numel() for weight in weights_of(run.model))
        return SharedRows(self._remote, self._config.index, self._config.num_workers, weights)

    def _sharing(self) -> list[Hook]:
        """Return what makes this worker one of several."""
        config = self._config
        options: dict[str, Any] = {"max_steps": config.max_steps, "exchange_steps": config.dense_exchange_steps}
        make_chief: Callable[..., ChiefHook] = ChiefHook
        make_worker: Callable[..., WorkerHook] = WorkerHook
        if self._sync is not None:
            make_chief, make_worker = partial(TeamChiefHook, sync=self._sync), partial(TeamWorkerHook, sync=self._sync)
        member: ChiefHook | WorkerHook
        if config.is_chief:
            member = self._member = make_chief(
                self._rows,
                is_live=lambda: self._is_live,
                on_restored=self._on_restored,
                waiting=self._waiting,
                **options,
            )
        else:
            on_new_session = None if config.partial_recovery else self._on_taken_back
            member = self._member = make_worker(self._rows, config.index, on_new_session=on_new_session, **options)
        slow = SlowStartHook(
            slow_start_step(config.index, config.slow_start_steps),
            member.global_step,
            max_wait_s=60 * config.max_slow_start_wait_minute,
        )
        files = [] if self._files is None or not config.is_chief else [SharedFilesHook(self._files)]
        place = PlaceHook(self._places, config.index, lambda: self._session)
        return [place, member, *self._steering(), *files, slow]

    # --- workers that step together ---

    def _make_sync(self) -> SyncGroup:
        config = self._config
        options = {}
        if config.operation_timeout_in_ms is not None:
            options["timeout_s"] = config.operation_timeout_in_ms / 1000
        address = GroupAddress(
            index=config.index,
            size=config.num_workers,
            bind_host=config.bind_host,
            advertised_host=config.advertised_host or "",
            bind_port=config.bind_port,
            accelerator=config.accelerator,
            rendezvous_timeout_s=config.session_creation_timeout_secs,
            **options,
        )
        if config.is_chief:
            return SyncGroup(ChiefRendezvous(address, self._clock))
        return SyncGroup(
            WorkerRendezvous(address, self._clock, chief_host=self._chief_host, on_new_session=self._on_begun_anew)
        )

    def _on_begun_anew(self) -> None:
        raise _TakenBack("the chief has begun the training anew; this worker begins with it")

    def _workers(self, sync: SyncGroup) -> Group:
        return Workers(
            sync,
            rank=self._config.index,
            size=self._config.num_workers,
            is_current=lambda: self._config.is_chief and not self._is_live,
            may_pause=self._is_pause_published,
        )

    def _is_pause_published(self) -> bool:
        assert self._member is not None  # a run begins with its hooks
        return self._member.rows.held_session == self._session

    def _steering(self) -> list[Hook]:
        """Return what holds, saves and watches all workers at the chief."""
        config = self._config
        if not config.is_chief:
            return []
        self._gate = JobGate(self._rows, lambda: self._session)
        if config.controller_port is None:
            return [self._gate]
        return [self._gate, ControllerHook(config.controller_port, gate=self._gate, workers=self._gate.workers)]
