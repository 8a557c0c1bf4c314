"""``Estimator``: a model, its tables and its optimizers, for training, evaluation, prediction and export.

Before the first use, the estimator restores the newest checkpoint of its folder. A ``Group`` makes it a member of a
training by several processes; without one, it trains alone.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from monolith import embedding
from monolith.artifacts.remote_folder import artifact_url, check_writable, open_folder, push_folder
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import CheckpointMissing, ConfigError, DataError, MonolithError, SchemaMismatch
from monolith.core.freed_memory import keep_freed_memory
from monolith.data import Batch, Dataset
from monolith.embedding import EmbeddingStore
from monolith.features import Model
from monolith.features.embedder import HostEmbedder
from monolith.layers.clipping import ClippingConfig, GradClipType
from monolith.training.batch_sequence import BatchSequence
from monolith.training.checkpoints import Checkpointer, Restored, TrainingState
from monolith.training.checkpoints.files import TABLES
from monolith.training.config import RunConfig, RunnerConfig, SaveTimer
from monolith.training.config.cluster import refuse_cluster
from monolith.training.config.gradient import GradientConfig
from monolith.training.default_hooks import (
    connect_forgetting,
    default_hooks,
    early_stopping_hook,
    share_metrics_registry,
)
from monolith.training.dense_optimizers import make_optimizers
from monolith.training.export_places import export_base, export_name
from monolith.training.finite_inputs import describe_not_finite
from monolith.training.forgetting import BlockedIds, erase_forgotten, forgotten_since
from monolith.training.groups import Group, Solo
from monolith.training.groups.base import StoreSource
from monolith.training.heads import Heads
from monolith.training.hooks import EarlyStoppingHook, Hook
from monolith.training.hooks.progress import DataLength
from monolith.training.hooks.ranking import RankingHook
from monolith.training.loop import TrainingRun
from monolith.training.metrics import RankingMetrics, RunMetrics
from monolith.training.staging import stage_model_folder
from monolith.training.step import SmallRows, Stepper

if TYPE_CHECKING:
    from monolith.export import ExportOptions, SavedTables

__all__ = ["Estimator"]

logger = logging.getLogger(__name__)

_CLIP_TYPES = {
    "norm": GradClipType.ClipByNorm,
    "global_norm": GradClipType.ClipByGlobalNorm,
    "value": GradClipType.ClipByValue,
    "dense_and_sparse": GradClipType.ClipByDenseAndSparse,
    "none": GradClipType.NoClip,
}


class Estimator:
    """Trains, evaluates and exports one model.

    Args:
        model: The model; or its class, or any function that makes it, which is then called under ``config.seed``.
        config: Settings; without a ``model_dir`` nothing is saved.
        hooks: Hooks of every training run, after those that the settings ask for.
        store: The store of the rows, or a function that opens one for the model's tables; None = tables in this
            process.
        clock: The clock of schedules and rates.
        extra: Returns additional state of each checkpoint, as JSON; see ``restored_extra``.
        group: The processes that train the model together; None = this process alone. Every member makes the same
            calls, in the same order.
    """

    def __init__(
        self,
        model: Model | Callable[[], Model],
        config: RunConfig | None = None,
        *,
        hooks: Sequence[Hook] = (),
        store: StoreSource = None,
        clock: Clock | None = None,
        extra: Callable[[], Mapping[str, Any]] | None = None,
        group: Group | None = None,
    ) -> None:
        self._is_single = group is None and store is None
        self._group = group or Solo()
        config = config or RunConfig()
        config = stage_model_folder(config, config.model_dir)
        model_dir = config.model_dir
        self.config = self._group.member_config(config)
        self.config.check_index()
        self._more_extra = extra or dict
        self._is_alone = extra is None
        self._places_saved = 1
        self.restored_extra: Mapping[str, Any] = {}
        """The additional state of the restored checkpoint; empty without one."""
        self._clock = clock or SystemClock()
        self._hooks = tuple(hooks)
        self.data_length: DataLength | None = None
        """The length of the data of the next training, for its progress; None when unknown."""
        _prepare(self.config)
        self.model = model if isinstance(model, Model) else model()
        if not isinstance(self.model, Model):
            raise ConfigError(
                f"the model is a {type(self.model).__name__}, expected a monolith.Model, or a function of one"
            )
        specs = self.model.declaration.table_specs(
            seed=self.config.runtime.seed, deterministic=self.config.runtime.deterministic
        )
        self.store: EmbeddingStore = self._group.open_store(
            store, specs, force_expiry=self.config.checkpoint.force_expiry
        )
        gradients = self.config.gradient
        self._stepper = Stepper(
            self.model.to(self.config.runtime.accelerator),
            self.model.attach(self.store),
            make_optimizers(
                self.model,
                gradients.dense_optimizer,
                gradients.dense_learning_rate,
                gradients.dense_optimizer_options,
            ),
            ClippingConfig(
                clip_type=_CLIP_TYPES[gradients.clip_type],
                clip_norm=gradients.clip_norm,
                sparse_clip_norm=gradients.sparse_clip_norm,
                sparse_norm_warmup_steps=gradients.sparse_norm_warmup_steps,
            ),
            group=self._group,
            weight_decay=gradients.dense_weight_decay,
            reduce_mean=gradients.dense_reduce_mean,
            small_rows=_small_rows(self.model, gradients),
            device=self.config.runtime.accelerator,
        )
        self._timers = SaveTimer.from_config(self.config.checkpoint), SaveTimer.dense_only(self.config.checkpoint)
        self._checkpointer: Checkpointer | None = None
        if model_dir:
            timer, dense_timer = self._timers
            self._checkpointer = self._group.make_checkpointer(
                model_dir, self.config.checkpoint, clock=self._clock, timer=timer, dense_timer=dense_timer
            )
        self._metrics = self._new_metrics()
        self._step = 0
        self._place: Any = None
        self._data_ended = False
        self._holds: Literal["nothing", "reading", "training"] = "nothing"
        self._has_trained = False
        self._list: object = None
        self._stopping: EarlyStoppingHook | None = None
        self._is_stopped = False

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps behind the state in memory; before any use, those of the newest checkpoint."""
        if self._holds == "nothing":
            self._restore()
        return self._step

    @property
    def data_ended(self) -> bool:
        """True if the last training read its data to the end."""
        return self._data_ended

    @property
    def model_dir(self) -> Path:
        """The run's folder."""
        return Path(self.config.model_dir)

    def latest_checkpoint(self) -> Path | None:
        """Return the folder of the newest checkpoint, or None."""
        newest = None if self._checkpointer is None else self._checkpointer.folder.newest()
        return None if newest is None else newest.path

    def get_variable_names(self) -> list[str]:
        """Return the names of the dense weights."""
        return list(self.model.state_dict())

    def get_variable_value(self, name: str) -> np.ndarray[Any, Any]:
        """Return one dense weight.

        Raises:
            ConfigError: The model has no weight of that name.
        """
        weights = self.model.state_dict()
        if name not in weights:
            raise ConfigError(f"the model has no weight {name!r}; it has {', '.join(weights)}")
        value: np.ndarray[Any, Any] = weights[name].cpu().numpy()
        return value

    def resume_at(self, place: Any) -> None:
        """Start the next training at a position, as ``Dataset.state`` returned it; for workers without a folder."""
        self._place, self._data_ended, self._places_saved = place, False, 1

    def close(self) -> None:
        """Wait for running saves."""
        if self._checkpointer is not None:
            self._checkpointer.close()

    # --- training -----------------------------------------------------------------------------------------------------

    def train(
        self,
        data: Dataset | Sequence[Batch],
        steps: int | None = None,
        max_steps: int | None = None,
        *,
        hooks: Sequence[Hook] = (),
        resume_data: bool = True,
    ) -> dict[str, float]:
        """Train on the data, from the newest checkpoint on, and write a checkpoint at the end.

        Members of a group train on their own data, in step with the others, until no member has data left.

        Args:
            data: A dataset with ``batch()``, or batches. A dataset without a schema gets the model's.
            steps: Steps to take in this call.
            max_steps: Step to stop at, over all calls and restarts; with ``steps``, the nearer limit counts. None with
                ``steps`` None = the end of the data.
            hooks: Further hooks of this call.
            resume_data: Resume at the position of the last run, unless it had reached the end; False starts at the
                beginning of the data.

        Returns:
            The metrics of this call; every example was scored before the model learned from it.

        Raises:
            ConfigError: The settings are of a job of several processes, and this estimator has neither a store nor a
                group.
            DataError: The data has no batch.
            TrainingDiverged: A loss is not finite.
        """
        if self._is_single and isinstance(self.config, RunnerConfig):
            refuse_cluster(self.config.cluster)
        if self.config.runtime.only_feature_engineering:
            raise ConfigError(
                "only_feature_engineering is True, and an Estimator trains; write features with monolith train, or "
                "omit it"
            )
        try:
            if self.config.model_dir:
                check_writable(self.config.model_dir)
            metrics = self._train(data, steps, max_steps, hooks=hooks, resume_data=resume_data)
        except BaseException:
            if self._group.is_one_run:
                with suppress(MonolithError):  # the error of the training is raised
                    self.close()  # a running save still needs this member
            raise
        push_folder(self.config.model_dir)
        return self._group.share_metrics(metrics)

    def _train(
        self, data: Any, steps: int | None, max_steps: int | None, *, hooks: Sequence[Hook], resume_data: bool
    ) -> dict[str, float]:
        self._restore()
        self._is_stopped = False
        until = self._until(steps, max_steps)
        if until is not None and self._step >= until:
            logger.info("nothing to train step=%d max_steps=%d", self._step, until)
            return {}
        dataset = self._prepare_data(data)
        is_resumed = resume_data and self._resume(dataset)
        self._list = data if isinstance(dataset, BatchSequence) else None
        ranking = self._new_ranking()
        measured = [RankingHook(ranking)] if ranking.is_on else []
        defaults = default_hooks(self.config, self._metrics, until, self.data_length, stopping=self._stopping)
        if self.config.model_dir:
            self.drop_blocked(self.config.model_dir)
        chosen = connect_forgetting(share_metrics_registry([*measured, *defaults, *self._hooks, *hooks], dataset))
        run = TrainingRun(
            config=self.config,
            stepper=self._stepper,
            dataset=dataset,
            checkpointer=self._checkpointer,
            metrics=self._metrics if self.config.metrics.progressive_validation is not False else None,
            hooks=chosen,
            clock=self._clock,
            step=self._step,
            extra=self._extra,
            is_resumed=is_resumed,
            group=self._group,
        )
        self.model.train()
        if self._has_trained:  # metrics of a checkpoint continue; a second call starts over
            self._metrics.reset()
        self._has_trained = True
        try:
            with _deterministic(self.config.runtime.deterministic):
                run.run(until)
        finally:
            self._holds = "training"
            self._is_stopped = run.stop_reason is not None
            if run.step > self._step or run.data_ended:  # a run that failed before its first step read nothing
                self._step, self._place, self._data_ended = run.step, run.place(), run.data_ended
                self._places_saved = 1
        return {**self._metrics.results(), **ranking.results()}

    def drop_blocked(self, model_dir: str | Path) -> None:
        """Drop the updates of ids that a receipt in ``model_dir`` blocks; see ``monolith forget --block``."""
        embedder = self._stepper.embedder
        if isinstance(embedder, HostEmbedder):
            embedder.blocked = BlockedIds(model_dir, self._clock)

    def _until(self, steps: int | None, max_steps: int | None) -> int | None:
        _check_counts(steps=steps, max_steps=max_steps)
        limits = [] if max_steps is None else [max_steps]
        return min([*limits, self.step + steps] if steps is not None else limits, default=None)

    def _prepare_data(self, data: Any) -> Any:
        """Return a dataset with the model's schema, read ahead; or a list of batches with positions."""
        if isinstance(data, Sequence) and not isinstance(data, str | bytes):
            return BatchSequence(data)
        if isinstance(data, str | bytes | Path) or not isinstance(data, Iterable):
            raise ConfigError(f"the data is {data!r}, expected a dataset, e.g. mt.data.files(...).batch(n), or batches")
        if not isinstance(data, Dataset):
            return data
        if not data.is_batched:
            raise ConfigError("the dataset gives single rows; add .batch(n) to it")
        if data.schema is None:
            data = data.with_schema(self.model.declaration.schema())
        elif types := self.model.declaration.value_types:
            data = data.with_schema(data.schema.with_value_types(types))
        return data.prefetch(self.config.pipeline.batch_prefetch_capacity)

    def _resume(self, dataset: Any) -> bool:
        """Restore the position of the last run; return False without one, or when it is the end of the data."""
        if self._place is None or not isinstance(dataset, Dataset | BatchSequence):
            return False
        if self._data_ended and not (isinstance(dataset, Dataset) and dataset.is_stream):
            return False
        if isinstance(dataset, BatchSequence) and self._list is not None and not dataset.is_of(self._list):
            return False  # another list, in which the position has no meaning
        self._group.check_resume(self.restored_extra, self._step)
        if self._is_alone and self._places_saved > 1:
            raise DataError(
                f"the checkpoint of step {self._step} is of {self._places_saved} workers, each with its own position "
                "in the data, and this is one process. Resume with as many workers, or start at the beginning of the "
                "data: resume_data=False"
            )
        try:
            dataset.restore(self._place)
        except DataError as error:
            raise DataError(f"{error}. To start at the beginning of the data: resume_data=False") from error
        return True

    def train_and_evaluate(
        self,
        train: Dataset | Sequence[Batch],
        evaluate: Dataset | Sequence[Batch],
        *,
        max_steps: int | None = None,
        steps_per_eval: int = 10000,
        eval_steps: int | None = None,
        hooks: Sequence[Hook] = (),
        resume_data: bool = True,
    ) -> list[dict[str, float]]:
        """Train, and evaluate every ``steps_per_eval`` steps and at the end; return the evaluations in order.

        ``hooks`` are further hooks of each training between two evaluations. Windows of early stopping continue behind
        an evaluation.
        """
        if steps_per_eval is None:
            raise ConfigError("steps_per_eval is None, expected a whole number from 1 up")
        _check_counts(steps_per_eval=steps_per_eval, eval_steps=eval_steps, max_steps=max_steps)
        self._stopping = early_stopping_hook(self.config)
        try:
            return self._train_and_evaluate(train, evaluate, max_steps, steps_per_eval, eval_steps, hooks, resume_data)
        finally:
            self._stopping = None

    def _train_and_evaluate(
        self,
        train: Dataset | Sequence[Batch],
        evaluate: Dataset | Sequence[Batch],
        max_steps: int | None,
        steps_per_eval: int,
        eval_steps: int | None,
        hooks: Sequence[Hook],
        resume_data: bool,
    ) -> list[dict[str, float]]:
        evaluations: list[dict[str, float]] = []
        while True:
            before = self.step
            until = before + steps_per_eval if max_steps is None else min(before + steps_per_eval, max_steps)
            if until > before:
                self.train(train, max_steps=until, hooks=hooks, resume_data=resume_data or bool(evaluations))
                if self.step > before or not evaluations:
                    evaluations.append(self.evaluate(evaluate, eval_steps))
            is_done = self._data_ended or self._is_stopped or self.step < until
            if is_done or (max_steps is not None and self.step >= max_steps):
                return evaluations

    def _new_metrics(self) -> RunMetrics:
        window = self.config.metrics.log_step_count_steps or 100
        return RunMetrics(window_steps=window, auc_exact_size=self.config.metrics.auc_exact_size)

    def _new_ranking(self) -> RankingMetrics:
        settings = self.config.metrics.ranking
        return RankingMetrics(settings.group_by, top_k=settings.top_k, by_hour=settings.auc_by_hour)

    # --- scoring ------------------------------------------------------------------------------------------------------

    def evaluate(
        self, data: Dataset | Sequence[Batch], steps: int | None = None, *, checkpoint: str | Path | None = None
    ) -> dict[str, float]:
        """Score the data without training.

        Args:
            data: A dataset with ``batch()``, or batches.
            steps: Batches to score; None = all.
            checkpoint: Folder of a checkpoint to load first; None = the state in memory, or else the newest.

        Returns:
            ``<head>/auc`` and the other metrics, ``loss`` per example, ``samples`` and ``global_step``.

        Raises:
            DataError: The data has no batch, or no row with a label.
        """
        _check_counts(steps=steps)
        metrics, ranking = self._new_metrics(), self._new_ranking()
        samples = 0
        has_labels = False
        for number, (batch, heads) in enumerate(self._score(data, checkpoint)):
            samples += batch.size
            result = heads.step_result(batch, heads.totals(batch), step=self._step)
            has_labels = has_labels or result.has_labels
            metrics.update(result)
            ranking.update(result)
            if steps is not None and number + 1 >= steps:
                break
        if not samples:
            raise DataError("the data gave no batch to evaluate; check the patterns and filters")
        if not has_labels:
            raise DataError(
                f"none of the {samples} rows has a label, so there is nothing to measure; check the data and its "
                "label_features"
            )
        return {**metrics.results(), **ranking.results(), "samples": float(samples), "global_step": float(self._step)}

    def predict(
        self,
        data: Dataset | Sequence[Batch],
        *,
        checkpoint: str | Path | None = None,
        keys: Callable[[Batch], Mapping[str, Any]] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Iterate over the predictions of each batch: head to (B,) array, and each head's extra outputs by name.

        Args:
            data: A dataset with ``batch()``, or batches.
            checkpoint: Folder of a checkpoint to load first; None = the state in memory, or else the newest.
            keys: Returns further columns of a batch, which come first.
        """
        for batch, heads in self._score(data, checkpoint):
            arrays: dict[str, Any] = {} if keys is None else dict(keys(batch))
            for name, result in heads.results().items():
                if name in arrays:
                    raise ConfigError(f"a key and a head are called {name!r}, expected different names; rename one")
                arrays[name] = result.predictions
            for output in heads.outputs.values():
                for name, value in output.extra.items():
                    if name in arrays:
                        raise ConfigError(f"two outputs are called {name!r}; heads and extra outputs share their names")
                    arrays[name] = value.detach().cpu().numpy()
            yield arrays

    def _score(self, data: Any, checkpoint: str | Path | None) -> Iterator[tuple[Batch, Heads]]:
        self._load(checkpoint)
        was_training = self.model.training
        self.model.eval()
        is_reported = False
        try:
            for batch in self._prepare_data(data):
                if not is_reported and (inputs := describe_not_finite(batch)):
                    logger.warning("inputs not finite, scores of these rows unreliable reason=%r", inputs)
                    is_reported = True
                yield batch, self._stepper.predict(self._stepper.embedder.pull(batch))
        finally:
            self.model.train(was_training)

    def load(self, checkpoint: str | Path | None = None) -> None:
        """Load a checkpoint for scoring or exporting; None = the newest, unless state is in memory already."""
        self._load(checkpoint)

    # --- serving ------------------------------------------------------------------------------------------------------

    def export(
        self,
        path: str | Path | None = None,
        version: int | None = None,
        quantize_bits: int | None = None,
        warmup: str | Path | None = None,
        *,
        checkpoint: str | Path | None = None,
        overwrite: bool = False,
        options: ExportOptions | None = None,
    ) -> Path:
        """Write a version of the model that ``monolith serve`` loads.

        Args:
            path: Folder or URL of the model's versions; None = ``exported_models`` in the run's folder, where an export
                is removed together with its checkpoint.
            version: Its number; None = unix seconds.
            quantize_bits: 8 or 16 stores the matrices of the dense part with fewer bits.
            warmup: File of recorded requests that a server answers before it is ready; None = generated ones.
            checkpoint: Folder of a checkpoint to export; None = the state in memory, or else the newest. Its tables are
                converted shard by shard and are never whole in memory.
            overwrite: Replace an existing version.
            options: Further options.

        Returns:
            The folder of the version; of a distributed export, that of its ``entry``.

        Raises:
            ConfigError: The model cannot be exported; or neither a path nor a run's folder is given.
        """
        from monolith.export import ExportOptions, export_model

        chosen = options or ExportOptions()
        if quantize_bits is not None:
            chosen = replace(chosen, quantize_bits=quantize_bits)
        if path is None and not self.config.model_dir:
            raise ConfigError(
                "path is None and model_dir is empty, expected a folder for exports; give path=, or "
                "RunConfig(model_dir=...)"
            )
        rows = self._load_for_export(checkpoint, chosen)
        steps = None
        if path is None and self._checkpointer is not None:
            steps = {saved.step for saved in self._checkpointer.folder.saved()}
        return export_model(
            self.model,
            rows,
            export_base(self.config) if path is None else path,
            name=export_name(self.config, self.model),
            step=self._step,
            version=version,
            options=chosen,
            warmup=warmup,
            overwrite=overwrite,
            keep_steps=steps,
            clock=self._clock,
        )

    def _load_for_export(self, checkpoint: str | Path | None, options: ExportOptions) -> EmbeddingStore | SavedTables:
        """Return the rows to export: those in memory, or those of a checkpoint, whose dense part is then loaded."""
        from monolith.export import SavedTables

        if self._checkpointer is None or (checkpoint is None and self._holds != "nothing"):
            self._load(checkpoint)
            return self.store
        restored = self._checkpointer.load_dense(
            TrainingState(step=0, model=self.model, optimizers={}, store=self.store, rng=False),
            None if checkpoint is None else open_folder(checkpoint),
        )
        if restored is None:
            raise CheckpointMissing(f"there is no checkpoint in '{artifact_url(self.model_dir)}'; train first")
        self._check_slices(restored)
        self._adopt_value_types(restored)
        self._holds, self._step = "nothing", restored.step  # the rows in memory are not those of the checkpoint
        tables = restored.path if restored.is_bare else restored.path / TABLES
        if not tables.is_dir() and not options.is_dense_only:
            raise ConfigError(
                f"checkpoint is '{restored.path}', which has no tables, expected a full checkpoint; or export the "
                "dense part alone: is_dense_only (--layout distributed --dense-only)"
            )
        if receipts := forgotten_since(self.config.model_dir, restored.path):
            raise ConfigError(
                f"checkpoint is '{restored.path}', which holds the forgotten rows of receipt {receipts[0].number}, "
                "expected a checkpoint saved after it; train until the next checkpoint, or export that one"
            )
        return SavedTables(tables, self.store.specs)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _extra(self) -> dict[str, Any]:
        declaration = self.model.declaration
        slices = {table: list(pieces) for table, pieces in declaration.slices.items()}
        try:
            text: str | None = declaration.to_json()
        except ConfigError:  # a learning rate that is a bare function has no text form
            text = None
        types = declaration.value_types
        return {**self._more_extra(), "slices": slices, "declaration": text, "value_types": types}

    def _restore(self) -> None:
        """Restore the newest checkpoint, or the one of the settings, before the first training."""
        if self._holds == "training":
            return
        if self._checkpointer is not None:
            self._restore_checkpoint(self._checkpointer)
        member = self._group.restore_member(self.restored_extra, self.config.runtime.seed)
        if member is not None:
            self._place, self._data_ended = member.position, member.data_ended

    def _restore_checkpoint(self, checkpointer: Checkpointer) -> None:
        now_s = self._clock.now_s()
        restored = checkpointer.restore(
            TrainingState(step=0, model=self.model, optimizers=self._stepper.optimizers, store=self.store)
        )
        if restored is not None:
            self._check_slices(restored)
            self._adopt_value_types(restored)
        self._holds = "training"
        if restored is not None:
            self._step, self._place = restored.step, restored.data
            self._data_ended = bool(restored.extra.get("data_ended"))
            self.restored_extra = restored.extra
            self._places_saved = len(restored.extra.get("workers", ())) or 1
            if restored.metrics:
                self._metrics.restore(restored.metrics)
            erase_forgotten(self.config.model_dir, self.store, restored.path)
        for timer in self._timers:
            timer.start(self._step, now_s)

    def _load(self, checkpoint: str | Path | None) -> None:
        """Load a given checkpoint before scoring, or the newest when no state is in memory."""
        if checkpoint is None and (self._holds != "nothing" or self._checkpointer is None):
            return
        if self._checkpointer is None:
            raise CheckpointMissing("this estimator has no model_dir; give RunConfig(model_dir=...) to load from")
        restored = self._checkpointer.load(
            TrainingState(step=0, model=self.model, optimizers={}, store=self.store, rng=False),
            None if checkpoint is None else open_folder(checkpoint),
        )
        if restored is None:
            raise CheckpointMissing(f"there is no checkpoint in '{artifact_url(self.model_dir)}'; train first")
        self._check_slices(restored)
        self._adopt_value_types(restored)
        erase_forgotten(self.config.model_dir, self.store, restored.path)
        self._holds = "reading"
        self._step = restored.step

    def _check_slices(self, restored: Restored) -> None:
        """Refuse rows whose slices have changed their order: their widths may agree nevertheless."""
        before = restored.extra.get("slices", {})
        for table, slices in self.model.declaration.slices.items():
            if table in before and before[table] != list(slices):
                raise SchemaMismatch(
                    f"rows of {table!r} in '{restored.path}' have the slices {', '.join(before[table])}, those of the "
                    f"model {', '.join(slices)}; declare them in the order of the checkpoint"
                )

    def _adopt_value_types(self, restored: Restored) -> None:
        """Record the types of values that the rows were trained on; rows of earlier releases keep their rule of ids."""
        declaration = self.model.declaration
        if restored.saved_extra is None:  # a snapshot of tables: declaration or data decide
            return
        types = restored.saved_extra.get("value_types")
        if types is None:
            tables = restored.saved_extra.get("slices", declaration.tables)
            types = {each.input: "slot48" for each in declaration.features.values() if each.table in tables}
            logger.warning(
                "old rule of ids kept: integers above 48 bits share rows checkpoint=%s features=%s",
                restored.path.name,
                ",".join(types),
            )
        declaration.record_value_types(types, f"'{restored.path}'")


def _check_counts(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{name} is {value!r}, expected a whole number from 1 up, or None")


def _small_rows(model: Model, gradients: GradientConfig) -> SmallRows | None:
    threshold = gradients.ue_euclidean_norm_threshold
    return None if threshold is None else SmallRows(model.declaration, threshold, gradients.ue_fc_names)


def _prepare(config: RunConfig) -> None:
    """Seed every generator, and set the memory and the threads, before the model is built."""
    keep_freed_memory()
    random.seed(config.runtime.seed)
    np.random.seed(config.runtime.seed % (1 << 32))
    torch.manual_seed(config.runtime.seed)
    if config.runtime.accelerator == "cuda" and not torch.cuda.is_available():
        raise ConfigError("accelerator is 'cuda', but torch sees no CUDA device; use 'cpu', or install a CUDA torch")
    if config.runtime.threads is not None:
        torch.set_num_threads(config.runtime.threads)
        embedding.set_threads(config.runtime.threads)


@contextmanager
def _deterministic(is_wanted: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(is_wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
