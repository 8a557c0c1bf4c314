"""``ServerConnection``: the store of one worker on the parameter servers, opened for the tables of its model.

It decides whether the servers hold a live training, which is newer than any checkpoint, and clears rows whose position
in the data is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from monolith.artifacts import CheckpointFolder
from monolith.core.clock import Clock
from monolith.core.errors import ClusterError
from monolith.embedding import EmbeddingStore, TableSpec
from monolith.ps import RemoteStore, Restart, Security
from monolith.training.checkpoints.choice import CHECKPOINTS
from monolith.training.checkpoints.files import TABLES
from monolith.training.cluster.cluster_store import ClusterStore
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.job_state import JobState, WorkerPhase, job_state_specs
from monolith.training.cluster.model_folder import newest_tables
from monolith.training.cluster.worker_hook import weights_of
from monolith.training.run import Run

__all__ = ["RolledBack", "ServerConnection"]

logger = logging.getLogger(__name__)

_CONNECT_S = 15.0
"""How long a worker dials addresses from discovery before it looks them up again: a server may have moved."""


class RolledBack(ClusterError):
    """The job resumes from its last checkpoint: a server was lost, or the chief has started another session."""


class ServerConnection:
    """The connection of one worker to one set of servers.

    Args:
        addresses: The servers, by index.
        config: The settings of the job and of this worker.
        security: TLS and token of the servers.
        clock: Measures waits.
        from_checkpoint: Resume from the newest checkpoint, and ignore the state of the servers.
        steps_beside: Returns the steps of the job that this worker has not taken.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        config: ClusterJobConfig,
        security: Security,
        clock: Clock,
        *,
        from_checkpoint: bool = False,
        steps_beside: Callable[[], int] = lambda: 0,
    ) -> None:
        self.addresses = addresses
        self.security = security
        self.remote: RemoteStore
        """The tables of the model and of the job; set by ``open``."""
        self.is_live = False
        """Whether the servers hold a live training of several workers; set by ``open``."""
        self._config = config
        self._clock = clock
        self._from_checkpoint = from_checkpoint
        self._steps_beside = steps_beside
        self._close: Callable[[], None] = lambda: None

    def open(self, specs: Sequence[TableSpec]) -> EmbeddingStore:
        """Connect to the servers; return the store of the model's tables.

        With several workers, the servers also get the hidden tables of the job.
        """
        if self._config.run.runtime.num_workers == 1:
            self._connect(specs)
            self._clear_orphaned_rows()
            return self.remote
        hidden = job_state_specs()
        self._connect([*specs, *hidden])
        self.is_live = self._has_live_training()
        self._clear_orphaned_rows()
        return ClusterStore(
            self.remote,
            frozenset(spec.name for spec in hidden),
            is_live=self.is_live,
            steps_beside=self._steps_beside,
        )

    def job_state(self, weights: int = 0) -> JobState:
        """Return the state of the job, for one thread.

        Args:
            weights: The number of dense weights that workers share.
        """
        return JobState(self.remote, self._config.run.runtime.index, self._config.run.runtime.num_workers, weights)

    def job_state_of(self, run: Run) -> JobState:
        """Return the state of the job with the dense weights of a run's model."""
        return self.job_state(sum(weight.numel() for weight in weights_of(run.model)))

    def evict(self) -> int:
        """Remove the expired rows of all servers; return their number."""
        return self.remote.evict()

    def compact(self, checkpoint: Path) -> None:
        """Remove segments of the delta logs that a durable checkpoint contains."""
        self.remote.compact_deltas(checkpoint / TABLES)

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._close()

    def _connect(self, specs: Sequence[TableSpec]) -> None:
        options: dict[str, Any] = {"half": self._config.cluster.sync.fp16_exchange}
        if self._config.cluster.wait.operation_timeout_s is not None:
            options["timeout_s"] = self._config.cluster.wait.operation_timeout_s
        self.remote = RemoteStore(
            self.addresses,
            specs,
            security=self.security,
            connect_s=_CONNECT_S,
            on_restart=self._on_restart,
            clock=self._clock,
            **options,
        )
        self._close = self.remote.close

    def _on_restart(self, restart: Restart) -> None:
        """Continue with a recovered server, which has lost at most its last second; or roll back the whole job."""
        logger.warning("parameter server restarted and recovered index=%d rows=%d", restart.index, restart.rows)
        if self._config.cluster.ps.partial_recovery:
            return
        if not CheckpointFolder(f"{self._config.run.model_dir}/{CHECKPOINTS}").saved():
            raise ClusterError(
                f"server {restart.index} was lost before the first checkpoint, and partial_recovery is False: there is "
                "no checkpoint to roll back to; restart the job, with its servers"
            )
        raise RolledBack(
            f"server {restart.index} was lost; the job rolls back to the last checkpoint (partial_recovery)"
        )

    def _has_live_training(self) -> bool:
        """Return True if the servers hold state newer than the last checkpoint.

        Recovered state does not count: if every server restarted and none has received a push since, the whole job
        restarted. It then resumes from the checkpoint, whose position in the data it has.
        """
        config = self._config
        if (
            self._from_checkpoint
            or config.run.checkpoint.restore.restore_ckpt is not None
            or config.run.checkpoint.restore.restore_dir is not None
            or config.run.checkpoint.restore.clear_nn
            or config.run.checkpoint.restore.grow_nn
        ):
            return False
        chief = JobState(self.remote, 0, config.run.runtime.num_workers, 0).read()[0]
        return chief.phase == WorkerPhase.READY and self.remote.has_learnt()

    def _clear_orphaned_rows(self) -> None:
        """Clear the tables when there is no checkpoint: the position in the data is lost, so the rows are too.

        With a checkpoint, its restore replaces the rows.
        """
        config = self._config
        is_restored = (
            newest_tables(config.run.model_dir) is not None or config.run.checkpoint.restore.restore_dir is not None
        )
        if config.is_chief and not self.is_live and not is_restored:
            self.remote.rewind()
