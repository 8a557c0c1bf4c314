"""Collisionless embedding tables: their specs, and how they are read, trained, saved and served.

The names of the original's checkpoint files come from ``monolith.compat``, which is imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from monolith.embedding.admission import AdmissionFilter, NoFilter, ProbabilisticFilter, SlidingHashFilter
from monolith.embedding.compressors import FixedR8, Fp16, Fp32, OneBit
from monolith.embedding.entry import Entry
from monolith.embedding.initializers import Constant, Ones, RandomUniform, Zeros
from monolith.embedding.learning_rates import LearningRateFunction, PolynomialDecay
from monolith.embedding.multi_table import FusedRows, MultiTable, RestoreReport
from monolith.embedding.optimizers import (
    Adadelta,
    Adagrad,
    Adam,
    Amsgrad,
    BatchSoftmax,
    DelayCompensated,
    DynamicWdAdagrad,
    Ftrl,
    GroupAdagrad,
    GroupFtrl,
    Momentum,
    MovingAverage,
    RmsProp,
    RmsPropV2,
    Sgd,
    StochasticRoundingFp16,
)
from monolith.embedding.specs import SliceSpec, TableSpec, merge_specs
from monolith.embedding.store import EmbeddingStore, Manifest
from monolith.embedding.table import RowPlan, Table, set_threads, torch_threads

if TYPE_CHECKING:
    from monolith.compat.entry_dump import WritableFile, read_entry_dump, write_entry_dump
    from monolith.compat.hooks import FileCloseHook

__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdmissionFilter",
    "Amsgrad",
    "BatchSoftmax",
    "Constant",
    "DelayCompensated",
    "DynamicWdAdagrad",
    "EmbeddingStore",
    "Entry",
    "FileCloseHook",
    "FixedR8",
    "Fp16",
    "Fp32",
    "Ftrl",
    "FusedRows",
    "GroupAdagrad",
    "GroupFtrl",
    "LearningRateFunction",
    "Manifest",
    "Momentum",
    "MovingAverage",
    "MultiTable",
    "NoFilter",
    "OneBit",
    "Ones",
    "PolynomialDecay",
    "ProbabilisticFilter",
    "RandomUniform",
    "RestoreReport",
    "RmsProp",
    "RmsPropV2",
    "RowPlan",
    "Sgd",
    "SliceSpec",
    "SlidingHashFilter",
    "StochasticRoundingFp16",
    "Table",
    "TableSpec",
    "WritableFile",
    "Zeros",
    "merge_specs",
    "read_entry_dump",
    "set_threads",
    "torch_threads",
    "write_entry_dump",
]

_COMPAT = {
    "FileCloseHook": "monolith.compat.hooks",
    "WritableFile": "monolith.compat.entry_dump",
    "read_entry_dump": "monolith.compat.entry_dump",
    "write_entry_dump": "monolith.compat.entry_dump",
}


def __getattr__(name: str) -> Any:
    """Import a name of ``monolith.compat`` on first use."""
    if name not in _COMPAT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_COMPAT[name]), name)
