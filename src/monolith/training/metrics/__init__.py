"""Metrics of a run: quality per head, speed, table sizes. Hooks show and send them."""

from __future__ import annotations

from monolith.training.metrics.auc import StreamingAuc
from monolith.training.metrics.averages import Calibration, LogLoss, MeanSquaredError
from monolith.training.metrics.base import Metric
from monolith.training.metrics.ranking import RankingMetrics
from monolith.training.metrics.run_metrics import HeadMetrics, RunMetrics
from monolith.training.metrics.table_sizes import TableSize, table_sizes
from monolith.training.metrics.throughput import Rates, Throughput

__all__ = [
    "Calibration",
    "HeadMetrics",
    "LogLoss",
    "MeanSquaredError",
    "Metric",
    "RankingMetrics",
    "Rates",
    "RunMetrics",
    "StreamingAuc",
    "TableSize",
    "Throughput",
    "table_sizes",
]
