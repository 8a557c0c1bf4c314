"""Checkpoints of ranks: rank 0 leads, the other ranks write their rows and follow.

The files are those that one process or parameter servers write.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from typing_extensions import override

from monolith.artifacts.checkpoint_folder import SavedCheckpoint
from monolith.core.clock import Clock
from monolith.core.errors import ConfigError
from monolith.embedding.ranks.channel import Channel
from monolith.embedding.ranks.rank_cut import leading
from monolith.embedding.ranks.rank_store import RankStore
from monolith.training.checkpoints import Checkpointer, PendingSave, Restored, TrainingState
from monolith.training.checkpoints.choice import choose, choose_for_reading
from monolith.training.checkpoints.opening import open_checkpoint
from monolith.training.checkpoints.restoring import restore_all, restore_without_dense
from monolith.training.config.checkpoint import CheckpointConfig
from monolith.training.groups.ranks.connection import RankConnection

__all__ = ["FollowingCheckpointer", "LeadingCheckpointer"]


class LeadingCheckpointer(Checkpointer):
    """The checkpointer of rank 0; the other ranks have a ``FollowingCheckpointer`` and call the same methods.

    Args:
        model_dir: The run's folder, which all ranks see.
        config: A ``CheckpointConfig``.
        connection: The channels to all ranks.
        options: See ``Checkpointer``.
    """

    def __init__(
        self, model_dir: str | PathLike[str], config: CheckpointConfig, *, connection: RankConnection, **options: Any
    ) -> None:
        super().__init__(model_dir, config, around_save=partial(_lead, connection.saves), **options)
        self._connection = connection
        self._settings = config.restore
        self._root = Path(model_dir)

    @override
    def restore(self, state: TrainingState) -> Restored | None:
        self.folder.repair()
        choice = choose(self._root, self._settings)
        _announce(self._connection, choice.saved, is_dense_cleared=choice.is_dense_cleared)
        return super().restore(state)

    @override
    def load(self, state: TrainingState, checkpoint: Path | None = None) -> Restored | None:
        saved = choose_for_reading(self._root, self._settings) if checkpoint is None else None
        _announce(self._connection, saved, path=checkpoint)
        return super().load(state, checkpoint)


class FollowingCheckpointer(Checkpointer):
    """The checkpointer of every other rank. It has no schedule: rank 0 decides when to save.

    Args:
        model_dir: The run's folder, by the path of rank 0.
        config: A ``CheckpointConfig``.
        connection: The channels to all ranks.
        clock: The clock of the run.
    """

    def __init__(
        self, model_dir: str | PathLike[str], config: CheckpointConfig, *, connection: RankConnection, clock: Clock
    ) -> None:
        super().__init__(model_dir, config, clock=clock)
        self._connection = connection
        self._settings = config

    @override
    def save(self, state: TrainingState, *, reason: str) -> PendingSave:
        if not isinstance(state.store, RankStore):
            raise ConfigError(f"the store is a {type(state.store).__name__}, expected a RankStore for ranks")
        store = state.store

        def cut() -> Callable[[], Path]:
            if self._settings.feature_eviction_on_save:
                store.evict()
            return store.cut().follow

        return self.save_part(state.step, reason, cut)

    @override
    def restore(self, state: TrainingState) -> Restored | None:
        choice = _receive(self._connection)
        if choice["path"] is None:
            return None
        saved = _saved(choice)
        if choice["is_dense_cleared"]:
            return restore_without_dense(saved, state, keep_step=self._settings.restore.continue_training)
        settings = self._settings.restore
        return restore_all(saved, state, settings.reload_alias_map, grows=settings.grow_nn)

    @override
    def load(self, state: TrainingState, checkpoint: Path | None = None) -> Restored | None:
        choice = _receive(self._connection)
        if choice["path"] is None:
            return None
        return restore_all(_saved(choice), state, self._settings.restore.reload_alias_map)


def _lead(saves: Channel, write: Callable[[], Path]) -> Path:
    written: list[Path] = []
    with leading(saves, lambda: written[0]):
        written.append(write())
    return written[0]


def _announce(
    connection: RankConnection,
    saved: SavedCheckpoint | None,
    *,
    is_dense_cleared: bool = False,
    path: Path | None = None,
) -> None:
    chosen = path if saved is None else saved.path
    body = {"path": None if chosen is None else str(chosen.absolute()), "is_dense_cleared": is_dense_cleared}
    connection.steps.broadcast_bytes(json.dumps(body).encode())


def _receive(connection: RankConnection) -> dict[str, Any]:
    choice: dict[str, Any] = json.loads(connection.steps.broadcast_bytes())
    return choice


def _saved(choice: Mapping[str, Any]) -> SavedCheckpoint:
    return open_checkpoint(Path(choice["path"]))
