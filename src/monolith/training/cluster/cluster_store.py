"""``ClusterStore``: the store of one worker among several, which hides the tables of the job from the model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from os import PathLike

import numpy as np
from numpy.typing import ArrayLike, NDArray

from monolith.embedding import Manifest, RestoreReport, TableSpec
from monolith.embedding.store import Ids, Rows
from monolith.ps import RemoteStore
from monolith.ps.checkpoint import RemoteCut

__all__ = ["ClusterStore"]

logger = logging.getLogger(__name__)


class ClusterStore:
    """An ``EmbeddingStore`` whose snapshots also contain the hidden tables.

    Args:
        remote: All tables.
        hidden: Names of the hidden tables.
        is_live: Whether the servers hold a live training: a restore then changes nothing.
        steps_beside: Returns the steps of the job that this worker has not taken; schedules count those of all workers.
    """

    def __init__(
        self, remote: RemoteStore, hidden: frozenset[str], *, is_live: bool, steps_beside: Callable[[], int]
    ) -> None:
        self._remote = remote
        self._hidden = hidden
        self._is_live = is_live
        self._steps_beside = steps_beside
        self._specs = {name: spec for name, spec in remote.specs.items() if name not in hidden}

    @property
    def specs(self) -> Mapping[str, TableSpec]:
        """The tables of the model."""
        return self._specs

    @property
    def shards(self) -> int:
        """The number of servers."""
        return len(self._remote.addresses)

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        """Return one row per id."""
        return self._remote.pull(ids)

    def push(
        self,
        ids: Mapping[str, Ids],
        grads: Mapping[str, Rows],
        *,
        counts: Mapping[str, ArrayLike] | None = None,
        learning_rates: Mapping[str, ArrayLike] | None = None,
        time_s: int = 0,
        step: int = 0,
    ) -> None:
        """Take one optimizer step per id; ``step`` is this worker's own."""
        step += self._steps_beside()
        self._remote.push(ids, grads, counts=counts, learning_rates=learning_rates, time_s=time_s, step=step)

    def cut(self) -> RemoteCut:
        """Cut the tables of all servers."""
        return self._remote.cut()

    def snapshot(self, path: str | PathLike[str]) -> Manifest:
        """Write everything to ``path``."""
        return self._remote.snapshot(path)

    def restore(self, path: str | PathLike[str]) -> RestoreReport:
        """Replace all rows by a snapshot, unless the servers hold a live training, whose state is newer."""
        if self._is_live:
            logger.info("servers hold newer state, table restore skipped path=%s", path)
            return RestoreReport(restored=(), skipped=(), missing=())
        report = self._remote.restore(path)
        return RestoreReport(
            restored=tuple(name for name in report.restored if name not in self._hidden),
            skipped=report.skipped,
            missing=tuple(name for name in report.missing if name not in self._hidden),
        )

    def delete(self, ids: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.bool_]]:
        """Remove rows by table; return for each id whether it had a row."""
        return self._remote.delete(ids)

    def evict(self, now_s: int | None = None) -> int:
        """Remove expired rows; return how many."""
        return self._remote.evict(now_s)
