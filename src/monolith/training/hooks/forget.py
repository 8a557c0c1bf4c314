"""Forget ids during a run: remove their rows, publish the removal, and save a checkpoint without them.

NOTE: one request

    1. The receipt is written to ``<model_dir>/forgotten``. From here the request survives a crash: a run that restores
       a checkpoint from before step 5 removes the rows again.
    2. The rows are removed between two steps, after all earlier updates.
    3. A cut is published. Followers of this cut and of later ones do not have the rows.
    4. A checkpoint is saved. It becomes the base of the delta log, whose earlier segments are removed.
    5. The receipt is completed: cut, checkpoint, and the older files that still hold the rows.

A model folder at a URL is uploaded after step 5, so that dropped checkpoints leave the URL too.

A thread of the controller handles the request; the loop continues to train except in step 2.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from monolith.artifacts import CheckpointFolder, read_manifest
from monolith.artifacts.delta_log import Cut, segment_numbers, segment_path, written_ids
from monolith.artifacts.forget_receipts import ForgetLedger, ForgottenRow, Receipt, Remainder
from monolith.artifacts.remote_folder import artifact_url, push_folder
from monolith.core.errors import ArtifactError, CheckpointMissing, ConfigError, MonolithError
from monolith.embedding.ranks.rank_store import RankStore
from monolith.training.checkpoints.choice import CHECKPOINTS
from monolith.training.export_places import export_base
from monolith.training.forgetting import REFRESH_S, erase, find_rows
from monolith.training.hooks.base import Hook
from monolith.training.hooks.early_stopping import BEST
from monolith.training.run import Run

__all__ = ["ForgetHook"]

logger = logging.getLogger(__name__)

_BLOCK_S = 1.5 * REFRESH_S


class ForgetHook(Hook):
    """Removes rows on request, and completes the receipts of earlier runs that were killed before their checkpoint.

    ``forget`` may be called from any thread but that of the loop.
    """

    def __init__(self) -> None:
        self.publish: Callable[[], Cut] | None = None
        """Publishes now; None without a published folder. Set before the run."""
        self.published: Path | None = None
        """The published folder."""
        self._run: Run | None = None
        self._one_request = threading.Lock()
        self._lock = threading.Lock()
        self._pending: dict[int, Receipt] = {}
        self._covered: dict[int, dict[int, Receipt]] = {}
        self._cuts: dict[int, Cut] = {}

    @override
    def on_start(self, run: Run) -> None:
        self._run = run
        self._ledger = ForgetLedger(run.model_dir)
        self._pending = {each.number: each for each in self._ledger.all() if not each.is_complete}

    @override
    def on_end(self, run: Run, error: BaseException | None) -> None:
        self._run = None

    @override
    def before_save(self, run: Run) -> None:
        """Note the removals that the checkpoint contains."""
        with self._lock:
            if self._pending:
                self._covered[run.step] = dict(self._pending)

    @override
    def after_save(self, run: Run, path: Path) -> None:
        """Complete the receipts whose removals the checkpoint contains."""
        if not self._covered:
            return
        try:
            manifest = read_manifest(path)
        except CheckpointMissing:  # retention removed it; the next checkpoint completes the receipts
            return
        with self._lock:
            covered = self._covered.pop(manifest.step, {})
            self._covered = {step: each for step, each in self._covered.items() if step > manifest.step}
            receipts = [self._pending.pop(number) for number in covered if number in self._pending]
        for receipt in receipts:
            try:
                self._complete(run, receipt, path, manifest.number)
            except (MonolithError, OSError) as error:
                logger.error("receipt waits for the next checkpoint receipt=%d error=%s", receipt.number, error)
                with self._lock:
                    self._pending[receipt.number] = receipt
        if receipts:
            try:
                push_folder(run.model_dir)
            except ArtifactError as error:
                logger.error("receipt not uploaded, retrying with the next checkpoint error=%s", error)

    # --- one request --------------------------------------------------------------------------------------------------

    def forget(
        self,
        values: Sequence[str],
        *,
        features: Sequence[str] = (),
        tables: Sequence[str] = (),
        block: bool = False,
        drop_checkpoints: bool = False,
        checkpoint_wait_s: float = 300.0,
    ) -> Receipt:
        """Remove the rows of values; return the receipt, complete unless the checkpoint has to wait for data.

        Args:
            values: Values as text; see ``find_rows``.
            features: Features whose values they are.
            tables: Tables whose ids they are.
            block: Drop later updates of the ids too.
            drop_checkpoints: Remove older checkpoints, which hold the rows; else retention removes them.
            checkpoint_wait_s: Wait for the checkpoint, which is saved at a step boundary. A run that waits for events
                longer than that saves at its next step, and completes the receipt then.

        Raises:
            ConfigError: The request is invalid; nothing was removed.
            MonolithError: The rows are removed, and the cut or the checkpoint failed. The receipt stays open, and the
                next checkpoint completes it. Or the upload of a model folder at a URL failed.
        """
        run = self._run
        if run is None:
            raise ConfigError("no run is active, expected a run that trains; start the training, then ask again")
        if isinstance(run.store, RankStore):
            raise ConfigError(
                "the rows are on ranks that step together, expected one process or parameter servers; resume the model "
                "in one process to forget ids"
            )
        rows = find_rows(run.model.declaration, values, features, tables)
        with self._one_request:
            receipt = self._remove(run, rows, block)
            try:
                receipt = self._publish(receipt)
            finally:  # a failed publish is repeated by the next one
                with self._lock:
                    self._pending[receipt.number] = receipt
            _save(run, checkpoint_wait_s)  # after_save completes the receipt
            receipt = self._read(receipt.number)
            return self._drop_checkpoints(run, receipt) if drop_checkpoints else receipt

    def _read(self, number: int) -> Receipt:
        return next(each for each in self._ledger.all() if each.number == number)

    def _remove(self, run: Run, rows: tuple[ForgottenRow, ...], block: bool) -> Receipt:
        receipt = self._ledger.begin(
            Receipt(requested_at_s=run.clock.now_s(), step=run.step, is_blocked=block, rows=rows)
        )
        if block:  # workers learn of the block before the rows go
            run.clock.sleep_s(_BLOCK_S)
        with run.between_steps():
            ids = receipt.ids
            existed = erase(run.store, ids)
            step = run.step
        removed = {
            (table, int(fid))
            for table, each in ids.items()
            for fid, had in zip(each, existed[table], strict=True)
            if had
        }
        receipt = replace(
            receipt, step=step, rows=tuple(replace(row, had_row=(row.table, row.id) in removed) for row in rows)
        )
        self._ledger.write(receipt)
        logger.info("rows forgotten receipt=%d ids=%d rows=%d step=%d", receipt.number, len(rows), len(removed), step)
        return receipt

    def _publish(self, receipt: Receipt) -> Receipt:
        if self.publish is None:
            return receipt
        try:
            cut = self.publish()
        except OSError as error:
            raise MonolithError(
                f"rows of receipt {receipt.number} are removed, and the removal was not published: {error}; free the "
                "disk: the next publish contains it"
            ) from error
        receipt = replace(receipt, published=str(self.published), cut=cut.number)
        self._cuts[receipt.number] = cut
        self._ledger.write(receipt)
        return receipt

    def _complete(self, run: Run, receipt: Receipt, checkpoint: Path, number: int) -> None:
        if receipt.cut is None and self.publish is not None:  # of a run that was killed
            cut = self.publish()
            receipt = replace(receipt, published=str(self.published), cut=cut.number)
            self._cuts[receipt.number] = cut
        done = replace(
            receipt,
            completed_at_s=run.clock.now_s(),
            checkpoint=str(checkpoint),
            checkpoint_number=number,
        )
        self._ledger.write(replace(done, remaining=tuple(self._remaining(run, done))))
        self._cuts.pop(receipt.number, None)
        logger.info("receipt completed receipt=%d cut=%s checkpoint=%s", done.number, done.cut, checkpoint.name)

    def _drop_checkpoints(self, run: Run, receipt: Receipt) -> Receipt:
        if receipt.checkpoint_number is None:
            return receipt
        folder = CheckpointFolder(run.model_dir / CHECKPOINTS)
        dropped = {artifact_url(folder.root / name) for name in folder.remove_older(receipt.checkpoint_number)}
        if (best := _best_before(run.model_dir, receipt.checkpoint_number)) is not None:
            shutil.rmtree(best)
            dropped.add(artifact_url(best))
        done = replace(receipt, remaining=tuple(each for each in receipt.remaining if each.path not in dropped))
        self._ledger.write(done)
        try:
            push_folder(run.model_dir)
        except ArtifactError as error:
            raise MonolithError(
                f"rows of receipt {receipt.number} are removed, and older checkpoints are still at the URL: {error}; "
                "the next checkpoint removes them"
            ) from error
        return done

    # --- older files --------------------------------------------------------------------------------------------------

    def _remaining(self, run: Run, receipt: Receipt) -> Iterator[Remainder]:
        """Yield the older files that still hold the rows."""
        if not any(row.had_row for row in receipt.rows):
            return
        yield from self._remaining_checkpoints(run, receipt.checkpoint_number or 0)
        yield from self._remaining_segments(receipt)
        exports = export_base(run.config)
        for path in sorted(exports.iterdir()) if exports.is_dir() else ():
            if path.is_dir() and path.stat().st_mtime <= receipt.requested_at_s:
                yield Remainder(
                    kind="export", path=artifact_url(path), removed_by="the owner: export again, then remove the folder"
                )

    def _remaining_checkpoints(self, run: Run, number: int) -> Iterator[Remainder]:
        folder = CheckpointFolder(run.model_dir / CHECKPOINTS)
        kept = folder.exempted() | folder.pinned()
        limit = run.config.checkpoint.retention.checkpoints_max_to_keep
        for each in folder.saved():
            if each.manifest.number >= number:
                continue
            rule = f"retention: checkpoints_max_to_keep={limit}"
            if each.name in kept or each.manifest.is_spared:
                rule = "the owner: retention keeps this checkpoint; forget with --drop-checkpoints"
            yield Remainder(kind="checkpoint", path=artifact_url(each.path), removed_by=rule)
        if (best := _best_before(run.model_dir, number)) is not None:
            rule = "the owner: keep_best_checkpoint keeps this copy; forget with --drop-checkpoints"
            yield Remainder(kind="checkpoint", path=artifact_url(best), removed_by=rule)

    def _remaining_segments(self, receipt: Receipt) -> Iterator[Remainder]:
        cut = self._cuts.get(receipt.number)
        if cut is None or self.published is None:
            return
        ids = receipt.ids
        for shard, folder in enumerate(cut.folders):
            path = (self.published / folder).resolve()
            for number in segment_numbers(path):
                if number >= cut.sequences[shard]:
                    break
                segment = segment_path(path, number)
                try:
                    written = written_ids(segment)
                except FileNotFoundError:  # the log was compacted meanwhile
                    continue
                if any(_intersects(written.get(table), each) for table, each in ids.items()):
                    yield Remainder(kind="segment", path=str(segment), removed_by="the next checkpoint")


def _best_before(model_dir: Path, number: int) -> Path | None:
    """Return the copy of the best checkpoint, unless it is as new as the checkpoint of a number."""
    best = model_dir / BEST
    if not best.is_dir():
        return None
    try:
        is_newer = read_manifest(best).number >= number
    except ArtifactError:
        is_newer = False
    return None if is_newer else best


def _intersects(written: NDArray[np.int64] | None, ids: NDArray[np.int64]) -> bool:
    return written is not None and bool(np.isin(ids, written).any())


def _save(run: Run, wait_s: float) -> None:
    """Request a checkpoint, and wait for it so long.

    Raises:
        MonolithError: The checkpoint failed.
    """
    outcome: Future[Path] = Future()

    def save() -> None:
        try:
            outcome.set_result(run.save("forget"))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=save, name="forget-save", daemon=True).start()
    with contextlib.suppress(TimeoutError):
        outcome.result(wait_s)
