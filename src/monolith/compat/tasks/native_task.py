"""``NativeTask`` and ``MonolithBaseModel``: tasks with the parameters and the three methods of the original."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Self

from typing_extensions import override

from monolith.compat.tasks.base_task import BaseTask, Mode
from monolith.core.params import InstantiableParams, Params

__all__ = ["MonolithBaseModel", "NativeTask"]


class NativeTask(BaseTask):
    """A task with parameters for metrics, training and serving."""

    @classmethod
    @override
    def params(cls) -> InstantiableParams:
        """Add the groups ``metrics`` and ``serving``, and the parameters of a cluster to ``train``."""
        p = super().params()
        p.define("mode", "train", "Purpose of the run: train, eval or predict.")
        p.define("metrics", Params(), "Metrics of the run.")
        for name, value, meaning in _METRICS:
            p.metrics.define(name, copy.copy(value), meaning)
        p.train.define("max_pending_seconds_for_barrier", 30, "Longest wait for all workers to pause.")
        p.train.define("slow_start_steps", 0, "Worker i starts at step int(n ln(1 + i)).")
        p.train.define("sample_bias", 0.0, "Bias of the sampling of negatives.")
        p.define("serving", Params(), "How the model is exported.")
        for name, value, meaning in _SERVING:
            p.serving.define(name, value, meaning)
        return p


class MonolithBaseModel(NativeTask):
    """A task with its parameters as attributes, defined by three methods.

    ``input_fn(mode)`` returns the data, ``model_fn(features, mode)`` the outputs for a batch, and
    ``serving_input_receiver_fn()`` the inputs of a served model.

    Attributes that do not exist are read from the parameters, and attributes named like a parameter are set there.
    Write ``p.train`` and ``p.eval``, because ``train`` and ``eval`` are methods of torch.
    """

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
        p.define("default_occurrence_threshold", 0, "How often an id is seen before it gets a row.")
        p.define("feature_list", None, "Path of a feature list.")
        return p

    def input_fn(self, mode: Mode) -> Any:
        """Return the data for a mode."""
        raise NotImplementedError("Abstract method.")

    def model_fn(self, features: Any, mode: Mode) -> Any:
        """Return the outputs for a batch: an ``Output``, a list of them, or (label, loss, prediction)."""
        raise NotImplementedError("Abstract method.")

    def serving_input_receiver_fn(self) -> Any:
        """Return the inputs of a served model."""
        raise NotImplementedError("Abstract method.")

    @override
    def create_input_fn(self, mode: Mode) -> Callable[[], Any]:
        """Return :meth:`input_fn` for a mode."""
        return lambda: self.input_fn(mode)

    @override
    def create_model_fn(self) -> Callable[..., Any]:
        """Return :meth:`model_fn`, as a function of features, mode and, unused, a configuration."""
        return lambda features, mode, config=None: self.model_fn(features, mode)

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


_METRICS: tuple[tuple[str, Any, str], ...] = (
    ("enable_deep_insight", False, "Whether samples of predictions are sent out."),
    ("deep_insight_target", "ctr_head", "Which heads they are of."),
    ("deep_insight_name", None, "Their names."),
    ("deep_insight_sample_ratio", 0.01, "Share of the users that are sampled."),
    ("extra_fields_keys", [], "Further fields of a sample."),
    ("enable_throughput_hook", True, "Whether steps per second are measured."),
    ("enable_kafka_metrics", False, "Whether samples go to Kafka."),
    ("enable_tf2_profiler_hook", True, "Whether some steps are profiled."),
    ("enable_file_metrics", False, "Whether samples go to files."),
    ("file_base_name", None, "Folder of those files; None is the model's."),
    ("file_ext", "txt", "How their names end."),
    ("parse_fn", None, "Turns a sample into fields."),
    ("key_fn", None, "Chooses the file of a sample."),
    ("layout_fn", None, "Turns the fields into a line."),
    ("dump_filename", "", "Name of a file for all samples."),
    ("use_data_service", False, "Whether batches come from another process."),
)
_SERVING: tuple[tuple[str, Any, str], ...] = (
    ("export_with_gpu_allowed", False, "Whether the exported model may use a GPU."),
    ("export_with_cleared_entry_devices", False, "Whether the entry's devices are left open."),
    ("export_when_saving", False, "Whether every checkpoint is exported."),
    ("export_dir_base", "exported_models", "Folder of exports."),
    ("export_mode", "distributed", "none, standalone or distributed."),
    ("shared_embedding", True, "Whether exports share the tables of the checkpoint."),
    ("with_remote_gpu", False, "Whether the dense part is served elsewhere."),
)
