"""The training loop: steps until the end of the data or a stop, checkpoints on the way, hooks beside it.

Everything happens at step boundaries in one thread; other threads make requests by ``stop``, ``pause``, ``resume`` and
``save``. The loop is the same for one process and for several: a ``Group`` turns the requests of all members into one
decision per step boundary.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from monolith.core.clock import Clock
from monolith.core.errors import DataError, MonolithError, TrainingDiverged
from monolith.data import Batch, Dataset
from monolith.embedding import EmbeddingStore, torch_threads
from monolith.features import Model
from monolith.training.batch_sequence import BatchSequence
from monolith.training.checkpoints import Checkpointer, PendingSave, TrainingState
from monolith.training.config import RunConfig
from monolith.training.event_times import EventTimes
from monolith.training.groups import Group, Solo
from monolith.training.groups.base import ControlFlags, DueSave, GroupClosed
from monolith.training.hooks import Hook
from monolith.training.metrics import RunMetrics
from monolith.training.pipeline import Pipeline
from monolith.training.polled_batches import PolledBatches
from monolith.training.run import Mark, StepResult, no_position
from monolith.training.step import Stepper

__all__ = ["TrainingRun", "read_marked"]

logger = logging.getLogger(__name__)

_STEPS_WITHOUT_LABELS = 20
_PAUSE_POLL_S = 0.2
"""Seconds between two agreements while paused: a silent rank would be taken for lost."""


def read_marked(
    dataset: Any, change: Callable[[Batch], Batch] = lambda batch: batch
) -> Generator[tuple[Batch, Mark], None, None]:
    """Iterate over batches, each with the mark of the position behind it; data without marks has no positions.

    Args:
        dataset: The batches.
        change: Applied to every batch.
    """
    mark = getattr(dataset, "mark", lambda: no_position)
    for batch in dataset:
        yield change(batch), mark()


class TrainingRun:
    """One call of ``Estimator.train``; implements ``Run`` for hooks.

    Args:
        config: The settings of this process.
        stepper: Computes and applies the steps.
        dataset: The data of this process.
        checkpointer: Saves; None = no checkpoints.
        metrics: Updated after each step; None = not measured.
        hooks: Run beside the steps, in this order.
        clock: The clock of schedules and rates.
        step: Steps finished before this run.
        extra: Returns additional state of a checkpoint, as JSON.
        is_resumed: Whether the data starts at the position of an earlier run.
        group: The processes that take each step together; None = this process alone.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        stepper: Stepper,
        dataset: Any,
        checkpointer: Checkpointer | None,
        metrics: RunMetrics | None,
        hooks: Sequence[Hook],
        clock: Clock,
        step: int,
        extra: Callable[[], dict[str, Any]],
        is_resumed: bool = False,
        group: Group | None = None,
    ) -> None:
        self._config = config
        self._stepper = stepper
        self._group = group or Solo()
        self._dataset = self._group.align(dataset, stepper.embedder.declaration)
        self._checkpointer = checkpointer
        self._metrics = metrics
        self._hooks = hooks
        self._clock = clock
        self._step = self._first_step = step
        self._extra = extra
        self._is_resumed = is_resumed
        self._has_labels = False
        self._unlabelled_steps = 0
        self._started: list[Hook] = []
        self._event_times = EventTimes(config.pipeline.max_event_ahead_s, clock)
        self._batches = self._open_batches()
        self._pipeline = Pipeline(
            stepper,
            self._batches,
            prefetch=config.pipeline.embedding_prefetch_capacity,
            late_push=config.pipeline.enable_embedding_postpush,
            late_dense=config.pipeline.enable_variable_postpush,
        )
        self._mark: Mark = getattr(self._dataset, "mark", lambda: no_position)()
        self._saving: list[tuple[PendingSave, Any]] = []
        self._dense_saves: list[PendingSave] = []
        self._last_saved_step = step
        self._last_due_step = step
        self.data_ended = False
        self.stop_reason: str | None = None
        # Requests of other threads, under one lock.
        self._requests = threading.Condition()
        self._requested_stop: str | None = None
        self._is_pause_requested = False
        self._is_paused = False
        self._is_over = False
        self._requested_saves: list[tuple[str, Future[Path]]] = []

    def _open_batches(self) -> Generator[tuple[Batch, Mark], None, None] | PolledBatches:
        batches = read_marked(self._dataset, self._event_times.bound)
        if isinstance(self._dataset, Dataset) and self._dataset.is_stream and not self._group.is_lockstep:
            return PolledBatches(batches, self._handle_idle, self._dataset.interrupt)
        return batches

    # --- Run ----------------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps finished, over all runs of the model folder."""
        return self._step

    @property
    def config(self) -> RunConfig:
        """The settings."""
        return self._config

    @property
    def model_dir(self) -> Path:
        """The run's folder."""
        return Path(self._config.model_dir)

    @property
    def model(self) -> Model:
        """The model in training."""
        return self._stepper.model

    @property
    def store(self) -> EmbeddingStore:
        """The store that holds the model's rows."""
        return self._stepper.embedder.store

    @property
    def clock(self) -> Clock:
        """The run's clock."""
        return self._clock

    @property
    def clamped_event_times(self) -> int:
        """Records whose event time was further ahead than ``max_event_ahead_s``."""
        return self._event_times.clamped

    @property
    def is_paused(self) -> bool:
        """Whether the loop waits at a step boundary because of ``pause``."""
        return self._is_paused

    def stop(self, reason: str) -> None:
        """End the run after the current step; members of a group all end at the same step."""
        with self._requests:
            self._requested_stop = self._requested_stop or reason
            if not self._group.is_lockstep:
                self.stop_reason = self._requested_stop
            self._requests.notify_all()
        if not self._group.is_lockstep and isinstance(self._dataset, Dataset):
            self._dataset.interrupt()  # a stream without new records would keep the run from its next step

    def pause(self) -> bool:
        """Pause the loop at the next step boundary; return False if a pause is active."""
        with self._requests:
            if self._is_pause_requested:
                return False
            self._is_pause_requested = True
            return True

    def resume(self) -> None:
        """Resume the loop."""
        with self._requests:
            self._is_pause_requested = False
            self._requests.notify_all()

    def between_steps(self) -> AbstractContextManager[None]:
        """Keep the loop between two steps, with all earlier updates applied."""
        return self._pipeline.settled()

    def save(self, reason: str) -> Path:
        """Write a checkpoint of the next step boundary; return once durable. Not from the loop's own thread."""
        saved: Future[Path] = Future()
        with self._requests:
            if self._is_over:
                raise MonolithError("the run is over; its last checkpoint is in the model folder")
            self._requested_saves.append((reason, saved))
            self._requests.notify_all()
        return saved.result()

    def place(self) -> Any:
        """Return the position in the data behind the last step."""
        return self._mark()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self, until: int | None) -> None:
        """Train until step ``until``, the end of the data, or ``stop``; then write a checkpoint.

        Raises:
            TrainingDiverged: A loss is not finite; the text names the last good checkpoint.
            DataError: The data has no batch at all.
        """
        try:
            for hook in self._hooks:
                self._started.append(hook)
                hook.on_start(self)
            self._run_group(until)
            if isinstance(self._dataset, BatchSequence) and self._dataset.ends_at(self._mark()):
                self.data_ended = True  # a list, unlike a stream, knows its end before the next read
            self._finish()
        except TrainingDiverged as diverged:
            raise TrainingDiverged(f"{diverged}; nothing of it was applied. {self._last_good()}") from diverged
        finally:
            # Not kept in a variable: an exception that its own frame holds would never be freed.
            self._end(sys.exception())

    def _run_group(self, until: int | None) -> None:
        try:
            self._step = self._first_step = self._group.join(self._stepper, self._step, self._flags)
            # A model on a GPU leaves the processors to the engine.
            is_shared = self._stepper.device.type == "cpu"
            with torch_threads(torch.get_num_threads()) if is_shared else nullcontext():
                self._run_steps(until)
        except GroupClosed as closed:
            if closed.is_out_of_data:
                self._end_data()
            else:
                self.stop_reason = self._requested_stop or "the training has ended for all workers"

    def _run_steps(self, until: int | None) -> None:
        before = self._clock.monotonic_s()
        while until is None or self._step < until:
            self._handle_requests()
            if self.stop_reason is not None:
                logger.info("stopping step=%d reason=%s", self._step, self.stop_reason)
                return
            for hook in self._hooks:
                hook.before_step(self)
            result = self._pipeline.run_step(self._step)
            if result is None:
                self._end_data()
                return
            self._step += 1
            self._mark = result.mark
            now = self._clock.monotonic_s()
            self._report(replace(result, seconds=now - before))
            before = now
            self._collect_saves()
            if not self._group.is_one_run:
                self._save_due(self._due_save())

    def _report(self, result: StepResult) -> None:
        self._measure(result)
        for hook in self._hooks:
            hook.after_step(self, result)

    def _measure(self, result: StepResult) -> None:
        if self._metrics is None and self._group.is_one_run:
            return
        heads = self._group.gather_heads(result.heads)
        if heads is None:  # rank 0 measures
            return
        measured = result if heads is result.heads else replace(result, heads=heads)
        self._check_labels(measured)
        if self._metrics is not None:
            self._metrics.update(measured)

    def _check_labels(self, result: StepResult) -> None:
        """Refuse data without a single label: it would train nothing, with a loss of 0."""
        if self._has_labels:
            return
        self._has_labels = result.has_labels
        self._unlabelled_steps += not self._has_labels
        if self._unlabelled_steps >= _STEPS_WITHOUT_LABELS:
            self._refuse_unlabelled()

    def _refuse_unlabelled(self) -> None:
        raise DataError(
            f"none of the first {self._unlabelled_steps} batches has a label, so there is nothing to learn; "
            "check the schema's labels and label_features"
        )

    def _end_data(self) -> None:
        if self.stop_reason is not None:
            logger.info("stopping step=%d reason=%s", self._step, self.stop_reason)
            return  # the stop ended a source that waited: more data may follow
        if self._step == self._first_step:
            # One of several workers may find all data taken by the others; the chief checks the case of all workers.
            if not self._is_resumed and self._config.runtime.num_workers == 1:
                raise DataError("the data gave no batch to train on; check the patterns and filters")
            if self._is_resumed:
                logger.warning(
                    "the data ends where the last run stopped, nothing was trained step=%d; to read it from its "
                    "beginning: train again, or train(..., resume_data=False)",
                    self._step,
                )
            else:
                logger.warning("other workers took all of the data, nothing was trained here step=%d", self._step)
        self.data_ended = True

    # --- requests -----------------------------------------------------------------------------------------------------

    def _flags(self, due: DueSave = DueSave.NONE) -> ControlFlags:
        """Return the requests of other threads, and a save that is due."""
        with self._requests:
            return ControlFlags(
                stop_reason=self._requested_stop,
                pauses=self._is_pause_requested,
                saves=bool(self._requested_saves),
                due=due,
            )

    def _handle_requests(self) -> None:
        """Save, pause and stop as the group decides; return when the next step may begin."""
        while True:
            flags = self._flags(self._announce_save())
            decision = self._group.agree(flags)
            self._is_paused = decision.pauses and decision.stop_reason is None
            self._save_due(decision.due)
            if decision.saves:
                self._handle_save_request()
                continue
            if decision.stop_reason is not None:
                self.stop_reason = decision.stop_reason
                return
            if not decision.pauses:
                return
            with self._requests:
                if self._flags(flags.due) == flags:
                    self._requests.wait(_PAUSE_POLL_S)

    def _handle_idle(self) -> bool:
        """Save and stop while the data gives no batch; return False to end the run."""
        for hook in self._hooks:
            hook.on_idle(self)
        flags = self._flags()
        if flags.stop_reason is not None:
            self.stop_reason = flags.stop_reason
            return False
        if flags.saves:
            self._handle_save_request()
        if self._step > self._last_saved_step:
            self._save_due(self._due_save())
        self._collect_saves()
        return True

    def _handle_save_request(self) -> None:
        request = self._next_save_request()
        if request is not None:
            self._answer(*request)
            return
        try:
            self._save_and_wait("another rank was asked to save")
        except MonolithError:  # raised at the rank with the request; the run continues here as there
            return
        self._collect_saves()

    def _next_save_request(self) -> tuple[str, Future[Path]] | None:
        with self._requests:
            return self._requested_saves.pop(0) if self._requested_saves else None

    def _answer(self, reason: str, answer: Future[Path]) -> None:
        """Save for another thread, which gets the error of a failed save; the run continues."""
        try:
            path = self._save_and_wait(reason)
        except BaseException as error:
            answer.set_exception(error)
            if not isinstance(error, MonolithError):
                raise
        else:
            try:
                self._collect_saves()  # hooks act on the checkpoint before its requester does
            finally:
                answer.set_result(path)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _due_save(self) -> DueSave:
        if self._checkpointer is None:
            return DueSave.NONE
        if self._checkpointer.is_due(self._step):
            return DueSave.FULL
        return DueSave.DENSE if self._checkpointer.is_dense_due(self._step) else DueSave.NONE

    def _announce_save(self) -> DueSave:
        """Return the save that rank 0 announces to all ranks, once per step; NONE for other members and groups."""
        if not self._group.is_one_run or self._group.rank or self._last_due_step == self._step:
            return DueSave.NONE
        self._last_due_step = self._step
        return self._due_save()

    def _save_due(self, due: DueSave) -> None:
        if due is DueSave.FULL:
            self._save("by schedule")
        elif due is DueSave.DENSE and self._checkpointer is not None and not self._is_follower:
            self._pipeline.drain()
            self._dense_saves.append(self._checkpointer.save_dense(self._state(None), reason="by schedule"))

    @property
    def _is_follower(self) -> bool:
        """Whether another member saves the dense part of this run."""
        return self._group.is_one_run and self._group.rank > 0

    def _save(self, reason: str) -> PendingSave | None:
        if self._checkpointer is None:
            return None
        self._group.gather_positions(self._mark(), self.data_ended)
        for hook in self._hooks:
            hook.before_save(self)
        self._pipeline.drain()
        position = self._mark()
        pending = self._checkpointer.save(self._state(position), reason=reason)
        self._saving.append((pending, position))
        self._last_saved_step = self._step
        return pending

    def _state(self, position: Any) -> TrainingState:
        return TrainingState(
            step=self._step,
            model=self._stepper.model,
            optimizers=self._stepper.optimizers,
            store=self.store,
            data=position,
            metrics={} if self._metrics is None else self._metrics.state(),
            extra={**self._extra(), **self._group.checkpoint_extra(), "data_ended": self.data_ended},
        )

    def _save_and_wait(self, reason: str) -> Path:
        last_saved_step = self._last_saved_step
        pending = self._save(reason)
        if pending is None:
            raise MonolithError("this run has no model_dir, so there is nowhere to save; give RunConfig(model_dir=...)")
        try:
            return pending.wait()
        except MonolithError:
            self._saving = [saving for saving in self._saving if saving[0] is not pending]
            self._last_saved_step = last_saved_step
            raise

    def _collect_saves(self) -> None:
        """Report durable checkpoints to hooks and to the data's source; raise the error of a failed one."""
        while self._dense_saves and self._dense_saves[0].is_done:
            path = self._dense_saves.pop(0).wait()
            for hook in self._hooks:
                hook.after_dense_save(self, path)
        while self._saving and self._saving[0][0].is_done:
            pending, position = self._saving.pop(0)
            path = pending.wait()
            if position is not None:
                self._dataset.committed(position)
            for hook in self._hooks:
                hook.after_save(self, path)

    def _finish(self) -> None:
        """Apply late updates, and make the last checkpoint durable."""
        self._pipeline.drain()
        is_whole_run = self.stop_reason is None and not self._is_resumed and not self._group.is_one_run
        if is_whole_run and self._unlabelled_steps and not self._has_labels:
            self._refuse_unlabelled()
        for hook in self._hooks:
            hook.before_end(self)
        # With other workers, tables may have changed since the last save without a step of this worker.
        if self._step > self._last_saved_step or self.data_ended or self._config.runtime.num_workers > 1:
            self._save("at the end")
        for pending in [*(pending for pending, _ in self._saving), *self._dense_saves]:
            pending.wait()
        self._collect_saves()
        if self._group.is_one_run:
            return  # other ranks may have ended, so a save of all ranks is no longer possible
        while (request := self._next_save_request()) is not None:
            self._answer(*request)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._catch_up()
        self._pipeline.close()
        self._batches.close()  # close files and threads of the data now, not with the last reference to the run
        with self._requests:
            self._is_over = True
            requests, self._requested_saves = self._requested_saves, []
        for _, answer in requests:
            answer.set_exception(MonolithError("the run ended before it could save"))
        failures: list[BaseException] = []
        for hook in reversed(self._started):
            try:
                hook.on_end(self, error)
            except Exception as raised:
                logger.exception("hook failed at the end of the run hook=%s", type(hook).__name__)
                failures.append(raised)
        if failures and error is None:
            raise failures[0]

    def _catch_up(self) -> None:
        """Apply deferred updates of finished steps, so that in-memory state is complete."""
        try:
            self._pipeline.drain()
        except Exception:
            logger.exception("late gradients not applied after a failed run")

    def _last_good(self) -> str:
        if self._is_follower:
            return "Rank 0 names the last good checkpoint."
        for pending, _ in self._saving:
            pending.settle()
        saved = [] if self._checkpointer is None else self._checkpointer.folder.saved()
        if not saved:
            return "There is no checkpoint yet: lower the learning rates or check the data."
        return f"The last good checkpoint is {saved[-1].path}: lower the learning rates or check the data, then resume."
