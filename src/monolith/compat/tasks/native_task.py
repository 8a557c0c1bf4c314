"""``NativeTask``: a task with the parameters of the original."""

from __future__ import annotations

import copy
from typing import Any

from typing_extensions import override

from monolith.compat.tasks.base_task import BaseTask
from monolith.core.params import InstantiableParams, Params

__all__ = ["NativeTask"]


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
