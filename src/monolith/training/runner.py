"""``Job``: a model, its data and its estimator, from a configuration; the work behind ``monolith train``.

The folder of a trained model contains its job, so evaluating and predicting need only the folder and data.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from monolith import models
from monolith.artifacts import CheckpointFolder
from monolith.core.durable_files import replace_file
from monolith.core.errors import ConfigError
from monolith.core.registry import load_class
from monolith.data import Dataset, Schema, infer_schema
from monolith.data.sources.urls import is_stream_url, sample_url
from monolith.embedding import EmbeddingStore, TableSpec
from monolith.features import Model
from monolith.models.catalog import model_class
from monolith.training.checkpoints.choice import CHECKPOINTS
from monolith.training.config import RunConfig
from monolith.training.config.job import DataConfig, JobConfig
from monolith.training.estimator import Estimator
from monolith.training.eval_loop import evaluate_checkpoints, follow_checkpoints
from monolith.training.feature_engineering import FeatureFiles, write_features
from monolith.training.groups import Group
from monolith.training.hooks import Hook
from monolith.training.hooks.summaries import write_summary
from monolith.training.job_data import WorkListShare, open_batches, open_rows
from monolith.training.task import Mode, Task, make_task, open_own_data, settings_of_task

__all__ = ["Job", "task_settings"]

logger = logging.getLogger(__name__)

_JOB_FILE = "job.json"


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
        self._remembered = _read_job(config.run.model_dir) if config.model.task is None else {}
        self._inferred: Schema | None = None
        self._own_task: Task | None = None
        self.estimator = Estimator(
            self._make_model, run_config or config.run, hooks=hooks, store=store, extra=extra, group=group
        )

    @property
    def schema(self) -> Schema:
        """The schema of the data."""
        options = {"label_features": self._labels} if self._labels else {}
        return self.estimator.model.declaration.schema(**options)

    # --- work ---------------------------------------------------------------------------------------------------------

    def train(self) -> dict[str, float]:
        """Train, and evaluate when there is data for it; return the last metrics."""
        self._remember()
        train = self._batches(self.config.input.data, is_training=True)
        evaluate = self._eval_batches()
        if evaluate is None:
            return self._train(train)
        if self.config.model.steps_per_eval is None:
            self._train(train)
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
        checkpoints = follow_checkpoints(
            lambda: [(saved.step, saved.path) for saved in folder.saved()], max_steps=self.config.model.max_steps
        )
        for step, metrics in evaluate_checkpoints(checkpoints, lambda step, path: self.evaluate(path)):
            write_summary(metrics, step, Path(self.config.run.model_dir) / "eval")
            yield metrics

    def predict(self, checkpoint: str | Path | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the predictions of ``data``, batch by batch."""
        return self.estimator.predict(self._batches(self.config.input.data, is_training=False), checkpoint=checkpoint)

    def write_features(self) -> FeatureFiles:
        """Write the training data, as the model would see it, to files in the model folder.

        Raises:
            ConfigError: There is no model folder.
        """
        if not self.config.run.model_dir:
            raise ConfigError("model_dir is empty, expected a folder for only_feature_engineering; give --model-dir")
        batches = self._batches(self.config.input.data, is_training=True)
        return write_features(batches, Path(self.config.run.model_dir), index=self.config.run.runtime.index)

    def _batches(self, patterns: str | None, *, is_training: bool) -> Dataset:
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
        rows = open_rows(self.config.input, patterns, seed=self.config.run.runtime.seed, shard=shard, files=files)
        return open_batches(self.config.input, rows, self.schema, is_training=is_training)

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
        return self.config.input.label_features or tuple(self._remembered.get("label_features", ()))

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
        seen = _read_job(self.config.run.model_dir, default={}).get("schema")
        if seen is not None:
            return Schema.from_json(json.dumps(seen))
        patterns = self.config.input.data
        topics = self.config.input.kafka.kafka_topics
        is_kafka = bool(topics) if patterns is None else patterns.startswith("kafka://")
        if patterns == "-" or is_kafka:
            raise ConfigError(
                f"task {self._task!r} infers its features from the first rows, and a stream gives rows only once; "
                "train on a file first, into this --model-dir, or write the model: --task FILE.py:Class"
            )
        sample = sample_url(patterns) if patterns is not None and is_stream_url(patterns) else patterns
        return infer_schema(open_rows(self.config.input, sample, seed=self.config.run.runtime.seed))

    def _remember(self) -> None:
        if not self.estimator.config.model_dir:
            return
        folder = Path(self.config.run.model_dir)
        folder.mkdir(parents=True, exist_ok=True)
        body = {
            "task": _resolve_task(self._task),
            "task_options": self._options,
            "label_features": list(self._labels),
            "schema": None if self._inferred is None else json.loads(self._inferred.to_json()),
        }
        replace_file(folder / _JOB_FILE, json.dumps(body, indent=1).encode() + b"\n")


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
        remembered = _read_job(model_dir, default={})
        task, options = remembered.get("task"), {**remembered.get("task_options", {}), **options}
    cls = None if task is None else _find_class(task)
    return {} if cls is None else settings_of_task(cls, options)


def _read_job(model_dir: str | Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    path = Path(model_dir) / _JOB_FILE
    if not model_dir or not path.is_file():
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
