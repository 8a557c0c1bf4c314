"""Old name of ``monolith.compat.tasks``: models of three methods."""

import warnings

from monolith.compat.tasks import BaseEmbeddingTask, BaseTask, EstimatorSpec, MonolithBaseModel, NativeTask

__all__ = ["BaseEmbeddingTask", "BaseTask", "EstimatorSpec", "MonolithBaseModel", "MonolithModel", "NativeTask"]

MonolithModel = MonolithBaseModel

warnings.warn("monolith.base_model is deprecated; import monolith.compat.tasks", DeprecationWarning, stacklevel=2)
