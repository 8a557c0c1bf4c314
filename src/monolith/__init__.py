"""Monolith: collisionless embedding tables, and the training and serving of recommendation models on live events.

``import monolith as mt`` is cheap: every name below is imported when it is first used, so neither torch nor gRPC is
loaded by a program that does not need them. This file holds only the table of names; it knows what none of them do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith import data, embedding, features, layers, models, serving
    from monolith.core import fid
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
        Sgd,
        SliceSpec,
        SlidingHashFilter,
        StochasticRoundingFp16,
        Table,
        TableSpec,
        Zeros,
    )
    from monolith.features import Model, Output
    from monolith.training import Estimator, RunConfig

__version__ = "0.1.0"

__all__ = [
    "__version__",
    # modules
    "data",
    "embedding",
    "features",
    "fid",
    "layers",
    "models",
    "serving",
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

# Where a module lives, by the name it has here, and where classes come from that are not of the embedding package.
_MODULES = {
    "data": "monolith.data",
    "embedding": "monolith.embedding",
    "features": "monolith.features",
    "fid": "monolith.core.fid",
    "layers": "monolith.layers",
    "models": "monolith.models",
    "serving": "monolith.serving",
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
    """List the public names, imported yet or not."""
    return list(__all__)
