"""The hooks that the settings of a run ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monolith.training.config import RunConfig
from monolith.training.hooks import (
    ControllerHook,
    ExpiryHook,
    ExportHook,
    Hook,
    PredictionDumpHook,
    ProfilerHook,
    ProgressHook,
    PrometheusHook,
    PublishHook,
    PushHook,
    StopFileHook,
    SummaryHook,
    ThroughputHook,
)
from monolith.training.hooks.prediction_dump import prediction_files, prediction_topic
from monolith.training.hooks.publish import stream_of
from monolith.training.metrics import RunMetrics

__all__ = ["default_hooks", "share_metrics_registry"]


def default_hooks(config: RunConfig, metrics: RunMetrics, until: int | None) -> list[Hook]:
    """Return the hooks of a run that ends at step ``until``; without a folder, those that need one are omitted."""
    hooks: list[Hook] = [ThroughputHook()]
    if config.feature_evict_every_n_hours is not None:
        hooks.append(ExpiryHook(config.feature_evict_every_n_hours))
    if config.log_step_count_steps:
        hooks.append(
            ProgressHook(metrics, target_steps=until, every_steps=config.log_step_count_steps, is_live=config.progress)
        )
    if config.metrics_port is not None:
        hooks.append(PrometheusHook(metrics, config.metrics_port, host=config.metrics_host))
    hooks += _prediction_dump_hooks(config)
    if config.sync_targets and config.publish_dir is not None:
        hooks.append(PushHook(config.publish_dir, config))  # before its publisher, so that it ends after the publisher
    if config.publish_dir is not None:
        hooks.append(
            PublishHook(
                config.publish_dir,
                every_s=config.publish_interval_s,
                flavour=config.publish_flavour,
                stream=stream_of(config),
            )
        )
    if config.model_dir:
        hooks.append(StopFileHook())
        if getattr(config, "export_when_saving", False):
            hooks.append(ExportHook())
        if config.save_summary_steps:
            hooks.append(SummaryHook(metrics, every_steps=config.save_summary_steps))
        if config.profile_some_steps_from is not None:
            hooks.append(ProfilerHook(config.profile_some_steps_from, every_steps=config.profile_save_steps_interval))
        if config.controller_port is not None:
            hooks.append(ControllerHook(config.controller_port))
    return hooks


def share_metrics_registry(hooks: Sequence[Hook]) -> list[Hook]:
    """Return the hooks, with the registry of the run's metrics page given to every hook that has metrics."""
    page = next((hook for hook in hooks if isinstance(hook, PrometheusHook)), None)
    for hook in hooks:
        if page is not None and isinstance(hook, PushHook | PublishHook):
            hook.export = page.registry.export
    return list(hooks)


def _prediction_dump_hooks(config: RunConfig) -> list[Hook]:
    name = config.deep_insight_name or "model"
    options: dict[str, Any] = {
        "sample_ratio": config.deep_insight_sample_ratio,
        "heads": None if config.deep_insight_target is None else config.deep_insight_target.split(","),
        "extra_fields": config.extra_fields_keys,
    }
    hooks: list[Hook] = []
    if (path := config.prediction_path) is not None:
        hooks.append(PredictionDumpHook(lambda: prediction_files(path, worker=config.index), name, **options))
    servers, topic = config.prediction_kafka_servers, config.prediction_kafka_topic
    if servers is not None and topic is not None:
        hooks.append(PredictionDumpHook(lambda: prediction_topic(servers, topic), name, **options))
    return hooks
