"""Checkpoints of ranks that step together: rank 0 leads, the others write their rows and follow what it says.

What is written is what one process or parameter servers write; only who writes which file differs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from monolith.artifacts.checkpoint_folder import SavedCheckpoint
from monolith.artifacts.checkpoint_manifest import read_manifest
from monolith.core.clock import Clock
from monolith.core.errors import ConfigError
from monolith.training.checkpoints import Checkpointer, CheckpointSettings, PendingSave, Restored, TrainingState
from monolith.training.checkpoints.choice import choose, choose_for_reading
from monolith.training.checkpoints.restoring import restore_all, restore_without_dense
from monolith.training.synchronous.peer_cut import leading
from monolith.training.synchronous.peer_store import PeerStore
from monolith.training.synchronous.peers import Peers

__all__ = ["FollowingCheckpointer", "LeadingCheckpointer"]


class LeadingCheckpointer(Checkpointer):
    """The checkpointer of rank 0; the others have a ``FollowingCheckpointer`` and call the same methods.

    Args:
        model_dir: The run's folder, which all ranks see.
        config: A ``CheckpointConfig``.
        peers: The ranks.
        options: See ``Checkpointer``.
    """

    def __init__(
        self, model_dir: str | PathLike[str], config: CheckpointSettings, *, peers: Peers, **options: Any
    ) -> None:
        super().__init__(model_dir, config, **options)
        self._peers = peers

    def restore(self, state: TrainingState) -> Restored | None:
        """Tell all ranks what to restore, and do so."""
        self.folder.repair()
        choice = choose(self._model_dir, self._config)
        _tell(self._peers, choice.saved, is_dense_cleared=choice.is_dense_cleared)
        return super().restore(state)

    def load(self, state: TrainingState, checkpoint: Path | None = None) -> Restored | None:
        """Tell all ranks what to load, and do so."""
        saved = choose_for_reading(self._model_dir, self._config) if checkpoint is None else None
        _tell(self._peers, saved, path=checkpoint)
        return super().load(state, checkpoint)

    def _write(self, save: Any, fill: Any) -> Path:
        if save.kind != "full":
            return super()._write(save, fill)
        written: list[Path] = []
        with leading(self._peers.saves, lambda: written[0]):
            written.append(super()._write(save, fill))
        return written[0]


class FollowingCheckpointer(Checkpointer):
    """The checkpointer of every other rank. Nothing is due here: rank 0 says when.

    Args:
        model_dir: The run's folder, as rank 0 sees it.
        config: A ``CheckpointConfig``.
        peers: The ranks.
        clock: Where the time comes from.
    """

    def __init__(
        self, model_dir: str | PathLike[str], config: CheckpointSettings, *, peers: Peers, clock: Clock
    ) -> None:
        super().__init__(model_dir, config, clock=clock)
        self._peers = peers

    def save(self, state: TrainingState, *, reason: str) -> PendingSave:
        """Take this rank's rows as they are now, and write them when rank 0 says where."""
        if not isinstance(state.store, PeerStore):
            raise ConfigError(f"the store is a {type(state.store).__name__}; ranks that step together need a PeerStore")
        self._writer.wait_until_idle(state.step)
        if self._config.feature_eviction_on_save:
            state.store.evict()
        run = self._writer.begin if self._config.background_save else self._writer.finish
        return run(state.step, reason, 0.0, state.store.cut().follow)

    def restore(self, state: TrainingState) -> Restored | None:
        """Restore what rank 0 chose; it leaves the notes."""
        told = _hear(self._peers)
        if told["path"] is None:
            return None
        saved = _saved(told)
        if told["is_dense_cleared"]:
            return restore_without_dense(saved, state, keep_step=self._config.continue_training)
        return restore_all(saved, state, self._config.reload_alias_map)

    def load(self, state: TrainingState, checkpoint: Path | None = None) -> Restored | None:
        """Load what rank 0 chose."""
        told = _hear(self._peers)
        return None if told["path"] is None else restore_all(_saved(told), state, self._config.reload_alias_map)


def _tell(
    peers: Peers, saved: SavedCheckpoint | None, *, is_dense_cleared: bool = False, path: Path | None = None
) -> None:
    chosen = path if saved is None else saved.path
    body = {"path": None if chosen is None else str(chosen.absolute()), "is_dense_cleared": is_dense_cleared}
    peers.steps.from_chief(json.dumps(body).encode())


def _hear(peers: Peers) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(peers.steps.from_chief())
    return told


def _saved(told: Mapping[str, Any]) -> SavedCheckpoint:
    path = Path(told["path"])
    return SavedCheckpoint(path, read_manifest(path))
