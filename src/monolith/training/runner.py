"""``Job``: a model, its data and its estimator, from a configuration; the work behind ``monolith train``.

The folder of a trained model contains its job, so evaluating and predicting need only the folder and data.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from typing_extensions import override

from monolith import models
from monolith.artifacts import CheckpointFolder
from monolith.core.durable_files import replace_file
from monolith.core.errors import ConfigError
from monolith.core.registry import SingleTaskModelParams, load_class
from monolith.data import Dataset, Schema, infer_schema
from monolith.embedding import EmbeddingStore, TableSpec
from monolith.features import Model
from monolith.models.catalog import model_class
from monolith.training.checkpoints.choice import CHECKPOINTS
from monolith.training.config import RunConfig
from monolith.training.config.job import JobConfig
from monolith.training.estimator import Estimator
from monolith.training.eval_loop import evaluate_checkpoints, follow_checkpoints
from monolith.training.feature_engineering import FeatureFiles, write_features
from monolith.training.folder_lock import lock_folder
from monolith.training.groups import Group
from monolith.training.hooks import Hook
from monolith.training.hooks.summaries import write_summary
from monolith.training.job_data import WorkListShare, open_batches, open_rows
from monolith.training.key_columns import KeyColumns
from monolith.training.run import Run, StepResult
from monolith.training.task import Mode, Task

__all__ = ["Job"]

logger = logging.getLogger(__name__)

_JOB_FILE = "job.json"
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
    ) -> None:
        self.config = config
        self._files = files
        self._remembered = _read_job(config) if config.task is None else {}
        self._inferred: Schema | None = None
        self._own_task: Task | None = None
        self._lock_wait_s = 0.0 if store is None else _RESTART_S
        self.estimator = Estimator(
            self._make_model,
            run_config or config,
            hooks=[*hooks, _JobFileHook(self._remember)],
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

        A training that is refused before its first step leaves the model folder as it was.

        Raises:
            ConfigError: Another process trains in the model folder, or the folder has another task.
        """
        if not self.estimator.config.model_dir:
            return self._train_and_evaluate()
        _check_task(self.config)
        with lock_folder(Path(self.config.model_dir), wait_s=self._lock_wait_s):
            return self._train_and_evaluate()

    def _train_and_evaluate(self) -> dict[str, float]:
        train = self._batches(self.config.data, is_training=True)
        if self.config.eval_data is None:
            return self._train(train)
        evaluate = self._batches(self.config.eval_data, is_training=False)
        if self.config.steps_per_eval is None:
            self._train(train)
            return self.estimator.evaluate(evaluate, self.config.eval_steps)
        max_steps = self.config.max_steps
        if self.config.steps is not None:
            max_steps = self.estimator.step + self.config.steps
        evaluations = self.estimator.train_and_evaluate(
            train,
            evaluate,
            max_steps=max_steps,
            steps_per_eval=self.config.steps_per_eval,
            eval_steps=self.config.eval_steps,
            resume_data=self.config.resume_data,
        )
        return evaluations[-1] if evaluations else {}

    def _train(self, data: Dataset) -> dict[str, float]:
        config = self.config
        return self.estimator.train(data, config.steps, config.max_steps, resume_data=config.resume_data)

    def evaluate(self, checkpoint: str | Path | None = None) -> dict[str, float]:
        """Score ``data`` with the newest checkpoint, or with a given one."""
        batches = self._batches(self.config.data, is_training=False)
        return self.estimator.evaluate(batches, self.config.eval_steps, checkpoint=checkpoint)

    def evaluate_new_checkpoints(self) -> Iterator[dict[str, float]]:
        """Evaluate each new checkpoint of the model folder, until that of ``max_steps``; also write a summary of it."""
        folder = CheckpointFolder(Path(self.config.model_dir) / CHECKPOINTS)
        checkpoints = follow_checkpoints(
            lambda: [(saved.step, saved.path) for saved in folder.saved()], max_steps=self.config.max_steps
        )
        for step, metrics in evaluate_checkpoints(checkpoints, lambda step, path: self.evaluate(path)):
            write_summary(metrics, step, Path(self.config.model_dir) / "eval")
            yield metrics

    def predict(self, checkpoint: str | Path | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the keys and predictions of ``data``, batch by batch; the data needs no labels.

        Raises:
            ConfigError: The data has no column of a key, or is a stream whose columns are unknown.
        """
        names = self.config.keys or tuple(self._remembered.get("keys", ()))
        if not names:
            batches = self._batches(self.config.data, is_training=False, has_labels=False)
            return self.estimator.predict(batches, checkpoint=checkpoint)
        if self.config.data is None or self.config.data == "-":
            raise ConfigError(f"keys is {names} and data is {self.config.data!r}, expected files; give --data FILES")
        config = replace(self.config, exclude=tuple(name for name in self.config.exclude if name not in names))
        rows = open_rows(config, config.data, seed=config.seed)
        keys = KeyColumns(names, infer_schema(rows))
        batches = open_batches(config, rows, keys.extend(self._schema(has_labels=False)), is_training=False)
        return self.estimator.predict(batches, checkpoint=checkpoint, keys=keys.read)

    def write_features(self) -> FeatureFiles:
        """Write the training data, as the model would see it, to files in the model folder.

        Raises:
            ConfigError: There is no model folder.
        """
        if not self.config.model_dir:
            raise ConfigError("model_dir is empty, expected a folder for only_feature_engineering; give --model-dir")
        batches = self._batches(self.config.data, is_training=True)
        return write_features(batches, Path(self.config.model_dir), index=self.config.index)

    def _batches(self, patterns: str | None, *, is_training: bool, has_labels: bool = True) -> Dataset:
        files = self._files if is_training else None
        if patterns is None and not self.config.kafka_topics and (own := self._own_data(is_training)) is not None:
            if files is not None:
                raise ConfigError(
                    "enable_dynamic_sharding is True and data is None, expected files of --data: the task has its own "
                    "data"
                )
            return own
        shard = (self.config.index, self.config.num_workers) if is_training else (0, 1)
        rows = open_rows(self.config, patterns, seed=self.config.seed, shard=shard, files=files)
        return open_batches(self.config, rows, self._schema(has_labels=has_labels), is_training=is_training)

    def _own_data(self, is_training: bool) -> Dataset | None:
        """Return the data of the task or model: ``create_input_fn(mode)`` or ``input_fn(mode)``; None without one."""
        mode: Mode = "train" if is_training else "eval"
        if self._own_task is not None:
            made: Dataset = self._own_task.create_input_fn(mode)()
            return made
        input_fn: Any = getattr(type(self.estimator.model), "input_fn", None)
        return None if input_fn is None else input_fn(self.estimator.model, mode)

    # --- the model ----------------------------------------------------------------------------------------------------

    @property
    def _task(self) -> str:
        task: str = self.config.task or self._remembered["task"]
        return task

    @property
    def _labels(self) -> tuple[str, ...]:
        return self.config.label_features or tuple(self._remembered.get("label_features", ()))

    @property
    def _options(self) -> dict[str, Any]:
        return {**self._remembered.get("task_options", {}), **self.config.task_options}

    def _make_model(self) -> Model:
        cls = _find_class(self._task)
        if cls is None:
            self._inferred = self._infer_schema()
            return models.from_schema(self._task, self._inferred, self._options, labels=self._labels)
        made: object = _instantiate(cls, self._task, self._options)
        if isinstance(made, Task):
            self._own_task = made
            model_fn: object = made.create_model_fn()
            made = model_fn() if callable(model_fn) and not isinstance(model_fn, Model) else model_fn
        if not isinstance(made, Model):
            raise ConfigError(f"task {self._task!r} is a {type(made).__name__}; give a subclass of monolith.Model")
        return made

    def _infer_schema(self) -> Schema:
        """Return the schema of the first training, or infer one from the data."""
        seen = _read_job(self.config, default={}).get("schema")
        if seen is not None:
            return Schema.from_json(json.dumps(seen))
        if self.config.data == "-" or (self.config.data is None and self.config.kafka_topics):
            raise ConfigError(
                f"task {self._task!r} infers its features from the first rows, and a stream gives rows only once; "
                "train on a file first, into this --model-dir, or write the model: --task FILE.py:Class"
            )
        return infer_schema(open_rows(self.config, self.config.data, seed=self.config.seed))

    def _remember(self) -> None:
        if not self.estimator.config.model_dir:
            return
        folder = Path(self.config.model_dir)
        folder.mkdir(parents=True, exist_ok=True)
        body = {
            "task": _resolve_task(self._task),
            "task_options": self._options,
            "label_features": list(self._labels),
            "keys": list(self.config.keys),
            "schema": None if self._inferred is None else json.loads(self._inferred.to_json()),
        }
        replace_file(folder / _JOB_FILE, json.dumps(body, indent=1).encode() + b"\n")


class _JobFileHook(Hook):
    """Writes the job file after the first step: a job that is refused before it changes nothing."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write
        self._has_written = False

    @override
    def after_step(self, run: Run, result: StepResult) -> None:
        self._write_once()

    @override
    def before_save(self, run: Run) -> None:
        self._write_once()

    def _write_once(self) -> None:
        if not self._has_written:
            self._write()
            self._has_written = True


def _check_task(config: JobConfig) -> None:
    """Refuse another task than that of the model folder."""
    task = _read_job(config, default={}).get("task")
    if task is None or config.task is None:
        return
    known, wanted = (
        re.split(r"[.:/]", each)[-1].lower().replace("_", "").replace("-", "") for each in (task, config.task)
    )
    if known != wanted:
        raise ConfigError(
            f"task is {config.task!r}, expected {task!r} as in '{Path(config.model_dir) / _JOB_FILE}'; give another "
            "--model-dir for another task"
        )


def _short_name(task: str) -> str:
    """Return the class name of a task in lower case: its file may have moved."""
    return re.split(r"[.:/]", task)[-1].lower().replace("_", "").replace("-", "")


def _read_job(config: JobConfig, default: dict[str, Any] | None = None) -> dict[str, Any]:
    path = Path(config.model_dir) / _JOB_FILE
    if not config.model_dir or not path.is_file():
        if default is not None:
            return default
        raise ConfigError(f"task is None and {path} does not exist; give --task, or a --model-dir that was trained")
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{path} is corrupt ({error}); give --task and --task-options instead") from error
    return body


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


def _instantiate(cls: type[Any], task: str, options: Mapping[str, Any]) -> Any:
    if issubclass(cls, SingleTaskModelParams):
        return cls().task().set(**options).instantiate()
    signature = inspect.signature(cls)
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ConfigError(
            f"task_options is {dict(options)}, expected {signature} for task {task!r}: {error}"
        ) from error
    return cls(**options)
