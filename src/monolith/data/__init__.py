"""Records, features and datasets: from bytes in files and streams to batches of tensors.

Every name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith.data.batch import Batch, Ragged, Texts
    from monolith.data.dataset import Dataset, look_ahead
    from monolith.data.feature_list import FeatureList
    from monolith.data.inference import infer_schema
    from monolith.data.prediction_files import PredictionFiles
    from monolith.data.readers import (
        arrow,
        avro_messages,
        csv,
        event_log,
        files,
        frame,
        from_source,
        json_lines,
        json_messages,
        kafka,
        parquet,
        stdin,
    )
    from monolith.data.records.framing import Framing
    from monolith.data.records.line_id import LineIdFields
    from monolith.data.records.writer import RecordWriter
    from monolith.data.schema import BatchParser, DenseFeature, Schema, SparseFeature, parse_batch
    from monolith.data.sources.patterns import date_patterns

__all__ = [
    # functions that return datasets
    "arrow",
    "avro_messages",
    "csv",
    "event_log",
    "files",
    "frame",
    "from_source",
    "json_lines",
    "json_messages",
    "kafka",
    "parquet",
    "stdin",
    "date_patterns",
    # types
    "Batch",
    "BatchParser",
    "Dataset",
    "DenseFeature",
    "FeatureList",
    "Framing",
    "LineIdFields",
    "PredictionFiles",
    "Ragged",
    "RecordWriter",
    "Schema",
    "SparseFeature",
    "Texts",
    "infer_schema",
    "look_ahead",
    "parse_batch",
]

_HOMES = {
    "readers": (
        "arrow",
        "avro_messages",
        "csv",
        "event_log",
        "files",
        "frame",
        "from_source",
        "json_lines",
        "json_messages",
        "kafka",
        "parquet",
        "stdin",
    ),
    "sources.patterns": ("date_patterns",),
    "batch": ("Batch", "Ragged", "Texts"),
    "dataset": ("Dataset", "look_ahead"),
    "schema": ("BatchParser", "DenseFeature", "Schema", "SparseFeature", "parse_batch"),
    "inference": ("infer_schema",),
    "feature_list": ("FeatureList",),
    "prediction_files": ("PredictionFiles",),
    "records.framing": ("Framing",),
    "records.line_id": ("LineIdFields",),
    "records.writer": ("RecordWriter",),
}
_HOME_OF = {name: f"monolith.data.{module}" for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import ``name`` on first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'monolith.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported yet or not."""
    return list(__all__)
