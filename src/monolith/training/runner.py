"""``Job``: a model, its data and its estimator, from a configuration; the work behind ``monolith train``.

The folder of a trained model contains its job, so evaluating and predicting need only the folder and data.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from monolith import models
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.remote_folder import open_folder, push_folder, refresh_folder
from monolith.core.errors import ConfigError
from monolith.core.registry import load_class
from monolith.data import Dataset, Schema
from monolith.data.profile import DataProfile, profile_rows
from monolith.data.sources.urls import is_stream_url, sample_url
from monolith.embedding import EmbeddingStore, MultiTable, TableSpec
from monolith.features import Model
from monolith.models.catalog import model_class
from monolith.training.checkpoints.choice import CHECKPOINTS
from monolith.training.config import RunConfig
from monolith.training.config.job import DataConfig, JobConfig
from monolith.training.data_report import DataReport, log_report, make_report
from monolith.training.estimator import Estimator
from monolith.training.eval_loop import evaluate_checkpoints, follow_checkpoints
from monolith.training.feature_engineering import FeatureFiles, write_features
from monolith.training.folder_lock import lock_folder
from monolith.training.groups import Group
from monolith.training.hooks import Hook
from monolith.training.hooks.progress import DataLength
from monolith.training.hooks.summaries import write_summary
from monolith.training.job_data import (
    WorkListShare,
    count_epoch_steps,
    default_shuffle,
    exclude_features,
    open_batches,
    open_rows,
    open_then,
    reads_files,
    wants_second_pass,
)
from monolith.training.job_file import JobFileHook, check_job, digest_data, read_job, write_job
from monolith.training.key_columns import KeyColumns
from monolith.training.staging import stage_model_folder
from monolith.training.task import Mode, Task, make_task, open_own_data, settings_of_task

__all__ = ["Job", "task_settings"]

logger = logging.getLogger(__name__)

_RESTART_S = 10.0
"""How long the chief of a cluster waits for its predecessor to exit."""


class Job:
    """One model and its data, by configuration.

    Args:
        config: The settings. Without a ``task``, the job takes the task of the model folder.
        hooks: Hooks of the training.
        run_config: Settings of this process that differ from ``config``: a worker other than the chief has no folder.
        store: The store of the rows; see ``Estimator``.
        extra: Additional state of checkpoints; see ``Estimator``.
        group: The processes that train together; see ``Estimator``.
        files: The work list of the files of ``data``; None = this worker reads its shard of the files.
        on_report: Called with the roles of the columns before a training on files.

    Raises:
        ConfigError: The task does not exist, or neither the settings nor the folder name one.
    """

    def __init__(
        self,
        config: JobConfig,
        *,
        hooks: Sequence[Hook] = (),
        run_config: RunConfig | None = None,
        store: Callable[[Sequence[TableSpec]], EmbeddingStore] | None = None,
        extra: Callable[[], Mapping[str, Any]] | None = None,
        group: Group | None = None,
        files: WorkListShare | None = None,
        on_report: Callable[[DataReport], None] | None = None,
    ) -> None:
        config = stage_model_folder(config, config.run.model_dir)
        if run_config is not None:
            run_config = stage_model_folder(run_config, run_config.model_dir)
        self.config = config
        self._files = files
        self._on_report = on_report
        self._remembered = read_job(config.run.model_dir) if config.model.task is None else {}
        self._inferred: Schema | None = None
        self._profile: DataProfile | None = None
        self._own_task: Task | None = None
        self._first_step = 0
        self._is_second_pass = False
        self._is_alone = store is None and group is None
        self._lock_wait_s = 0.0 if store is None else _RESTART_S
        self.estimator = Estimator(
            self._make_model,
            run_config or config.run,
            hooks=[*hooks, JobFileHook(self._remember)],
            store=store,
            extra=extra,
            group=group,
        )

    @property
    def schema(self) -> Schema:
        """The schema of the data."""
        return self._schema(has_labels=True)

    def _schema(self, *, has_labels: bool) -> Schema:
        options = {"label_features": self._labels} if self._labels and has_labels else {}
        return self.estimator.model.declaration.schema(**options)

    # --- work ---------------------------------------------------------------------------------------------------------

    def train(self) -> dict[str, float]:
        """Train, and evaluate when there is data for it; return the last metrics.

        A training that is refused before its first step leaves the model folder as it was. A training of data that
        the folder's training has finished returns no metrics, unless the setting ``more`` is on.

        Raises:
            ConfigError: Another process trains in the model folder, or the folder has another task or other labels.
        """
        if not self.estimator.config.model_dir:
            return self._train_and_evaluate()
        check_job(self.config.run.model_dir, self.config.model.task, self.config.input.columns.label_features)
        with lock_folder(Path(self.config.run.model_dir), wait_s=self._lock_wait_s):
            if self._is_finished():
                return {}
            metrics = self._train_and_evaluate()
            if self._is_alone and self.estimator.data_ended:
                self._remember(finished=digest_data(self.config.input))
            push_folder(self.config.run.model_dir)
            return metrics

    def _is_finished(self) -> bool:
        """Return True if the folder's training has read this data to its end."""
        if self.config.model.more or not self.config.input.resume_data or not self._is_alone:
            return False
        finished = read_job(self.config.run.model_dir, default={}).get("finished")
        if finished is None or finished != digest_data(self.config.input):
            return False
        logger.warning(
            "training is finished, nothing trained step=%d data=%s; to train on the same data again: --more",
            self.estimator.step,
            self.config.input.data,
        )
        return True

    def _train_and_evaluate(self) -> dict[str, float]:
        known = read_job(self.config.run.model_dir, default={}) if self.config.input.resume_data else {}
        self._is_second_pass = bool(known.get("is_second_pass"))
        train = self._batches(self.config.input.data, is_training=True)
        self._report_data()
        self._plan_progress()
        evaluate = self._eval_batches()
        if evaluate is None:
            return self._train_passes(train)
        if self.config.model.steps_per_eval is None:
            self._train_passes(train)
            return self.estimator.evaluate(evaluate, self.config.model.eval_steps)
        max_steps = self.config.model.max_steps
        if self.config.model.steps is not None:
            ends = [self.estimator.step + self.config.model.steps, *([] if max_steps is None else [max_steps])]
            max_steps = min(ends)
        evaluations = self.estimator.train_and_evaluate(
            train,
            evaluate,
            max_steps=max_steps,
            steps_per_eval=self.config.model.steps_per_eval,
            eval_steps=self.config.model.eval_steps,
            hooks=self._task_hooks(),
            resume_data=self.config.input.resume_data,
        )
        return evaluations[-1] if evaluations else {}

    def _train_passes(self, data: Dataset) -> dict[str, float]:
        """Train on one pass, and on a second one where that is the default for such data."""
        metrics = self._train(data)
        if not self._needs_second_pass():
            return metrics
        self._is_second_pass = True
        self._remember()
        self._plan_progress()
        return self._train(self._batches(self.config.input.data, is_training=True))

    def _needs_second_pass(self) -> bool:
        config, store = self.config, self.estimator.store
        is_limited = config.model.steps is not None or config.model.max_steps is not None
        if config.input.epochs is not None or is_limited or self._is_second_pass or self._shuffle_buffer <= 1:
            return False
        if not (self._is_alone and self.estimator.data_ended and isinstance(store, MultiTable)):
            return False
        rows = (self.estimator.step - self._first_step) * config.input.batch_size
        table = max(store, key=lambda name: len(store[name]))
        if not wants_second_pass(rows, len(store[table])):
            return False
        logger.info(
            "second pass begins rows=%d ids=%d table=%s; to read the data once: --epochs 1",
            rows,
            len(store[table]),
            table,
        )
        return True

    def _train(self, data: Dataset) -> dict[str, float]:
        config = self.config
        hooks = self._task_hooks()
        steps, max_steps = config.model.steps, config.model.max_steps
        return self.estimator.train(data, steps, max_steps, hooks=hooks, resume_data=config.input.resume_data)

    def read_training_data(self) -> Dataset:
        """Return the batches of ``data`` as a training reads them."""
        return self._batches(self.config.input.data, is_training=True)

    def _eval_batches(self) -> Dataset | None:
        """Return the data to evaluate on; the own data of the task counts when ``steps_per_eval`` asks for it."""
        if self.config.input.eval_data is not None:
            return self._batches(self.config.input.eval_data, is_training=False)
        has_own_data = (
            self.config.input.data is None and not self.config.input.kafka.kafka_topics and self._own_task is not None
        )
        return self._batches(None, is_training=False) if has_own_data and self.config.model.steps_per_eval else None

    def _task_hooks(self) -> Sequence[Hook]:
        """Return the hooks that the task adds to the training."""
        make_hooks: Callable[[], Sequence[Hook]] = getattr(self._own_task, "training_hooks", list)
        return make_hooks()

    def evaluate(self, checkpoint: str | Path | None = None) -> dict[str, float]:
        """Score ``data`` with the newest checkpoint, or with a given one."""
        batches = self._batches(self.config.input.data, is_training=False)
        return self.estimator.evaluate(batches, self.config.model.eval_steps, checkpoint=checkpoint)

    def evaluate_new_checkpoints(self) -> Iterator[dict[str, float]]:
        """Evaluate each new checkpoint of the model folder, until that of ``max_steps``; also write a summary of it."""
        folder = CheckpointFolder(Path(self.config.run.model_dir) / CHECKPOINTS)

        def list_checkpoints() -> list[tuple[int, Path]]:
            refresh_folder(self.config.run.model_dir)
            return [(saved.step, saved.path) for saved in folder.saved()]

        checkpoints = follow_checkpoints(list_checkpoints, max_steps=self.config.model.max_steps)
        for step, metrics in evaluate_checkpoints(checkpoints, lambda step, path: self.evaluate(path)):
            write_summary(metrics, step, Path(self.config.run.model_dir) / "eval")
            yield metrics

    def predict(self, checkpoint: str | Path | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the keys and predictions of ``data``, batch by batch; the data needs no labels.

        Raises:
            ConfigError: The data has no column of a key, or is a stream whose columns are unknown.
        """
        config = self.config.input
        names = config.columns.keys or tuple(self._remembered.get("keys", ()))
        if not names:
            batches = self._batches(config.data, is_training=False, has_labels=False)
            return self.estimator.predict(batches, checkpoint=checkpoint)
        if not reads_files(config):
            raise ConfigError(f"keys is {names} and data is {config.data!r}, expected files; give --data FILES")
        exclude = tuple(name for name in config.columns.exclude if name not in names)
        config = replace(config, columns=replace(config.columns, exclude=exclude))
        keys = KeyColumns(names, profile_rows(open_rows(config, config.data, seed=self.config.run.runtime.seed)))
        rows = open_rows(self._timed(config), config.data, seed=self.config.run.runtime.seed)
        batches = open_batches(config, rows, keys.extend(self._schema(has_labels=False)), is_training=False)
        return self.estimator.predict(batches, checkpoint=checkpoint, keys=keys.read)

    def write_features(self) -> FeatureFiles:
        """Write the training data, as the model would see it, to files in the model folder.

        Raises:
            ConfigError: There is no model folder.
        """
        if not self.config.run.model_dir:
            raise ConfigError("model_dir is empty, expected a folder for only_feature_engineering; give --model-dir")
        window = self.config.input.shuffle_buffer or 0
        batches = self._batches(self.config.input.data, is_training=True, window=window)
        return write_features(batches, Path(self.config.run.model_dir), index=self.config.run.runtime.index)

    def _batches(
        self, patterns: str | None, *, is_training: bool, has_labels: bool = True, window: int | None = None
    ) -> Dataset:
        files = self._files if is_training else None
        mode: Mode = "train" if is_training else "eval"
        if (
            patterns is None
            and not self.config.input.kafka.kafka_topics
            and (own := self.own_batches(mode)) is not None
        ):
            if files is not None:
                raise ConfigError(
                    "enable_dynamic_sharding is True and data is None, expected files of --data: the task has its own "
                    "data"
                )
            batches: Dataset = self._with_schema(own)
            return batches
        shard = (self.config.run.runtime.index, self.config.run.runtime.num_workers) if is_training else (0, 1)
        seed = self.config.run.runtime.seed + (is_training and self._is_second_pass)  # another order in each pass
        options: dict[str, Any] = {"seed": seed, "shard": shard}
        data = self._timed(self.config.input)
        rows = open_rows(data, patterns, files=files, **options)
        if window is None:
            window = self._shuffle_buffer if is_training else 0
        schema = self._schema(has_labels=has_labels)
        then = open_then(data, **options) if is_training else None
        return open_batches(data, rows, schema, is_training=is_training, shuffle_buffer=window, then=then)

    def _timed(self, data: DataConfig) -> DataConfig:
        """Return settings of the data with the time column of the folder's training; files may lack this column.

        Metrics by hour need it, and read it of streams too. A stream may hold its times in another field.
        """
        time, by_hour = self._time_column, self.config.run.metrics.ranking.auc_by_hour
        if data.columns.time_column is not None or time is None or not (by_hour or reads_files(data)):
            return data
        allow_missing = (*data.columns.allow_missing, *(() if by_hour else (time,)))
        return replace(data, columns=replace(data.columns, time_column=time, allow_missing=allow_missing))

    @property
    def _time_column(self) -> str | None:
        """The column of the event time; that of the folder's training unless given."""
        known: str | None = read_job(self.config.run.model_dir, default={}).get("time_column")
        return self.config.input.columns.time_column or known

    @property
    def _shuffle_buffer(self) -> int:
        """The setting; or that of the folder's training, whose position has its windows; or the default."""
        if self.config.input.shuffle_buffer is not None:
            return self.config.input.shuffle_buffer
        known = read_job(self.config.run.model_dir, default={})
        if known and self.config.input.resume_data:
            return int(known.get("shuffle_buffer", 0))
        return default_shuffle(self._timed(self.config.input), self.schema, self._files)

    def _plan_progress(self) -> None:
        """Set the length of the data; a resumed pass began at the step that the job file has."""
        steps = count_epoch_steps(self.config.input, self.config.run.runtime.num_workers)
        if steps is None or not self._is_alone:
            return
        known = read_job(self.config.run.model_dir, default={})
        step = self.estimator.step  # loads the newest checkpoint, which knows whether its data ended
        is_within = step > 0 and (self._is_second_pass or not self.estimator.data_ended)
        if not (self.config.input.resume_data and is_within):
            self._first_step = step
        elif not self._first_step:
            self._first_step = int(known.get("first_step", 0))
        epochs = self.config.input.epochs
        if epochs is None:
            epochs = 1 + self._is_second_pass
        self.estimator.data_length = DataLength(first_step=self._first_step, epoch_steps=steps, epochs=epochs)

    def _report_data(self) -> None:
        """Report the role of each column of the first rows, and log warnings."""
        config = self._timed(self.config.input)
        if not self.config.run.model_dir:
            logger.warning("model_dir is empty, the trained model is lost at the end; give --model-dir to keep it")
        if not reads_files(config) or self.config.run.runtime.index:
            return
        profile = self._profile or profile_rows(open_rows(config, config.data, seed=self.config.run.runtime.seed))
        declared = self.estimator.model.declaration
        report = make_report(
            profile,
            self.schema,
            time_column=config.columns.time_column,
            expire_days={each.table: each.expire_days for each in declared.features.values()},
            is_shuffled=self._shuffle_buffer > 1,
            heads=declared.labels if _find_class(self._task) is None else None,
        )
        log_report(report, shuffle_buffer=self._shuffle_buffer)
        if self._on_report is not None:
            self._on_report(report)

    def _with_schema(self, own: Any) -> Any:
        """Give a dataset without a schema that of the model; batches and other data stay."""
        return own.with_schema(self.schema) if isinstance(own, Dataset) and own.schema is None else own

    def own_batches(self, mode: Mode) -> Dataset | None:
        """Return this worker's share of the data that the task or model brings; None when neither brings data.

        The data is that of ``create_input_fn(mode)`` of the task, or of ``input_fn(mode)`` of the model. Evaluation
        reads all of it.

        Raises:
            ConfigError: There are several workers, and the function does not take ``shard``.
        """
        if self._own_task is not None:
            input_fn: Any = self._own_task.create_input_fn(mode)
        elif hasattr(type(self.estimator.model), "input_fn"):
            input_fn = functools.partial(cast(Any, self.estimator.model).input_fn, mode)
        else:
            return None
        shard = (self.config.run.runtime.index, self.config.run.runtime.num_workers) if mode == "train" else (0, 1)
        opened: Dataset = open_own_data(input_fn, shard, owner=f"task {self._task!r}")
        return opened

    # --- the model ----------------------------------------------------------------------------------------------------

    @property
    def _task(self) -> str:
        task: str = self.config.model.task or self._remembered["task"]
        return task

    @property
    def _labels(self) -> tuple[str, ...]:
        return self.config.input.columns.label_features or tuple(self._remembered.get("label_features", ()))

    @property
    def _options(self) -> dict[str, Any]:
        return {**self._remembered.get("task_options", {}), **self.config.model.task_options}

    def _make_model(self) -> Model:
        cls = _find_class(self._task)
        if cls is None:
            self._inferred = self._infer_schema()
            return models.from_schema(self._task, self._inferred, self._options, labels=self._labels)
        made: object = make_task(cls, self._task, self._options)
        if isinstance(made, Task):
            self._own_task = made
            if self.config.input.batch_size != DataConfig().batch_size and hasattr(made, "use_batch_size"):
                made.use_batch_size(self.config.input.batch_size)
            model_fn: object = made.create_model_fn()
            made = model_fn() if callable(model_fn) and not isinstance(model_fn, Model) else model_fn
        if not isinstance(made, Model):
            raise ConfigError(f"task {self._task!r} is a {type(made).__name__}; give a subclass of monolith.Model")
        return made

    def _infer_schema(self) -> Schema:
        """Return the schema of the first training, or infer one from the data."""
        seen = read_job(self.config.run.model_dir, default={}).get("schema")
        if seen is not None:
            return self._add_named(Schema.from_json(json.dumps(seen)))
        patterns = self.config.input.data
        topics = self.config.input.kafka.kafka_topics
        is_kafka = bool(topics) if patterns is None else patterns.startswith("kafka://")
        if patterns == "-" or is_kafka:
            raise ConfigError(
                f"task {self._task!r} infers its features from the first rows, and a stream gives rows only once; "
                "train on a file first, into this --model-dir, or write the model: --task FILE.py:Class"
            )
        return exclude_features(self._read_profile().schema(), self.config.input.columns.exclude)

    def _read_profile(self) -> DataProfile:
        config, patterns = self.config, self.config.input.data
        sample = sample_url(patterns) if patterns is not None and is_stream_url(patterns) else patterns
        self._profile = profile_rows(open_rows(config.input, sample, seed=config.run.runtime.seed))
        return self._profile

    def _add_named(self, schema: Schema) -> Schema:
        """Return the folder's schema with the features that the options name and the folder does not have yet."""
        known = _feature_names(schema)
        listed = [self.config.model.task_options.get(kind) for kind in ("sparse", "dense")]
        named = {name for names in listed if isinstance(names, list | tuple) for name in names if isinstance(name, str)}
        if named <= known or not reads_files(self.config.input):
            return schema
        found = self._read_profile().schema()
        added = (named - known) & _feature_names(found)
        logger.info("features added to those of the folder features=%s", ",".join(sorted(added)))
        return replace(
            schema,
            sparse=[*schema.sparse_features, *(each for each in found.sparse_features if each.name in added)],
            dense=[*schema.dense_features, *(each for each in found.dense_features if each.name in added)],
        )

    def _remember(self, finished: str | None = None) -> None:
        if not self.estimator.config.model_dir:
            return
        body = {
            "task": _resolve_task(self._task),
            "task_options": self._options,
            "label_features": list(self._labels),
            "keys": list(self.config.input.columns.keys),
            "time_column": self._time_column,
            "shuffle_buffer": self._shuffle_buffer,
            "finished": finished,
            "first_step": self._first_step,
            "is_second_pass": self._is_second_pass and finished is None,
            "schema": None if self._inferred is None else json.loads(self._inferred.to_json()),
        }
        write_job(self.config.run.model_dir, body)


def _feature_names(schema: Schema) -> set[str]:
    return {*(each.name for each in schema.sparse_features), *(each.name for each in schema.dense_features)}


def task_settings(task: str | None, options: Mapping[str, Any], model_dir: str | Path) -> dict[str, tuple[Any, str]]:
    """Return the settings that a task asks for by its parameters: setting to (value, place).

    Args:
        task: The name of the task; None = the task of the model folder.
        options: Its parameters by dotted name.
        model_dir: The model folder.

    Raises:
        ConfigError: The task does not exist, or no code reads a parameter that was set.
    """
    if task is None:
        remembered = read_job(open_folder(model_dir), default={})
        task, options = remembered.get("task"), {**remembered.get("task_options", {}), **options}
    cls = None if task is None else _find_class(task)
    return {} if cls is None else settings_of_task(cls, options)


def _find_class(task: str) -> type[Any] | None:
    """Return the class that a task names; None for a model of the catalog."""
    if "." in task or ":" in task:
        return load_class(task)
    try:
        model_class(task)
    except ConfigError as unknown:
        try:
            return load_class(task)
        except ConfigError as error:
            raise ConfigError(f"{unknown}; {error}") from error
    return None


def _resolve_task(task: str) -> str:
    """Return the task with an absolute path, valid in every folder."""
    path, colon, name = task.rpartition(":")
    return f"{Path(path).resolve()}{colon}{name}" if path.endswith(".py") else task
