"""Save and restore the state of a run; the training loop calls ``Checkpointer``.

The loop's thread takes the cut (copies of the dense part, a mark in the tables) and continues; one writer thread writes
the files. :mod:`choice` selects the checkpoint that a run starts from, :mod:`restoring` restores it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import monolith
from monolith.artifacts.checkpoint_folder import CheckpointFolder, SavedCheckpoint
from monolith.artifacts.checkpoint_manifest import CheckpointManifest
from monolith.artifacts.remote_folder import push_folder
from monolith.artifacts.retention import Retention
from monolith.core.clock import Clock
from monolith.core.errors import ArtifactError, VersionConflict
from monolith.training.checkpoints import files
from monolith.training.checkpoints.choice import CHECKPOINTS, DENSE_ONLY, choose, choose_for_reading
from monolith.training.checkpoints.opening import open_checkpoint
from monolith.training.checkpoints.pending import BackgroundWriter, PendingSave
from monolith.training.checkpoints.restoring import Restored, restore_all, restore_dense_part, restore_without_dense
from monolith.training.checkpoints.state import CuttingStore, TrainingState, capture
from monolith.training.config.checkpoint import CheckpointConfig
from monolith.training.config.tide import SaveTimer

__all__ = ["Checkpointer"]

logger = logging.getLogger(__name__)

_Fill = Callable[[Path], Mapping[str, int]]


@runtime_checkable
class _Evicting(Protocol):
    def evict(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Save:
    """Description of a save, complete once its state is captured."""

    kind: Literal["full", "dense_only"]
    step: int
    reason: str
    saved_at_s: float
    pause_s: float


@dataclass(frozen=True, slots=True)
class _Before:
    """State of the schedule before a save."""

    last_step: int | None
    counted_from: tuple[int, float] | None


class Checkpointer:
    """Saves and restores the state of one run. Used by one thread, the loop's.

    Args:
        model_dir: The run's folder. Full checkpoints are in ``checkpoints/``, dense-only ones in ``dense_only/``.
        config: Schedule, retention and restoring.
        clock: Where the time comes from.
        timer: Schedule of full saves; None = save only when ``save`` is called.
        dense_timer: Schedule of dense-only saves.
        around_save: Called with the function that writes a full checkpoint, by the thread that writes; it calls the
            function and returns its result. None = the function is called directly.
    """

    def __init__(
        self,
        model_dir: str | PathLike[str],
        config: CheckpointConfig,
        *,
        clock: Clock,
        timer: SaveTimer | None = None,
        dense_timer: SaveTimer | None = None,
        around_save: Callable[[Callable[[], Path]], Path] | None = None,
    ) -> None:
        self._model_dir = Path(model_dir)
        self._config = config
        self._clock = clock
        self._timer = timer
        self._dense_timer = dense_timer
        self._around_save = around_save
        self._retention = Retention(
            max_to_keep=config.retention.checkpoints_max_to_keep, spare_every_s=config.retention.keep_checkpoint_every_s
        )
        self._folders = {
            "full": CheckpointFolder(self._model_dir / CHECKPOINTS),
            "dense_only": CheckpointFolder(self._model_dir / DENSE_ONLY),
        }
        self._started_at_s = clock.now_s()
        self._writer = BackgroundWriter()
        self._newest: tuple[PendingSave, _Before] | None = None
        self.last_step: int | None = None
        """Step of the newest full checkpoint that this object saved or restored; None before the first."""

    @property
    def folder(self) -> CheckpointFolder:
        """The full checkpoints."""
        return self._folders["full"]

    # --- saving ---

    def is_due(self, step: int) -> bool:
        """Return whether a full save is due after ``step``."""
        self._forget_failed()
        return self._timer is not None and self._timer.is_due(step, self._clock.now_s())

    def is_dense_due(self, step: int) -> bool:
        """Return whether a dense-only save is due after ``step``; False where a full save is due."""
        self._forget_failed()
        if self._dense_timer is None or self.last_step == step:
            return False
        return self._dense_timer.is_due(step, self._clock.now_s())

    def _forget_failed(self) -> None:
        """Count from the save before a failed one: requested saves that fail must not postpone the schedule."""
        if self._newest is None or not self._newest[0].has_failed:
            return
        (_, before), self._newest = self._newest, None
        self.last_step = before.last_step
        if self._timer is not None and before.counted_from is not None:
            self._timer.start(*before.counted_from)

    def save(self, state: TrainingState, *, reason: str) -> PendingSave:
        """Capture the current state and write it as a full checkpoint.

        Returns after the cut, unless ``background_save`` is off or the store cannot be cut. First waits for a save in
        progress.

        Raises:
            ConfigError: The state holds something that cannot be saved; nothing was written.
        """
        started_s = self._clock.monotonic_s()
        self._writer.wait_until_idle(state.step)
        self._forget_failed()
        saved_at_s = self._clock.now_s()
        captured = capture(state)
        if self._config.feature_eviction_on_save and isinstance(state.store, _Evicting):
            # Before the cut: a snapshot leaves expired rows out, so a resumed run would not have them either.
            logger.info("expired rows removed step=%d rows=%d", state.step, state.store.evict())
        cut = state.store.cut() if isinstance(state.store, CuttingStore) else None
        save = _Save("full", state.step, reason, saved_at_s, self._clock.monotonic_s() - started_s)

        def fill(folder: Path) -> Mapping[str, int]:
            files.write_dense(folder, captured)
            tables = folder / files.TABLES
            return (state.store.snapshot(tables) if cut is None else cut.write(tables)).rows

        def write() -> Path:
            try:
                if self._around_save is None:
                    return self._write(save, fill)
                return self._around_save(lambda: self._write(save, fill))
            finally:
                if cut is not None:
                    cut.drop()  # also after a failure before the tables are written: they must not stay cut

        before = _Before(self.last_step, None if self._timer is None else self._timer.last)
        self.last_step = state.step
        if self._timer is not None:
            self._timer.mark_saved(state.step, saved_at_s)
        pending = self._begin(save, write, in_background=cut is not None)
        self._newest = pending, before
        return pending

    def save_dense(self, state: TrainingState, *, reason: str) -> PendingSave:
        """Like ``save``, without the tables, into ``dense_only/``."""
        started_s = self._clock.monotonic_s()
        self._writer.wait_until_idle(state.step)
        saved_at_s = self._clock.now_s()
        captured = capture(state)
        save = _Save("dense_only", state.step, reason, saved_at_s, self._clock.monotonic_s() - started_s)

        def fill(folder: Path) -> Mapping[str, int]:
            files.write_dense(folder, captured)
            return {}

        if self._dense_timer is not None:
            self._dense_timer.mark_saved(state.step, saved_at_s)
        return self._begin(save, lambda: self._write(save, fill), in_background=True)

    def save_part(self, step: int, reason: str, cut: Callable[[], Callable[[], Path]]) -> PendingSave:
        """Write this process's part of a full checkpoint that another process leads.

        First waits for an earlier save.

        Args:
            step: The step of the checkpoint.
            reason: Why it is saved.
            cut: Copies the state now; returns the function that writes it and returns the checkpoint's folder.
        """
        self._writer.wait_until_idle(step)
        run = self._writer.begin if self._config.background_save else self._writer.finish
        return run(step, reason, 0.0, cut())

    def close(self) -> None:
        """Wait for saves in progress; raise the error of a failed save that no caller has received."""
        self._writer.close()

    def _begin(self, save: _Save, write: Callable[[], Path], *, in_background: bool) -> PendingSave:
        run = self._writer.begin if in_background and self._config.background_save else self._writer.finish
        return run(save.step, save.reason, save.pause_s, write)

    def _write(self, save: _Save, fill: _Fill) -> Path:
        started_s = self._clock.monotonic_s()
        header = CheckpointManifest(
            step=save.step,
            number=0,
            kind=save.kind,
            saved_at_s=save.saved_at_s,
            reason=save.reason,
            package_version=monolith.__version__,
        )
        folder = self._folders[save.kind]
        try:
            saved = folder.add(header, fill, retention=self._retention, started_at_s=self._started_at_s)
        except OSError as error:
            raise ArtifactError(_failure(save, folder, error)) from error
        self._upload()
        logger.info(
            "checkpoint saved path=%s reason=%s bytes=%d pause_ms=%.1f write_s=%.2f",
            saved.path,
            save.reason,
            saved.manifest.bytes,
            1000 * save.pause_s,
            self._clock.monotonic_s() - started_s,
        )
        return saved.path

    def _upload(self) -> None:
        """Upload the model folder of a URL. A failure does not end the training: the next save tries again.

        Raises:
            VersionConflict: Another run writes to the URL.
        """
        try:
            push_folder(self._model_dir)
        except VersionConflict:
            raise
        except ArtifactError as error:
            logger.error("upload failed, retrying with the next checkpoint folder=%s error=%s", self._model_dir, error)

    # --- restoring ---

    def restore(self, state: TrainingState) -> Restored | None:
        """Restore the newest checkpoint, or the requested one, into the objects of ``state``.

        Returns:
            The state that the loop takes over itself; None when there is no checkpoint.

        Raises:
            ArtifactError: The checkpoint is missing or damaged. Nothing has changed. An older checkpoint
                is never used silently; the error names the remedy.
            SchemaMismatch: The checkpoint does not fit the model.
        """
        self.folder.repair()
        choice = choose(self._model_dir, self._config.restore)
        restored = None
        if choice.saved is not None and choice.is_dense_cleared:
            restored = restore_without_dense(choice.saved, state, keep_step=self._config.restore.continue_training)
        elif choice.saved is not None:
            settings = self._config.restore
            restored = restore_all(choice.saved, state, settings.reload_alias_map, grows=settings.grow_nn)
        choice.leave_notes()
        if restored is None:
            return None
        self.last_step = restored.step
        logger.info(
            "checkpoint restored path=%s step=%d dense=%s",
            restored.path,
            restored.step,
            "cleared" if choice.is_dense_cleared else "restored",
        )
        return restored

    def load(self, state: TrainingState, checkpoint: Path | None = None) -> Restored | None:
        """Like ``restore``, for evaluation and prediction: leaves no markers, clears nothing.

        Give a state without optimizers, and with ``rng=False``, to leave those as they are.

        Args:
            state: The objects to restore into.
            checkpoint: Folder of a checkpoint; None = as ``restore`` chooses.
        """
        saved = self._find(checkpoint)
        return None if saved is None else restore_all(saved, state, self._config.restore.reload_alias_map)

    def load_dense(self, state: TrainingState, checkpoint: Path | None = None) -> Restored | None:
        """Like ``load``, for the dense part alone: the rows of ``state.store`` are unchanged."""
        saved = self._find(checkpoint)
        return None if saved is None else restore_dense_part(saved, state, self._config.restore.reload_alias_map)

    def _find(self, checkpoint: Path | None) -> SavedCheckpoint | None:
        if checkpoint is not None:
            return open_checkpoint(checkpoint)
        return choose_for_reading(self._model_dir, self._config.restore)


def _failure(save: _Save, folder: CheckpointFolder, error: OSError) -> str:
    saved = folder.saved()
    last = f"the last good one is '{saved[-1].path}'" if saved else "there is no earlier one"
    return (
        f"the checkpoint of step {save.step} was not saved: {error}; nothing of it is left, {last}. Free some space "
        f"under '{folder.root}', or choose another model_dir"
    )
