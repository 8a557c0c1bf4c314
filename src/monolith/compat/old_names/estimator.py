"""Old name of the estimator of tasks and of the settings of a run."""

import warnings

from monolith.compat.tasks import EstimatorSpec, TaskEstimator
from monolith.training import RunConfig
from monolith.training.config import RunnerConfig

__all__ = ["Estimator", "EstimatorSpec", "RunConfig", "RunnerConfig"]

Estimator = TaskEstimator

warnings.warn(
    "monolith.estimator is deprecated; use monolith.Estimator, or monolith.compat.tasks.TaskEstimator",
    DeprecationWarning,
    stacklevel=2,
)
