"""``MonolithBaseModel``: a task that three methods define, as in the original."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Self

from torch import Tensor
from typing_extensions import override

from monolith.compat.tasks.base_task import Mode
from monolith.compat.tasks.native_task import NativeTask
from monolith.compat.tasks.task_model import TaskModel, schema_of_data
from monolith.core.errors import ConfigError
from monolith.core.params import InstantiableParams, Params
from monolith.data import Schema
from monolith.training.hooks import Hook

__all__ = ["MonolithBaseModel"]


class MonolithBaseModel(NativeTask):
    """A task with its parameters as attributes, defined by three methods.

    ``input_fn(mode)`` returns the data, ``model_fn(features, mode)`` the outputs for a batch, and
    ``serving_input_receiver_fn()`` the inputs of a served model. ``create_model_fn`` returns a function that makes the
    ``Model`` of the task, which an ``Estimator`` trains, evaluates and exports.

    Layers are created in ``__init__``. Columns and slices are declared in ``__init__`` or in ``model_fn``:
    ``lookup_embedding_slice`` returns tensors inside of ``model_fn``.

    Attributes that do not exist are read from the parameters, and attributes named like a parameter are set there.
    Write ``p.train`` and ``p.eval``, because ``train`` and ``eval`` are methods of torch.
    """

    def __init__(self, params: Params | None = None) -> None:
        super().__init__(type(self).params() if params is None else params)
        self.__dict__["_adapter"] = None
        self.__dict__["_extra_outputs"] = {}
        self.__dict__["_hooks_of_training"] = []

    @classmethod
    @override
    def params(cls) -> InstantiableParams:
        """Add the parameters of outputs and gradients."""
        p = super().params()
        p.define("output_path", None, "Where predictions are written.")
        p.define("output_fields", None, "Fields of a prediction to write.")
        p.define("delimiter", "\t", "Separator of those fields.")
        p.define("file_name", "", "Name of the file with predictions.")
        p.define("enable_grads_and_vars_summary", False, "Whether gradients and weights go into summaries.")
        p.define("dense_weight_decay", 0.0, "Decay of dense weights.")
        p.define("clip_norm", 1000.0, "Largest global norm of the gradients.")
        p.define("sparse_norm_warmup_steps", None, "Steps before sparse gradients count in the global norm.")
        p.define("default_occurrence_threshold", 0, "Sightings of an id before it gets a row; of columns without one.")
        p.define("feature_list", None, "Path of a feature list.")
        return p

    # --- defined by a subclass ----------------------------------------------------------------------------------------

    def input_fn(self, mode: Mode) -> Any:
        """Return the data for a mode: a dataset in batches, or a list of batches.

        A method that takes ``shard``, the pair (index, count), returns the share of one of several workers.
        """
        raise NotImplementedError("Abstract method.")

    def model_fn(self, features: Any, mode: Mode) -> Any:
        """Return the outputs for a batch: an ``EstimatorSpec``, (label, loss, prediction), an ``Output`` or a list.

        Args:
            features: ``Features``: inputs by name.
            mode: ``train``, ``eval`` for scoring, or ``predict`` in an exported program.
        """
        raise NotImplementedError("Abstract method.")

    def serving_input_receiver_fn(self) -> Any:
        """Return the ``Schema`` of the served inputs; without this method, that of ``input_fn("train")``."""
        raise NotImplementedError("Abstract method.")

    # --- for model_fn -------------------------------------------------------------------------------------------------

    def create_embedding_feature_column(self, feature_name: Any, *args: Any, **options: Any) -> None:
        """Declare a feature; the arguments are those of ``OriginalNames.create_embedding_feature_column``."""
        self._model().create_embedding_feature_column(feature_name, *args, **options)

    def lookup_embedding_slice(self, features: Any, slice_name: str, *args: Any, **options: Any) -> Any:
        """Declare a slice; return its tensors in ``model_fn``, or a callable for ``model_fn`` elsewhere.

        The arguments are those of ``OriginalNames.lookup_embedding_slice``.
        """
        return self._model().lookup_embedding_slice(features, slice_name, *args, **options)

    def add_loss(self, losses: Tensor | list[Tensor]) -> None:
        """Add losses to the loss of this call of ``model_fn``."""
        for loss in losses if isinstance(losses, list) else [losses]:
            self.add_layer_loss("loss", loss.sum())

    def add_extra_output(self, name: str, outputs: Tensor | Mapping[str, Tensor]) -> None:
        """Add a further output of ``predict`` and of the exported model; a mapping adds ``<name>/<key>`` for each key.

        Raises:
            ConfigError: The name is taken.
        """
        named = {name: outputs} if isinstance(outputs, Tensor) else {f"{name}/{key}": outputs[key] for key in outputs}
        for key, value in named.items():
            if key in self._extra_outputs:
                raise ConfigError(f"extra output {key!r} is added twice, expected unique names; rename one")
            self._extra_outputs[key] = value

    def take_extra_outputs(self) -> dict[str, Tensor]:
        """Return the extra outputs of the last call of ``model_fn``, and forget them."""
        taken = dict(self._extra_outputs)
        self._extra_outputs.clear()
        return taken

    def add_training_hook(self, hook: Hook) -> None:
        """Add a hook of the training."""
        self._hooks_of_training.append(hook)

    @override
    def training_hooks(self) -> list[Hook]:
        return [*super().training_hooks(), *self._hooks_of_training]

    # --- the interface of a task --------------------------------------------------------------------------------------

    @override
    def create_input_fn(self, mode: Mode) -> Callable[..., Any]:
        """Return a function that returns :meth:`input_fn` of a mode; its options are those of the method."""
        return functools.partial(self.input_fn, mode)

    @override
    def create_model_fn(self) -> Callable[[], TaskModel]:
        """Return a function that returns the ``Model`` of this task, complete with all declarations."""

        def make() -> TaskModel:
            model = self._model()
            if not model.declaration.is_frozen:
                model.build(self._input_schema())
            return model

        return make

    @override
    def fprop(self, features: Any, mode: Mode) -> Any:
        """Call :meth:`model_fn`."""
        self._extra_outputs.clear()
        return self.model_fn(features, mode)

    def instantiate(self) -> Self:
        """Return this task, so that it can replace parameters."""
        return self

    @property
    def batch_size(self) -> int | None:
        """Rows of a batch: that of evaluation in the mode ``eval``, that of training otherwise. Setting sets both."""
        group: Params = self.p.eval if self.p.mode == "eval" else self.p.train
        size: int | None = group.per_replica_batch_size
        return size

    @batch_size.setter
    def batch_size(self, size: int | None) -> None:
        self.p.train.per_replica_batch_size = size
        self.p.eval.per_replica_batch_size = size

    def _model(self) -> TaskModel:
        if self._adapter is None:
            # The class of a model names it in exports, so the adapter has the name of the task's class.
            made: TaskModel = type(type(self).__name__, (TaskModel,), {"__module__": type(self).__module__})(self)
            self.__dict__["_adapter"] = made  # not a submodule: the task is one of the adapter
        adapter: TaskModel = self._adapter
        return adapter

    def _input_schema(self) -> Schema:
        if type(self).serving_input_receiver_fn is MonolithBaseModel.serving_input_receiver_fn:
            return schema_of_data(self.input_fn("train"))
        schema = self.serving_input_receiver_fn()
        if not isinstance(schema, Schema):
            raise ConfigError(
                f"serving_input_receiver_fn of {type(self).__name__} returned {type(schema).__name__}, expected a "
                "monolith.data.Schema with the inputs of the served model"
            )
        return schema

    def __getattr__(self, name: str) -> Any:
        params = self.__dict__.get("p")
        if params is not None and name in params:
            return params[name]
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        params = self.__dict__.get("p")
        if params is not None and name in params:
            params[name] = value
        else:
            super().__setattr__(name, value)
