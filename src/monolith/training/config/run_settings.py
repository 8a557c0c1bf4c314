"""The keywords of ``RunConfig`` for type checkers: its sections and their fields, as users name them.

Written by ``scripts/write_config_reference.py``; change the sections, not this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from monolith.embedding.specs import WhenFull
from monolith.training.config.checkpoint import CheckpointConfig
from monolith.training.config.export import ExportConfig
from monolith.training.config.gradient import ClipType, DenseOptimizerName, GradientConfig
from monolith.training.config.metrics import MetricsConfig
from monolith.training.config.pipeline import PipelineConfig
from monolith.training.config.publish import PublishConfig
from monolith.training.config.push import PushConfig
from monolith.training.config.runtime import Accelerator, RuntimeConfig
from monolith.training.config.tables import TableMemoryConfig

__all__ = ["RunSettings"]


class RunSettings(TypedDict, total=False):
    """Keywords of ``RunConfig``."""

    checkpoint: CheckpointConfig
    pipeline: PipelineConfig
    gradient: GradientConfig
    metrics: MetricsConfig
    runtime: RuntimeConfig
    tables: TableMemoryConfig
    publish: PublishConfig
    push: PushConfig
    export: ExportConfig
    model_dir: str | Path
    save_checkpoints_secs: float | None
    save_checkpoints_steps: int | None
    dense_only_save_checkpoints_secs: float | None
    dense_only_save_checkpoints_steps: int | None
    background_save: bool
    feature_eviction_on_save: bool
    feature_evict_every_n_hours: float | None
    force_expiry: bool
    checkpoints_max_to_keep: int
    keep_checkpoint_every_n_hours: float | None
    restore_dir: str | Path | None
    restore_ckpt: str | None
    clear_nn: bool
    grow_nn: bool
    continue_training: bool
    reload_alias_map: Mapping[str, str] | None
    tide_start_hour: int | None
    tide_start_minute: int | None
    tide_end_hour: int | None
    tide_end_minute: int | None
    tide_save_secs: float | None
    batch_prefetch_capacity: int
    embedding_prefetch_capacity: int
    enable_embedding_postpush: bool
    enable_variable_postpush: bool
    max_event_ahead_s: int | None
    clip_type: ClipType
    clip_norm: float | None
    sparse_clip_norm: float | None
    sparse_norm_warmup_steps: int | None
    dense_weight_decay: float
    dense_reduce_mean: bool
    ue_euclidean_norm_threshold: float | None
    ue_fc_names: tuple[str, ...]
    dense_optimizer: DenseOptimizerName
    dense_learning_rate: float
    dense_optimizer_options: Mapping[str, Any]
    log_step_count_steps: int
    save_summary_steps: int
    progressive_validation: bool | None
    metrics_port: int | None
    metrics_host: str
    deep_insight_name: str | None
    auc_exact_size: int
    progress: bool | None
    group_by: str | None
    top_k: int
    auc_by_hour: bool
    deep_insight_target: str | None
    deep_insight_sample_ratio: float
    extra_fields_keys: tuple[str, ...]
    prediction_path: str | Path | None
    prediction_kafka_servers: str | None
    prediction_kafka_topic: str | None
    early_stopping_metric: str | None
    early_stopping_steps: int
    early_stopping_patience: int
    early_stopping_min_delta: float
    keep_best_checkpoint: bool
    logger: Literal["mlflow", "wandb"] | None
    logger_project: str
    logger_run: str | None
    logger_address: str | None
    logger_steps: int
    logger_offline: bool
    seed: int
    deterministic: bool
    accelerator: Accelerator
    threads: int | None
    profile_some_steps_from: int | None
    profile_save_steps_interval: int
    controller_port: int | None
    slow_start_steps: int
    max_slow_start_wait_minute: float
    only_feature_engineering: bool
    index: int
    num_workers: int
    table_memory_limit_mb: int | None
    when_tables_full: WhenFull | None
    publish_dir: str | Path | None
    publish_interval_s: float
    publish_flavour: Literal["serving", "durable"]
    publish_port: int | None
    publish_host: str
    publish_token_file: str | Path | None
    publish_tls_cert: str | Path | None
    publish_tls_key: str | Path | None
    publish_tls_ca: str | Path | None
    sync_targets: tuple[str, ...]
    sync_model_name: str
    sync_signature_name: str
    sync_timeout_s: float
    sync_ca_file: str | Path | None
    sync_token_file: str | Path | None
    model_name: str | None
    export_when_saving: bool
    export_layout: Literal["standalone", "distributed"]
    export_shards: int | None
    export_remote_dense: bool
    export_shares_tables: bool
    export_dir_base: str | Path
    warmup_file: str | Path | None
    skip_zero_embedding_when_serving: bool
