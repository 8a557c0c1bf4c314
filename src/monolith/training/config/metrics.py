"""Metrics of a run: logging, summaries, the metrics page and dumps of predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monolith.core.config_sections import subsection
from monolith.core.errors import ConfigError
from monolith.training.config._checks import (
    check_bool,
    check_choice,
    check_names,
    check_number,
    check_path,
    check_text,
    check_whole,
    label,
)

__all__ = ["EarlyStoppingConfig", "LoggerConfig", "MetricsConfig", "PredictionDumpConfig", "RankingConfig"]


@dataclass(frozen=True, kw_only=True)
class PredictionDumpConfig:
    """Dumps of predictions to files and Kafka."""

    deep_insight_target: str | None = None
    """The head whose predictions are dumped; None = all."""
    deep_insight_sample_ratio: float = 0.01
    """Share of users, chosen by uid, whose predictions are dumped."""
    extra_fields_keys: tuple[str, ...] = ()
    """Features that are dumped with the predictions."""
    prediction_path: str | Path | None = None
    """Folder for dumped predictions; None = no files."""
    prediction_kafka_servers: str | None = None
    """Brokers (host:port,...) for dumped predictions; needs prediction_kafka_topic."""
    prediction_kafka_topic: str | None = None
    """Topic for dumped predictions; needs prediction_kafka_servers."""

    def __post_init__(self) -> None:
        check_number(self, "deep_insight_sample_ratio", at_least=0, at_most=1)
        check_text(self, "deep_insight_target", "prediction_kafka_servers", "prediction_kafka_topic")
        check_names(self, "extra_fields_keys")
        check_path(self, "prediction_path")
        if (self.prediction_kafka_servers is None) != (self.prediction_kafka_topic is None):
            missing = "prediction_kafka_servers" if self.prediction_kafka_servers is None else "prediction_kafka_topic"
            raise ConfigError(
                f"{label(self, missing)}; dumps to Kafka need both prediction_kafka_servers and prediction_kafka_topic"
            )


@dataclass(frozen=True, kw_only=True)
class EarlyStoppingConfig:
    """End of a run whose metric does not improve."""

    early_stopping_metric: str | None = None
    """Metric that must improve, such as loss or ctr/auc; None = the run ends by its limits only."""
    early_stopping_steps: int = 1000
    """Steps of each window in which the metric is computed."""
    early_stopping_patience: int = 3
    """Windows without an improvement before the run ends."""
    early_stopping_min_delta: float = 0.0
    """Smallest change that is an improvement."""
    keep_best_checkpoint: bool = False
    """Save a checkpoint with each improvement, and keep the best one in the folder best."""

    def __post_init__(self) -> None:
        check_text(self, "early_stopping_metric")
        check_whole(self, "early_stopping_steps", "early_stopping_patience", at_least=1)
        check_number(self, "early_stopping_min_delta", at_least=0)
        check_bool(self, "keep_best_checkpoint")
        if self.keep_best_checkpoint and self.early_stopping_metric is None:
            raise ConfigError(f"{label(self, 'keep_best_checkpoint')} without early_stopping_metric; give the metric")


@dataclass(frozen=True, kw_only=True)
class RankingConfig:
    """Metrics of groups of rows, and of hours."""

    group_by: str | None = None
    """Feature, or uid, whose values group rows for gauc, ndcg@k and recall@k; None = not measured."""
    top_k: int = 10
    """Rows of a group that count in ndcg@k and recall@k."""
    auc_by_hour: bool = False
    """Measure the AUC of each hour of event time; in a training, of rows before the model learned from them."""

    def __post_init__(self) -> None:
        check_text(self, "group_by")
        check_whole(self, "top_k", at_least=1)
        check_bool(self, "auc_by_hour")


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """The service that the metrics of a run are sent to."""

    logger: Literal["mlflow", "wandb"] | None = None
    """Service that gets the metrics of the run: mlflow or wandb (Weights & Biases); None = none."""
    logger_project: str = "monolith"
    """Experiment of MLflow, or project of Weights & Biases."""
    logger_run: str | None = None
    """Name of the run; None = the service chooses one."""
    logger_address: str | None = None
    """Address of the service; None = files in the model folder for mlflow, the public server for wandb."""
    logger_steps: int = 100
    """Steps between two logs of metrics."""
    logger_offline: bool = False
    """Weights & Biases writes files in the model folder, for wandb sync, and contacts no server."""

    def __post_init__(self) -> None:
        check_choice(self, "logger", ("mlflow", "wandb"))
        check_text(self, "logger_project", "logger_run", "logger_address")
        check_whole(self, "logger_steps", at_least=1)
        check_bool(self, "logger_offline")
        if self.logger_offline and self.logger != "wandb":
            raise ConfigError(
                f"{label(self, 'logger_offline')} and logger is {self.logger!r}, expected wandb; leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """Logging, summaries, the metrics page and dumps of predictions."""

    log_step_count_steps: int = 100
    """Steps between log lines; 0 = none."""
    save_summary_steps: int = 100
    """Steps between TensorBoard summaries; 0 = none."""
    progressive_validation: bool | None = None
    """Count the metrics of every batch before training on it; None = yes, False saves their time."""
    metrics_port: int | None = None
    """Port of the Prometheus page; None = no page, 0 = any free port."""
    metrics_host: str = "127.0.0.1"
    """Interface of the Prometheus page; the default is for this machine only."""
    deep_insight_name: str | None = None
    """Name of the run in metrics and dumped predictions."""
    auc_exact_size: int = 1_000_000
    """Samples up to which the AUC is exact; beyond, it is exact within a bound that it states."""
    progress: bool | None = None
    """Show a live progress line; None = when standard error is a terminal."""
    ranking: RankingConfig = subsection(RankingConfig)
    dump: PredictionDumpConfig = subsection(PredictionDumpConfig)
    early_stopping: EarlyStoppingConfig = subsection(EarlyStoppingConfig)
    experiment: LoggerConfig = subsection(LoggerConfig)

    def __post_init__(self) -> None:
        check_whole(self, "log_step_count_steps", "save_summary_steps", "auc_exact_size")
        check_bool(self, "progressive_validation", "progress")
        check_whole(self, "metrics_port", at_most=65535)
        check_text(self, "metrics_host", "deep_insight_name")
