"""``Estimator``: a model, its tables and its optimizers in one process, trained, evaluated and asked.

It restores the newest checkpoint of its folder before the first use, and goes on from there.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from monolith import embedding
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import CheckpointMissing, ConfigError, DataError
from monolith.data import Batch, Dataset
from monolith.embedding import EmbeddingStore, MultiTable
from monolith.features import Model
from monolith.layers.clipping import ClippingConfig, GradClipType
from monolith.training.checkpoints import Checkpointer, Restored, TrainingState
from monolith.training.config import RunConfig
from monolith.training.default_hooks import default_hooks
from monolith.training.dense_optimizers import make_optimizers
from monolith.training.heads import Heads
from monolith.training.hooks import Hook, StepResult
from monolith.training.loop import TrainingRun
from monolith.training.metrics import RunMetrics
from monolith.training.step import Stepper

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
    """Trains, evaluates and asks one model.

    Args:
        model: The model; or its class, or any function that makes it, which is then called under ``config.seed``.
        config: Settings; without a ``model_dir`` nothing is saved.
        hooks: What runs beside every training run, after the hooks that the settings ask for.
        store: Where the rows are; None = tables in this process.
        clock: The clock of schedules and rates.
    """

    def __init__(
        self,
        model: Model | Callable[[], Model],
        config: RunConfig | None = None,
        *,
        hooks: Sequence[Hook] = (),
        store: EmbeddingStore | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config or RunConfig()
        self._clock = clock or SystemClock()
        self._hooks = tuple(hooks)
        _prepare(self.config)
        self.model = model if isinstance(model, Model) else model()
        if not isinstance(self.model, Model):
            raise ConfigError(f"the model is {type(self.model).__name__}; give a monolith.Model, or what makes one")
        specs = self.model.declaration.table_specs(seed=self.config.seed, deterministic=self.config.deterministic)
        self.store = store if store is not None else MultiTable(specs)
        gradients = self.config
        self._stepper = Stepper(
            self.model.to(self.config.accelerator),
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
            weight_decay=gradients.dense_weight_decay,
            device=self.config.accelerator,
        )
        self._checkpointer: Checkpointer | None = None
        if self.config.model_dir:
            self._checkpointer = Checkpointer(Path(self.config.model_dir), self.config, clock=self._clock)
        self._metrics = self._new_metrics()
        self._step = 0
        self._place: Any = None
        self._data_ended = False
        self._is_restored = False
        self._has_trained = False

    # --- what it holds ------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Steps finished, over all runs of the model folder."""
        self._restore_once()
        return self._step

    @property
    def model_dir(self) -> Path:
        """The run's folder."""
        return Path(self.config.model_dir)

    def latest_checkpoint(self) -> Path | None:
        """Return the folder of the newest checkpoint, or None."""
        return None if self._checkpointer is None else self._checkpointer.latest()

    def get_variable_names(self) -> list[str]:
        """Return the names of the dense weights."""
        return list(self.model.state_dict())

    def get_variable_value(self, name: str) -> np.ndarray[Any, Any]:
        """Return one dense weight.

        Raises:
            ConfigError: There is none of that name.
        """
        self._restore_once()
        weights = self.model.state_dict()
        if name not in weights:
            raise ConfigError(f"the model has no weight {name!r}; it has {', '.join(weights)}")
        value: np.ndarray[Any, Any] = weights[name].cpu().numpy()
        return value

    def close(self) -> None:
        """Wait for checkpoints under way."""
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
        """Train on the data, from the newest checkpoint on, and write one at the end.

        Args:
            data: A dataset with ``batch()``, or batches. A dataset without a schema gets the model's.
            steps: Steps to take in this call.
            max_steps: Step to stop at, over all calls and restarts; None with ``steps`` None = the end of the data.
            hooks: Further hooks of this call.
            resume_data: Go on where the last run stopped in the data, unless it had reached the end; False starts at
                its beginning.

        Returns:
            The metrics of this call; every example was scored before it was learnt from.

        Raises:
            DataError: There was nothing to train on.
            TrainingDiverged: A loss is not finite.
        """
        until = self._until(steps, max_steps)
        self._restore_once()
        if until is not None and self._step >= until:
            logger.info("step %d is reached already; nothing to train (max_steps %d)", self._step, until)
            return {}
        first = self._step
        dataset = self._prepared(data)
        if resume_data:
            self._resume(dataset)
        chosen = [*default_hooks(self.config, self._metrics, until), *self._hooks, *hooks]
        run = TrainingRun(
            config=self.config,
            stepper=self._stepper,
            dataset=dataset,
            checkpointer=self._checkpointer,
            metrics=self._metrics if self.config.progressive_validation is not False else None,
            hooks=chosen,
            clock=self._clock,
            step=self._step,
            extra=self._extra,
        )
        self.model.train()
        if self._has_trained:  # what a checkpoint brought along goes on being counted; a second call counts anew
            self._metrics.reset()
        self._has_trained = True
        try:
            with _deterministic(self.config.deterministic):
                run.run(until)
        finally:
            self._step, self._place, self._data_ended = run.step, run.place(), run.data_ended
        if self._step == first and run.data_ended:
            raise DataError("the data gave no batch to train on; check the patterns and filters, or resume_data=False")
        return self._metrics.results()

    def _until(self, steps: int | None, max_steps: int | None) -> int | None:
        if steps is not None and max_steps is not None:
            raise ConfigError(f"steps is {steps} and max_steps is {max_steps}; give one of them")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} is {value!r}; give a whole number from 1 up, or None")
        return max_steps if steps is None else self.step + steps

    def _prepared(self, data: Any) -> Any:
        """Give a dataset the model's schema, and read it ahead."""
        if not isinstance(data, Dataset):
            return data
        if not data.is_batched:
            raise ConfigError("the dataset gives single rows; add .batch(n) to it")
        if data.schema is None:
            data = data.with_schema(self.model.declaration.schema())
        return data.prefetch(self.config.batch_prefetch_capacity)

    def _resume(self, dataset: Any) -> None:
        if self._place is None or self._data_ended or not isinstance(dataset, Dataset):
            return
        try:
            dataset.restore(self._place)
        except DataError as error:
            raise DataError(f"{error}. To start at the beginning of the data: train(..., resume_data=False)") from error

    def train_and_evaluate(
        self,
        train: Dataset | Sequence[Batch],
        evaluate: Dataset | Sequence[Batch],
        *,
        max_steps: int | None = None,
        steps_per_eval: int = 10000,
        eval_steps: int | None = None,
    ) -> list[dict[str, float]]:
        """Train, and evaluate every ``steps_per_eval`` steps and at the end; return the evaluations in order."""
        found: list[dict[str, float]] = []
        while True:
            before = self.step
            until = before + steps_per_eval if max_steps is None else min(before + steps_per_eval, max_steps)
            if until > before:
                self.train(train, max_steps=until)
                found.append(self.evaluate(evaluate, eval_steps))
            if self._data_ended or self.step < until or (max_steps is not None and self.step >= max_steps):
                return found

    def _new_metrics(self) -> RunMetrics:
        window = self.config.log_step_count_steps or 100
        return RunMetrics(window_steps=window, auc_exact_size=self.config.auc_exact_size)

    # --- asking -------------------------------------------------------------------------------------------------------

    def evaluate(
        self, data: Dataset | Sequence[Batch], steps: int | None = None, *, checkpoint: str | Path | None = None
    ) -> dict[str, float]:
        """Score the data without learning from it.

        Args:
            data: A dataset with ``batch()``, or batches.
            steps: Batches to score; None = all.
            checkpoint: Folder of a checkpoint to load first; None = what is in memory, or else the newest.

        Returns:
            ``<head>/auc`` and the other metrics, ``loss`` per example, ``samples`` and ``global_step``.
        """
        metrics = self._new_metrics()
        loss, samples = 0.0, 0
        for number, (batch, heads) in enumerate(self._score(data, checkpoint)):
            if heads.loss is not None:
                loss += heads.loss.item()
            samples += batch.size
            metrics.update(
                StepResult(
                    step=self._step,
                    loss=0.0,
                    heads=heads.results(),
                    batch=batch,
                    samples=batch.size,
                    ids=0,
                    seconds=0.0,
                )
            )
            if steps is not None and number + 1 >= steps:
                break
        if not samples:
            raise DataError("the data gave no batch to evaluate; check the patterns and filters")
        return {
            **metrics.results(),
            "loss": loss / samples,
            "samples": float(samples),
            "global_step": float(self._step),
        }

    def predict(
        self, data: Dataset | Sequence[Batch], *, checkpoint: str | Path | None = None
    ) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
        """Iterate over the predictions of each batch: head to (B,) array, and each head's extra outputs by name."""
        for _, heads in self._score(data, checkpoint):
            found = {name: result.predictions for name, result in heads.results().items()}
            for output in heads.outputs.values():
                found |= {name: value.detach().cpu().numpy() for name, value in output.extra.items()}
            yield found

    def _score(self, data: Any, checkpoint: str | Path | None) -> Iterator[tuple[Batch, Heads]]:
        if checkpoint is not None:
            self._load(Path(checkpoint))
        else:
            self._restore_once()
        was_training = self.model.training
        self.model.eval()
        try:
            for batch in self._prepared(data):
                yield batch, self._stepper.predict(self._stepper.embedder.pull(batch))
        finally:
            self.model.train(was_training)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _extra(self) -> dict[str, Any]:
        try:
            return {"declaration": self.model.declaration.to_json()}
        except ConfigError:  # a learning rate that is a bare function has no text form
            return {"declaration": None}

    def _state(self) -> TrainingState:
        return TrainingState(
            step=self._step,
            model=self.model,
            optimizers=self._stepper.optimizers,
            store=self.store,
            data=None,
            metrics={},
            extra={},
        )

    def _restore_once(self) -> None:
        if self._is_restored:
            return
        self._is_restored = True
        if self._checkpointer is not None:
            self._take(self._checkpointer.restore(self._state()))

    def _load(self, checkpoint: Path) -> None:
        if self._checkpointer is None:
            raise CheckpointMissing(
                "this estimator has no model_dir; give RunConfig(model_dir=...) to load checkpoints"
            )
        self._is_restored = True
        self._take(self._checkpointer.restore_from(self._state(), checkpoint))

    def _take(self, restored: Restored | None) -> None:
        if restored is None:
            return
        self._step, self._place = restored.step, restored.data
        self._data_ended = bool(restored.extra.get("data_ended"))
        self._metrics.restore(restored.metrics)
        logger.info("restored %s (step %d)", restored.path, restored.step)


def _prepare(config: RunConfig) -> None:
    """Seed every generator and set the threads, before the model is made."""
    random.seed(config.seed)
    np.random.seed(config.seed % (1 << 32))
    torch.manual_seed(config.seed)
    if config.accelerator == "cuda" and not torch.cuda.is_available():
        raise ConfigError("accelerator is 'cuda', but torch sees no CUDA device; use 'cpu', or install a CUDA torch")
    if config.threads is not None:
        torch.set_num_threads(config.threads)
        embedding.set_threads(config.threads)


@contextmanager
def _deterministic(is_wanted: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(is_wanted or before)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
