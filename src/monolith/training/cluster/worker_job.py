"""``WorkerJob``: the training of one worker, connected to one set of parameter servers.

``connect`` builds it. The only worker of a job shares nothing but the tables. Among several workers, worker 0 is the
chief: it restores and saves for all. The others keep only their position in the data on disk.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from monolith.artifacts.remote_folder import local_path
from monolith.core.clock import Clock, SystemClock
from monolith.core.config_sections import replace_settings
from monolith.core.errors import ConfigError
from monolith.data.sources.patterns import expand
from monolith.ps import Security
from monolith.sync.remote_rows import ServerDeltaLogs
from monolith.training.cluster.compaction import CompactionHook, published_only
from monolith.training.cluster.coupling import Lockstep
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.job_pause import JobPause
from monolith.training.cluster.model_folder import log_folder
from monolith.training.cluster.publishing import flush_alone, flush_jointly
from monolith.training.cluster.server_connection import RolledBack, ServerConnection
from monolith.training.cluster.server_memory import ServerMemoryHook
from monolith.training.cluster.shared_files import (
    SharedFiles,
    SharedFilesHook,
    finished_files,
    unread_files,
    worker_name,
)
from monolith.training.cluster.worker_hook import ChiefHook, MemberHook, WaitTimeouts, WorkerHook, wait_for_chief
from monolith.training.cluster.worker_positions import PositionHook, WorkerPositions
from monolith.training.config import RunConfig, slow_start_step
from monolith.training.config.cluster import AsynchronousMode, PartialSyncMode
from monolith.training.control.pause import PauseControl
from monolith.training.estimator import Estimator
from monolith.training.groups.workers import SyncGroup, Workers
from monolith.training.groups.workers.connections import GroupAddress
from monolith.training.groups.workers.rendezvous import ChiefRendezvous, WorkerRendezvous
from monolith.training.hooks import ControllerHook, Hook, PublishHook, PushHook, SlowStartHook
from monolith.training.hooks.publish import stream_of
from monolith.training.job_data import WorkListShare
from monolith.training.runner import Job
from monolith.training.staging import stage_model_folder

__all__ = ["WorkerJob", "connect"]

logger = logging.getLogger(__name__)


class WorkerJob:
    """One worker connected to its servers, made by ``connect``. It trains once.

    Args:
        job: The model, its data and its estimator.
        resume: Sets the position of this worker in its data, before the training.
        resources: The connections, closed after the training.
    """

    def __init__(self, job: Job, resume: Callable[[], None], resources: ExitStack) -> None:
        self._job = job
        self._resume = resume
        self._resources = resources

    def train(self) -> dict[str, float]:
        """Train to the end of this worker's data or steps; return the metrics."""
        with self._resources:
            self._resume()
            return self._job.train()

    def close(self) -> None:
        """Close the connections without training. May be called twice."""
        self._resources.close()


def connect(
    addresses: Sequence[str],
    config: ClusterJobConfig,
    security: Security,
    *,
    hooks: Sequence[Hook] = (),
    clock: Clock | None = None,
    from_checkpoint: bool = False,
    chief_host: Callable[[], str | None] = lambda: "127.0.0.1",
) -> WorkerJob:
    """Build the model of a worker, and connect it to the servers.

    Args:
        addresses: The servers, by index.
        config: The settings of the job and of this worker.
        security: TLS and token of the servers.
        hooks: Hooks of the training.
        clock: Measures waits.
        from_checkpoint: Resume from the newest checkpoint, and ignore the state of the servers.
        chief_host: Returns the host of the chief, for partially synchronous workers; None when it is unknown.

    Raises:
        ConfigError: The settings need a folder that several workers see.
    """
    config = stage_model_folder(config, config.run.model_dir)
    if config.run.runtime.num_workers > 1 and not config.run.model_dir:
        raise ConfigError(
            f"num_workers is {config.run.runtime.num_workers} and model_dir is empty; give a folder that all workers "
            "see"
        )
    if config.run.publish.publish_dir is not None and not config.run.model_dir:
        raise ConfigError(
            f"publish_dir is {str(config.run.publish.publish_dir)!r} and model_dir is empty; a job on servers "
            "publishes from their logs in model_dir: give one"
        )
    clock = clock or SystemClock()
    with ExitStack() as resources:
        if config.run.runtime.num_workers == 1:
            servers = ServerConnection(addresses, config, security, clock, from_checkpoint=from_checkpoint)
            resources.callback(servers.close)
            built = _build_alone(servers, config, hooks)
        else:
            shared = _Member(addresses, config, security, clock, resources, chief_host, from_checkpoint=from_checkpoint)
            built = shared.build(hooks)
        return WorkerJob(*built, resources.pop_all())


def _build_alone(
    servers: ServerConnection, config: ClusterJobConfig, hooks: Sequence[Hook]
) -> tuple[Job, Callable[[], None]]:
    job: Job
    duties = _chief_hooks(servers, config, lambda: job.estimator, None) if config.is_chief else []
    job = Job(_job_config(config), hooks=[*duties, *hooks], run_config=_own_config(config), store=servers.open)
    return job, lambda: None


def _job_config(config: ClusterJobConfig) -> ClusterJobConfig:
    """Return the settings of the job: only the chief evaluates."""
    return config if config.is_chief else replace_settings(config, eval_data=None)


def _own_config(config: ClusterJobConfig) -> RunConfig:
    """Return the settings of this process: only the chief writes to the model folder and opens ports."""
    own = replace_settings(config.run, publish_dir=None, publish_port=None, sync_targets=())
    if not config.is_chief:
        own = replace_settings(own, model_dir="", metrics_port=None, logger=None, logger_offline=False)
    if config.run.runtime.num_workers > 1:
        own = replace_settings(own, controller_port=None)  # the controller of the chief acts for all workers
    return own


def _chief_hooks(
    servers: ServerConnection, config: ClusterJobConfig, estimator: Callable[[], Estimator], pause: PauseControl | None
) -> list[Hook]:
    """Return the hooks that act on the servers: publish from their logs, compact the logs, watch their memory.

    Publishing comes first: a log is compacted only up to the base that is published.
    """
    hooks: list[Hook] = []
    compact: Callable[[Path], None] = servers.compact
    if config.run.publish.publish_dir is not None:
        if config.run.push.sync_targets:
            hooks.append(PushHook(config.run.publish.publish_dir, config.run.push))
        hooks.append(_publish_hook(servers, config, estimator))
        compact = published_only(compact, local_path(config.run.publish.publish_dir))
    hooks.append(CompactionHook(compact))
    ps = config.cluster.ps
    if ps.ps_memory_limit_mb is not None and ps.ps_memory_action != "evict_oldest":  # servers do that by themselves
        hooks.append(
            ServerMemoryHook(
                servers.addresses,
                servers.security,
                ps.ps_memory_action,
                evict=servers.evict,
                pause_control=pause,
            )
        )
    return hooks


def _publish_hook(
    servers: ServerConnection, config: ClusterJobConfig, estimator: Callable[[], Estimator]
) -> PublishHook:
    assert config.run.publish.publish_dir is not None  # the caller has checked

    def rows(between_steps: AbstractContextManager[None]) -> ServerDeltaLogs:
        folders = [log_folder(config.run.model_dir, index) for index in range(len(servers.addresses))]
        if config.run.runtime.num_workers == 1:
            flush = flush_alone(servers.remote, between_steps)
        else:
            flush = flush_jointly(servers.remote, between_steps, estimator().model)
        return ServerDeltaLogs(flush, [folder for folder in folders if folder is not None])

    return PublishHook(
        config.run.publish.publish_dir,
        every_s=config.run.publish.publish_interval_s,
        rows=rows,
        stream=stream_of(config.run.publish),
    )


class _Member:
    """Builds one worker among several; the parts refer to each other, so they are members of one object."""

    def __init__(
        self,
        addresses: Sequence[str],
        config: ClusterJobConfig,
        security: Security,
        clock: Clock,
        resources: ExitStack,
        chief_host: Callable[[], str | None],
        *,
        from_checkpoint: bool,
    ) -> None:
        self._config = config
        self._clock = clock
        self._servers = ServerConnection(
            addresses,
            config,
            security,
            clock,
            from_checkpoint=from_checkpoint,
            steps_beside=lambda: self._hook.steps_beside,
        )
        resources.callback(self._servers.close)
        self._positions = WorkerPositions(config.run.model_dir)
        self._timeouts = WaitTimeouts(
            restore_timeout_s=config.cluster.wait.restore_sync_timeout_s,
            restore_poll_s=config.cluster.wait.restore_sync_poll_interval_s,
            chief_timeout_s=config.cluster.wait.chief_timeout_s,
        )
        self._files: SharedFiles | None = None
        if config.input.enable_dynamic_sharding:
            self._files = SharedFiles(
                config.run.model_dir,
                lambda: expand(config.input.data or ""),
                self._finished_files,
                is_over=lambda: self._hook.is_over(),
            )
            resources.callback(self._files.close)
        self._sync: SyncGroup | None = None
        mode = config.cluster.mode
        assert isinstance(mode, AsynchronousMode | PartialSyncMode)  # a member has servers
        self._exchange_steps = mode.dense_exchange_steps
        if isinstance(mode, PartialSyncMode):
            self._sync = self._make_sync(chief_host)
            resources.callback(self._sync.close)
        self._hook = self._make_hook()
        self._estimator: Estimator

    def build(self, hooks: Sequence[Hook]) -> tuple[Job, Callable[[], None]]:
        """Return the job, and the function that sets the position of this worker."""
        config = self._config
        pause, steering = self._make_steering()
        own: list[Hook] = [
            PositionHook(self._positions, config.run.runtime.index, self._session),
            self._hook,
            *steering,
        ]
        if self._files is not None and config.is_chief:
            own.append(SharedFilesHook(self._files))
        own.append(
            SlowStartHook(
                slow_start_step(config.run.runtime.index, config.run.runtime.slow_start_steps),
                self._hook.global_step,
                max_wait_s=config.run.runtime.max_slow_start_wait_s,
            )
        )
        if config.is_chief:
            own += _chief_hooks(self._servers, config, lambda: self._estimator, pause)
        job = Job(
            _job_config(config),
            hooks=[*own, *hooks],
            run_config=_own_config(config),
            store=self._servers.open,
            extra=self._shared_state,
            files=None if self._files is None else WorkListShare(self._files, worker_name(config.run.runtime.index)),
            group=None if self._sync is None else self._make_group(self._sync),
        )
        self._estimator = job.estimator
        self._estimator.drop_blocked(config.run.model_dir)  # only the chief has the folder in its own settings
        return job, self._resume_position

    # --- parts ---

    def _make_hook(self) -> MemberHook:
        config, open_state = self._config, self._servers.job_state_of
        shared: dict[str, Any] = {
            "max_steps": config.model.max_steps,
            "exchange_steps": self._exchange_steps,
            "coupling": None if self._sync is None else Lockstep(self._sync),
        }
        if not config.is_chief:
            on_new_session = None if config.cluster.ps.partial_recovery else self._on_rolled_back
            return WorkerHook(open_state, config.run.runtime.index, on_new_session=on_new_session, **shared)
        return ChiefHook(
            open_state,
            is_live=lambda: self._servers.is_live,
            on_restored=self._on_restored,
            unread=self._unread_workers,
            timeouts=self._timeouts,
            **shared,
        )

    def _make_steering(self) -> tuple[PauseControl | None, list[Hook]]:
        """Return the hooks by which the chief pauses, saves and watches all workers."""
        config = self._config
        if not config.is_chief:
            return None, []
        pause = JobPause(self._servers.job_state_of, self._session)
        if config.run.runtime.controller_port is None:
            return pause, [pause]
        return pause, [
            pause,
            ControllerHook(config.run.runtime.controller_port, pause_control=pause, workers=pause.workers),
        ]

    def _make_sync(self, chief_host: Callable[[], str | None]) -> SyncGroup:
        config = self._config
        options = {}
        if config.cluster.wait.operation_timeout_s is not None:
            options["timeout_s"] = config.cluster.wait.operation_timeout_s
        address = GroupAddress(
            index=config.run.runtime.index,
            size=config.run.runtime.num_workers,
            bind_host=config.cluster.listen.bind_host,
            advertised_host=config.cluster.listen.advertised_host or "",
            bind_port=config.cluster.listen.bind_port,
            accelerator=config.run.runtime.accelerator,
            rendezvous_timeout_s=config.cluster.wait.session_creation_timeout_s,
            **options,
        )
        if config.is_chief:
            return SyncGroup(ChiefRendezvous(address, self._clock))
        return SyncGroup(
            WorkerRendezvous(address, self._clock, chief_host=chief_host, on_new_session=self._on_chief_restarted)
        )

    def _make_group(self, sync: SyncGroup) -> Workers:
        return Workers(
            sync,
            rank=self._config.run.runtime.index,
            size=self._config.run.runtime.num_workers,
            is_current=lambda: self._config.is_chief and not self._servers.is_live,
            may_pause=self._is_pause_published,
        )

    # --- the session ---

    def _session(self) -> int:
        return self._hook.session

    def _is_pause_published(self) -> bool:
        return self._hook.state.paused_session == self._session()

    def _resume_position(self) -> None:
        """Set the position of this worker in its data: after the chief has restored, or as a restarted chief."""
        config, estimator = self._config, self._estimator
        state = self._servers.job_state()
        if config.is_chief:
            step = estimator.step  # reading the step restores the checkpoint
            if not self._servers.is_live:
                self._resume_unread()
                return
            logger.info("chief rejoined a live training step=%d", step)
        else:
            wait_for_chief(
                state, config.run.runtime.index, self._timeouts, self._clock, self._servers.remote.has_learnt
            )
            self._positions.check_shared(state.chief_session, config.run.runtime.index, self._clock)
            types = self._positions.value_types(state.chief_session())
            estimator.model.declaration.record_value_types(types, "the checkpoint of the chief")
        position = self._positions.read(config.run.runtime.index, state.chief_session())
        if position is not None and config.input.resume_data:
            estimator.resume_at(position)
        elif self._files is not None:
            self._files.begin_worker(worker_name(config.run.runtime.index))

    def _resume_unread(self) -> None:
        """Continue at the end of the chief's own data if another worker has not read all of its data."""
        extra = self._estimator.restored_extra
        position = extra.get("workers", {}).get("0")
        if extra.get("data_ended") and extra.get("unread") and position and self._config.input.resume_data:
            self._estimator.resume_at(position)

    def _unread_workers(self) -> list[int]:
        """Return the workers that a signal has ended before the end of their data.

        The workers of a shared file list, and those in lockstep, read the data of an ended worker or end with it.
        """
        if self._files is not None or self._sync is not None:
            return []
        return self._positions.unread(self._session())

    def _on_restored(self) -> None:
        """Reset the workers' data positions and the shared file list from the restored checkpoint."""
        extra = self._estimator.restored_extra
        files = extra.get("files")
        has_ended = extra.get("data_ended") and not extra.get("unread") and (files is None or not unread_files(files))
        types = self._estimator.model.declaration.value_types
        self._positions.begin(self._session(), {} if has_ended else extra.get("workers", {}), types)
        if self._files is not None:
            self._files.begin(None if has_ended or not self._config.input.resume_data else files)

    def _on_rolled_back(self) -> None:
        raise RolledBack("the chief has rolled back all servers to the last checkpoint (partial_recovery)")

    def _on_chief_restarted(self) -> None:
        raise RolledBack("the chief has started another session; this worker restarts with it")

    def _shared_state(self) -> dict[str, Any]:
        """Return the state of all workers in a checkpoint: the positions, then the file list, which may be ahead."""
        state: dict[str, Any] = {"workers": self._positions.all(self._session()), "unread": self._unread_workers()}
        if self._files is not None:
            state["files"] = self._files.state()
        return state

    def _finished_files(self, index: int) -> int:
        if self._positions.is_through(index, self._session()):
            return sys.maxsize  # not the files of the pattern now: some may have been removed
        return finished_files(self._positions.read(index, self._session()), worker_name(index))
