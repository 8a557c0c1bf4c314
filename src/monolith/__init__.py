"""Monolith: collisionless embedding tables, and the training and serving of recommendation models on live events.

``import monolith as mt`` is cheap: a name is imported on first use, so a program loads torch or gRPC only if it needs
them. Namespaces group the parts: ``mt.optim.Adagrad``, ``mt.init.RandomUniform``, ``mt.errors.ConfigError``. Parts of
tables have a root name too: ``mt.Adagrad`` is ``mt.optim.Adagrad``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith import data, embedding, export, features, layers, models, nn, ps, serving, sync, testing, training
    from monolith.core import errors, fid
    from monolith.data import Batch
    from monolith.embedding import (
        Adadelta,
        Adagrad,
        Adam,
        Amsgrad,
        BatchSoftmax,
        Constant,
        DelayCompensated,
        DynamicWdAdagrad,
        EmbeddingStore,
        FixedR8,
        Fp16,
        Fp32,
        Ftrl,
        GroupAdagrad,
        GroupFtrl,
        Momentum,
        MovingAverage,
        MultiTable,
        NoFilter,
        OneBit,
        Ones,
        ProbabilisticFilter,
        RandomUniform,
        RmsProp,
        RmsPropV2,
        RowPlan,
        Sgd,
        SliceSpec,
        SlidingHashFilter,
        StochasticRoundingFp16,
        Table,
        TableSpec,
        Zeros,
    )
    from monolith.embedding import admission as admit
    from monolith.embedding import compressors as compress
    from monolith.embedding import initializers as init
    from monolith.embedding import optimizers as optim
    from monolith.features import Model, Output
    from monolith.training import Estimator, RunConfig, hooks

__version__ = "0.1.0"

# Modules by the names of the original, such as monolith.base_model; each warns when it is imported.
__path__.append(f"{__file__.rpartition('/')[0]}/compat/old_names")

__all__ = [
    "__version__",
    # namespaces
    "admit",
    "compress",
    "data",
    "embedding",
    "errors",
    "export",
    "features",
    "fid",
    "hooks",
    "init",
    "layers",
    "models",
    "nn",
    "optim",
    "ps",
    "serving",
    "sync",
    "testing",
    "training",
    # data
    "Batch",
    # models and training
    "Estimator",
    "Model",
    "Output",
    "RunConfig",
    # tables
    "EmbeddingStore",
    "MultiTable",
    "SliceSpec",
    "RowPlan",
    "Table",
    "TableSpec",
    # optimizers
    "Adadelta",
    "Adagrad",
    "Adam",
    "Amsgrad",
    "BatchSoftmax",
    "DelayCompensated",
    "DynamicWdAdagrad",
    "Ftrl",
    "GroupAdagrad",
    "GroupFtrl",
    "Momentum",
    "MovingAverage",
    "RmsProp",
    "RmsPropV2",
    "Sgd",
    "StochasticRoundingFp16",
    # initializers
    "Constant",
    "Ones",
    "RandomUniform",
    "Zeros",
    # compressors
    "FixedR8",
    "Fp16",
    "Fp32",
    "OneBit",
    # admission
    "NoFilter",
    "ProbabilisticFilter",
    "SlidingHashFilter",
]

# The module behind each namespace, and the package behind each class that the embedding package does not define.
_MODULES = {
    "admit": "monolith.embedding.admission",
    "compress": "monolith.embedding.compressors",
    "data": "monolith.data",
    "embedding": "monolith.embedding",
    "errors": "monolith.core.errors",
    "export": "monolith.export",
    "features": "monolith.features",
    "fid": "monolith.core.fid",
    "hooks": "monolith.training.hooks",
    "init": "monolith.embedding.initializers",
    "layers": "monolith.layers",
    "models": "monolith.models",
    "nn": "monolith.nn",
    "optim": "monolith.embedding.optimizers",
    "ps": "monolith.ps",
    "serving": "monolith.serving",
    "sync": "monolith.sync",
    "testing": "monolith.testing",
    "training": "monolith.training",
}
_HOMES = {name: "monolith.embedding" for name in __all__ if name[0].isupper()} | {
    "Batch": "monolith.data",
    "Estimator": "monolith.training",
    "Model": "monolith.features",
    "Output": "monolith.features",
    "RunConfig": "monolith.training",
}


def __getattr__(name: str) -> Any:
    """Import ``name`` on first use."""
    if name in _MODULES:
        value: Any = importlib.import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'monolith' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, including those not imported yet."""
    return list(__all__)
