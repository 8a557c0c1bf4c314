"""Tasks: jobs described by ``Params``, as in the original. ``Estimator`` does not need them."""

from __future__ import annotations

from monolith.compat.tasks.base_embedding_task import UID_BUCKET, BaseEmbeddingTask
from monolith.compat.tasks.base_task import BaseTask, Mode
from monolith.compat.tasks.host_call import BaseHostCall, MetricWindow, accumulate, sampled_rows
from monolith.compat.tasks.input_files import files_between, finished_files
from monolith.compat.tasks.merged_vectors import merge_widths, split_merged
from monolith.compat.tasks.native_task import MonolithBaseModel, NativeTask
from monolith.compat.tasks.stop_batches import STOPPING, StopBatches, is_stopping
from monolith.compat.tasks.unknown_ids import noise_for_unknown
from monolith.compat.tasks.visible_gpus import visible_gpu

__all__ = [
    # tasks
    "BaseEmbeddingTask",
    "BaseTask",
    "Mode",
    "MonolithBaseModel",
    "NativeTask",
    # their input
    "STOPPING",
    "StopBatches",
    "UID_BUCKET",
    "files_between",
    "finished_files",
    "is_stopping",
    # embeddings
    "merge_widths",
    "noise_for_unknown",
    "split_merged",
    # measures
    "BaseHostCall",
    "MetricWindow",
    "accumulate",
    "sampled_rows",
    # machines
    "visible_gpu",
]
