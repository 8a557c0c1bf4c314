"""The training loop: steps until told to stop, checkpoints on the way, hooks beside it.

Everything happens at step boundaries in one thread; other threads ask through ``stop``, ``pause`` and ``save``.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from monolith.core.clock import Clock
from monolith.core.errors import DataError, MonolithError, TrainingDiverged
from monolith.data import Batch
from monolith.embedding import EmbeddingStore
from monolith.features import Model
from monolith.training.batch_sequence import BatchSequence
from monolith.training.checkpoints import Checkpointer, PendingSave, TrainingState
from monolith.training.config import RunConfig
from monolith.training.event_times import EventTimes
from monolith.training.hooks import Hook, StepResult
from monolith.training.metrics import RunMetrics
from monolith.training.pipeline import Pipeline, Stepped
from monolith.training.step import Stepper

__all__ = ["TrainingRun", "read_marked"]

logger = logging.getLogger(__name__)

_STEPS_WITHOUT_LABELS = 20


def read_marked(
    dataset: Any, change: Callable[[Batch], Batch] = lambda batch: batch
) -> Generator[tuple[Batch, Callable[[], Any]], None, None]:
    """Read batches, each with what gives the place behind it; plain lists of batches have no places.

    Args:
        dataset: The batches.
        change: Applied to every batch.
    """
    mark = getattr(dataset, "mark", lambda: lambda: None)
    for batch in dataset:
        yield change(batch), mark()


class TrainingRun:
    """One call of ``Estimator.train``; what hooks know as the ``Run``."""

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
    ) -> None:
        self._config = config
        self._stepper = stepper
        self._dataset = dataset
        self._checkpointer = checkpointer
        self._metrics = metrics
        self._hooks = hooks
        self._clock = clock
        self._step = self._first_step = step
        self._extra = extra
        self._is_resumed = is_resumed
        self._has_labels = False
        self._started: list[Hook] = []
        self._event_times = EventTimes(config.max_event_ahead_s, clock)
        self._batches = read_marked(dataset, self._event_times.bound)
        self._pipeline = Pipeline(
            stepper,
            self._batches,
            prefetch=config.embedding_prefetch_capacity,
            late_push=config.enable_embedding_postpush,
            late_dense=config.enable_variable_postpush,
        )
        self._place: Callable[[], Any] = getattr(dataset, "mark", lambda: lambda: None)()
        self._saving: list[tuple[PendingSave, Any]] = []
        self._dense_saves: list[PendingSave] = []
        self._last_saved_step = step
        self.data_ended = False
        self.stop_reason: str | None = None
        # What other threads ask for, under one lock.
        self._asked = threading.Condition()
        self._is_held = False
        self._stands_still = False
        self._is_over = False
        self._wanted_saves: list[tuple[str, Future[Path]]] = []

    # --- what hooks see -----------------------------------------------------------------------------------------------

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
        """The model that is trained."""
        return self._stepper.model

    @property
    def store(self) -> EmbeddingStore:
        """Where its rows are."""
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
        """Whether the loop stands still because of ``pause``."""
        return self._stands_still

    def stop(self, reason: str) -> None:
        """End the run after the step under way."""
        with self._asked:
            self.stop_reason = self.stop_reason or reason
            self._asked.notify_all()

    def pause(self) -> bool:
        """Hold the loop at the next step boundary; False when it is held already."""
        with self._asked:
            if self._is_held:
                return False
            self._is_held = True
            return True

    def resume(self) -> None:
        """Let the loop go on."""
        with self._asked:
            self._is_held = False
            self._asked.notify_all()

    def between_steps(self) -> AbstractContextManager[None]:
        """Hold the loop between two steps, with everything of the steps before applied."""
        return self._pipeline.settled()

    def save(self, reason: str) -> Path:
        """Write a checkpoint of the next step boundary; returns when it is safe. Not from the loop's own thread."""
        wanted: Future[Path] = Future()
        with self._asked:
            if self._is_over:
                raise MonolithError("the run is over; its last checkpoint is in the model folder")
            self._wanted_saves.append((reason, wanted))
            self._asked.notify_all()
        return wanted.result()

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
            self._run_steps(until)
            if isinstance(self._dataset, BatchSequence) and self._dataset.ends_at(self._place()):
                self.data_ended = True  # a list, unlike a stream, knows without being asked for more
            self._finish()
        except TrainingDiverged as diverged:
            raise TrainingDiverged(f"{diverged}; nothing of it was applied. {self._last_good()}") from diverged
        finally:
            # Not kept in a variable: an exception that its own frame holds outlives everything.
            self._end(sys.exception())

    def _run_steps(self, until: int | None) -> None:
        before = self._clock.monotonic_s()
        while until is None or self._step < until:
            self._obey()
            if self.stop_reason is not None:
                logger.info("stopping at step %d: %s", self._step, self.stop_reason)
                return
            for hook in self._hooks:
                hook.before_step(self)
            stepped = self._pipeline.run_step(self._step)
            if stepped is None:
                self._end_data()
                return
            self._step += 1
            self._place = stepped.mark
            now = self._clock.monotonic_s()
            self._report(stepped, now - before)
            before = now
            self._collect_saves()
            self._save_if_due()

    def _report(self, stepped: Stepped, seconds: float) -> None:
        loss = stepped.heads.loss
        result = StepResult(
            step=self._step,
            loss=0.0 if loss is None else loss.item() / max(1, stepped.batch.size),
            heads=stepped.heads.results(),
            batch=stepped.batch,
            samples=stepped.batch.size,
            ids=stepped.occurrences,
            seconds=seconds,
        )
        self._check_labels(result)
        if self._metrics is not None:
            self._metrics.update(result)
        for hook in self._hooks:
            hook.after_step(self, result)

    def _check_labels(self, result: StepResult) -> None:
        """Refuse data without a single label: it would train nothing, with a loss of 0."""
        if self._has_labels:
            return
        heads = [head for head in result.heads.values() if head.label is not None]
        self._has_labels = not heads or any(head.mask is None or head.mask.any() for head in heads)
        if not self._has_labels and self._step - self._first_step >= _STEPS_WITHOUT_LABELS:
            raise DataError(
                f"none of the first {_STEPS_WITHOUT_LABELS} batches has a label, so there is nothing to learn; "
                "check the schema's labels and label_features"
            )

    def _end_data(self) -> None:
        if self.stop_reason is not None:
            logger.info("stopping at step %d: %s", self._step, self.stop_reason)
            return  # a source that waited was told so: there may be more
        if self._step == self._first_step:
            # Of several workers one may find everything taken; that all do is for the chief to see.
            if not self._is_resumed and self._config.num_workers == 1:
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

    def _obey(self) -> None:
        """Do what other threads asked for; stand still while the run is held."""
        while (wanted := self._next_wanted(may_wait=True)) is not None:
            self._answer(*wanted)

    def _next_wanted(self, *, may_wait: bool) -> tuple[str, Future[Path]] | None:
        with self._asked:
            while True:
                self._stands_still = may_wait and self._is_held and self.stop_reason is None
                if self._wanted_saves:
                    return self._wanted_saves.pop(0)
                if not self._stands_still:
                    return None
                self._asked.wait()

    def _answer(self, reason: str, answer: Future[Path]) -> None:
        """Save for another thread. That it failed is told there, and the run goes on."""
        try:
            path = self._save_and_wait(reason)
        except BaseException as error:
            answer.set_exception(error)
            if not isinstance(error, MonolithError):
                raise
        else:
            answer.set_result(path)
            self._collect_saves()

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save_if_due(self) -> None:
        if self._checkpointer is None:
            return
        if self._checkpointer.is_due(self._step):
            self._save("by schedule")
        elif self._checkpointer.is_dense_due(self._step):
            self._pipeline.drain()
            self._dense_saves.append(self._checkpointer.save_dense(self._state(None), reason="by schedule"))

    def _save(self, reason: str) -> PendingSave | None:
        if self._checkpointer is None:
            return None
        for hook in self._hooks:
            hook.before_save(self)
        self._pipeline.drain()
        place = self._place()
        pending = self._checkpointer.save(self._state(place), reason=reason)
        self._saving.append((pending, place))
        self._last_saved_step = self._step
        return pending

    def _state(self, place: Any) -> TrainingState:
        return TrainingState(
            step=self._step,
            model=self._stepper.model,
            optimizers=self._stepper.optimizers,
            store=self.store,
            data=place,
            metrics={} if self._metrics is None else self._metrics.state(),
            extra={**self._extra(), "data_ended": self.data_ended},
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
        """Tell hooks and the data's source of checkpoints that became safe; raise what failed."""
        while self._dense_saves and self._dense_saves[0].is_done:
            self._dense_saves.pop(0).wait()
        while self._saving and self._saving[0][0].is_done:
            pending, place = self._saving.pop(0)
            path = pending.wait()
            if place is not None:
                self._dataset.committed(place)
            for hook in self._hooks:
                hook.after_save(self, path)

    def _finish(self) -> None:
        """Bring everything up to date, and make the last checkpoint safe."""
        self._pipeline.drain()
        for hook in self._hooks:
            hook.before_end(self)
        # With other workers the tables may have moved since the last save, though this one has taken no step.
        if self._step > self._last_saved_step or self.data_ended or self._config.num_workers > 1:
            self._save("at the end")
        for pending in [*(pending for pending, _ in self._saving), *self._dense_saves]:
            pending.wait()
        self._collect_saves()
        while (wanted := self._next_wanted(may_wait=False)) is not None:
            self._answer(*wanted)

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self._catch_up()
        self._pipeline.close()
        self._batches.close()  # files and threads of the data go now, not when somebody forgets the run
        with self._asked:
            self._is_over = True
            wanted, self._wanted_saves = self._wanted_saves, []
        for _, answer in wanted:
            answer.set_exception(MonolithError("the run ended before it could save"))
        failures: list[BaseException] = []
        for hook in reversed(self._started):
            try:
                hook.on_end(self, error)
            except Exception as raised:
                logger.exception("%s failed at the end of the run", type(hook).__name__)
                failures.append(raised)
        if failures and error is None:
            raise failures[0]

    def _catch_up(self) -> None:
        """Apply what is late of the steps that were finished: who goes on from memory must not lose it."""
        try:
            self._pipeline.drain()
        except Exception:
            logger.exception("late gradients could not be applied after the run had failed")

    def _last_good(self) -> str:
        for pending, _ in self._saving:
            pending.settle()
        saved = [] if self._checkpointer is None else self._checkpointer.folder.saved()
        if not saved:
            return "There is no checkpoint yet: lower the learning rates or check the data."
        return f"The last good checkpoint is {saved[-1].path}: lower the learning rates or check the data and go on."

    def place(self) -> Any:
        """Return the place in the data behind the last step."""
        return self._place()
