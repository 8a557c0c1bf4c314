"""The hooks that the settings of a run ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monolith.data import Dataset
from monolith.embedding.memory_limit import MemoryLimit
from monolith.training.config import RunConfig
from monolith.training.hooks import (
    ControllerHook,
    EarlyStoppingHook,
    ExperimentHook,
    ExpiryHook,
    ExportHook,
    ForgetHook,
    Hook,
    PredictionDumpHook,
    ProfilerHook,
    ProgressHook,
    PrometheusHook,
    PublishHook,
    PushHook,
    StopFileHook,
    SummaryHook,
    TableMemoryHook,
    ThroughputHook,
)
from monolith.training.hooks.prediction_dump import prediction_files, prediction_topic
from monolith.training.hooks.progress import DataLength
from monolith.training.hooks.publish import stream_of
from monolith.training.metrics import RunMetrics

__all__ = ["connect_forgetting", "default_hooks", "early_stopping_hook", "share_metrics_registry"]


def early_stopping_hook(config: RunConfig) -> EarlyStoppingHook | None:
    """Return the hook that ends a run whose metric does not improve; None unless the settings ask for it."""
    stopping = config.metrics.early_stopping
    if stopping.early_stopping_metric is None:
        return None
    return EarlyStoppingHook(
        stopping.early_stopping_metric,
        every_steps=stopping.early_stopping_steps,
        patience=stopping.early_stopping_patience,
        min_delta=stopping.early_stopping_min_delta,
        keep_best=stopping.keep_best_checkpoint,
    )


def default_hooks(
    config: RunConfig,
    metrics: RunMetrics,
    until: int | None,
    length: DataLength | None = None,
    *,
    stopping: EarlyStoppingHook | None = None,
) -> list[Hook]:
    """Return the hooks of a run that ends at step ``until``; without a folder, those that need one are omitted.

    Args:
        config: The settings of the run.
        metrics: The metrics of the run.
        until: The step at which the run ends; None when unknown.
        length: The length of the data; None when unknown.
        stopping: The hook of ``early_stopping_hook`` that earlier runs had; None = a new one.
    """
    hooks: list[Hook] = [ThroughputHook()]
    if config.checkpoint.feature_evict_every_s is not None:
        hooks.append(ExpiryHook(config.checkpoint.feature_evict_every_s / 3600))
    limit_mb = config.tables.table_memory_limit_mb
    limit = MemoryLimit(None if limit_mb is None else limit_mb << 20, config.tables.when_tables_full)
    hooks.append(TableMemoryHook(limit))
    if config.metrics.log_step_count_steps:
        hooks.append(
            ProgressHook(
                metrics,
                target_steps=until,
                every_steps=config.metrics.log_step_count_steps,
                is_live=config.metrics.progress,
                length=length,
            )
        )
    if config.metrics.metrics_port is not None:
        hooks.append(PrometheusHook(metrics, config.metrics.metrics_port, host=config.metrics.metrics_host))
    if config.metrics.experiment.logger is not None:
        hooks.append(ExperimentHook(metrics, config.metrics.experiment))
    hooks += _prediction_dump_hooks(config)
    if (stopping := stopping or early_stopping_hook(config)) is not None:
        hooks.append(stopping)
    if config.push.sync_targets and config.publish.publish_dir is not None:
        # Before its publisher, so that it ends after the publisher.
        hooks.append(PushHook(config.publish.publish_dir, config.push))
    if config.publish.publish_dir is not None:
        hooks.append(
            PublishHook(
                config.publish.publish_dir,
                every_s=config.publish.publish_interval_s,
                flavour=config.publish.publish_flavour,
                stream=stream_of(config.publish),
            )
        )
    if config.model_dir:
        hooks.append(StopFileHook())
        if config.export.export_when_saving:
            hooks.append(ExportHook())
        if config.metrics.save_summary_steps:
            hooks.append(SummaryHook(metrics, every_steps=config.metrics.save_summary_steps))
        if config.runtime.profile_some_steps_from is not None:
            hooks.append(
                ProfilerHook(
                    config.runtime.profile_some_steps_from, every_steps=config.runtime.profile_save_steps_interval
                )
            )
        if config.runtime.controller_port is not None:
            hooks.append(ControllerHook(config.runtime.controller_port))
        hooks.append(ForgetHook())
    return hooks


def share_metrics_registry(hooks: Sequence[Hook], dataset: object = None) -> list[Hook]:
    """Return the hooks, with the registry of the metrics page given to the data and every hook with metrics."""
    page = next((hook for hook in hooks if isinstance(hook, PrometheusHook)), None)
    for hook in hooks:
        if page is not None and isinstance(hook, PushHook | PublishHook):
            hook.export = page.registry.export
    if page is not None and isinstance(dataset, Dataset):
        dataset.metrics = page.registry.export
    return list(hooks)


def connect_forgetting(hooks: Sequence[Hook]) -> list[Hook]:
    """Return the hooks with the forget hook last, which then sees the effect of a save on published files.

    The controller gets the forget hook, and the forget hook gets the publisher.
    """
    forget = next((hook for hook in hooks if isinstance(hook, ForgetHook)), None)
    if forget is None:
        return list(hooks)
    for hook in hooks:
        if isinstance(hook, PublishHook):
            forget.publish, forget.published = hook.publish_now, hook.folder
        elif isinstance(hook, ControllerHook):
            hook.forget = forget.forget
    return [*(hook for hook in hooks if hook is not forget), forget]


def _prediction_dump_hooks(config: RunConfig) -> list[Hook]:
    name, dump = config.metrics.deep_insight_name or "model", config.metrics.dump
    options: dict[str, Any] = {
        "sample_ratio": dump.deep_insight_sample_ratio,
        "heads": None if dump.deep_insight_target is None else dump.deep_insight_target.split(","),
        "extra_fields": dump.extra_fields_keys,
    }
    hooks: list[Hook] = []
    if (path := dump.prediction_path) is not None:
        hooks.append(PredictionDumpHook(lambda: prediction_files(path, worker=config.runtime.index), name, **options))
    servers, topic = dump.prediction_kafka_servers, dump.prediction_kafka_topic
    if servers is not None and topic is not None:
        hooks.append(PredictionDumpHook(lambda: prediction_topic(servers, topic), name, **options))
    return hooks
