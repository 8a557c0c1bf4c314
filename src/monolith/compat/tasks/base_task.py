"""``BaseTask``: a job as parameters plus two functions, one for the data and one for the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from monolith.compat.tasks.run_settings import run_settings
from monolith.core.params import InstantiableParams, Params
from monolith.layers.base_layer import BaseLayer
from monolith.training.hooks import Hook
from monolith.training.task import Mode

__all__ = ["BaseTask", "Mode"]


class BaseTask(BaseLayer):
    """One training job. A subclass defines its parameters, its input and its model."""

    @classmethod
    @override
    def params(cls) -> InstantiableParams:
        """Return the parameters of every task, in the groups ``input``, ``eval`` and ``train``."""
        p = super().params()
        p.define("accelerator", None, "Device: None, 'cpu' or 'cuda'.")
        p.define("input", Params(), "Amount of data.")
        p.input.define("eval_examples", None, "Examples of the evaluation data.")
        p.input.define("train_examples", None, "Examples of the training data.")
        p.define("eval", Params(), "How to evaluate.")
        p.eval.define("per_replica_batch_size", None, "Rows of a batch.")
        p.eval.define("steps_per_eval", 10000, "Training steps between two evaluations.")
        p.eval.define("steps", None, "Steps of an evaluation; None for all data.")
        p.define("train", Params(), "How to train.")
        p.train.define("steps", None, "Steps to train, from the current step.")
        p.train.define("max_steps", None, "Step to train to.")
        p.train.define("per_replica_batch_size", None, "Rows of a batch.")
        p.train.define("file_pattern", None, "Files to train on; goes before file_folder.")
        p.train.define("repeat", False, "Whether the files are read repeatedly.")
        p.train.define("label_key", "label", "Name of the label in the data.")
        p.train.define("save_checkpoints_steps", None, "Steps between checkpoints; None leaves it to the run.")
        p.train.define("save_checkpoints_secs", None, "Seconds between checkpoints; None leaves it to the run.")
        p.train.define("dense_only_save_checkpoints_secs", None, "Seconds between checkpoints without tables.")
        p.train.define("dense_only_save_checkpoints_steps", None, "Steps between checkpoints without tables.")
        return p

    def create_input_fn(self, mode: Mode) -> Callable[..., Any]:
        """Return a function that returns the data for a mode."""
        raise NotImplementedError("Abstract method.")

    def create_model_fn(self) -> Callable[..., Any]:
        """Return a function that returns the model."""
        raise NotImplementedError("Abstract method.")

    @classmethod
    def run_settings(cls, params: InstantiableParams) -> dict[str, tuple[Any, str]]:
        """Return the settings of a run that parameters of this class ask for; see ``run_settings``."""
        return run_settings(params)

    def use_batch_size(self, size: int) -> None:
        """Set the rows of a batch, for a run whose settings override the parameter."""
        self.p.train.per_replica_batch_size = size
        self.p.eval.per_replica_batch_size = size

    def training_hooks(self) -> list[Hook]:
        """Return the hooks that the task adds to its training."""
        return []
