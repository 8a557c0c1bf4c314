"""Tasks: jobs described by ``Params``, as in the original. ``Estimator`` does not need them."""

from __future__ import annotations

from monolith.compat.tasks.base_embedding_task import BaseEmbeddingTask
from monolith.compat.tasks.base_task import BaseTask, Mode
from monolith.compat.tasks.estimator_spec import EstimatorSpec
from monolith.compat.tasks.host_call import HostCallHook, MetricWindow, accumulate
from monolith.compat.tasks.input_files import files_between, finished_files
from monolith.compat.tasks.monolith_base_model import MonolithBaseModel
from monolith.compat.tasks.native_task import NativeTask
from monolith.compat.tasks.task_estimator import TaskEstimator
from monolith.compat.tasks.task_model import Features, TaskModel
from monolith.compat.tasks.unknown_ids import noise_for_unknown
from monolith.compat.tasks.visible_gpus import visible_gpu

__all__ = [
    # tasks
    "BaseEmbeddingTask",
    "BaseTask",
    "EstimatorSpec",
    "Features",
    "Mode",
    "MonolithBaseModel",
    "NativeTask",
    "TaskEstimator",
    "TaskModel",
    # their input
    "files_between",
    "finished_files",
    # embeddings
    "noise_for_unknown",
    # measures
    "HostCallHook",
    "MetricWindow",
    "accumulate",
    # machines
    "visible_gpu",
]
