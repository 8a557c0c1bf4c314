"""``run_settings``: the settings of a run that the parameters of a task ask for.

Each parameter that the classes of this package define belongs to one of three groups. ``SETTINGS`` become settings of
the run. ``READ`` are read by the task. ``UNREAD`` have no reader: a value other than the default is refused with the
remedy. Parameters that a user's class defines are that class's affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from monolith.core.errors import ConfigError
from monolith.core.params import Params

__all__ = ["READ", "SETTINGS", "UNREAD", "leaves", "run_settings"]

SETTINGS: Mapping[str, str] = {
    "accelerator": "accelerator",
    "clip_norm": "clip_norm",
    "dense_weight_decay": "dense_weight_decay",
    "eval.steps": "eval_steps",
    "eval.steps_per_eval": "steps_per_eval",
    "metrics.deep_insight_name": "deep_insight_name",
    "metrics.deep_insight_sample_ratio": "deep_insight_sample_ratio",
    "metrics.deep_insight_target": "deep_insight_target",
    "metrics.extra_fields_keys": "extra_fields_keys",
    "metrics.file_base_name": "prediction_path",
    "serving.export_dir_base": "export_dir_base",
    "serving.export_when_saving": "export_when_saving",
    "sparse_norm_warmup_steps": "sparse_norm_warmup_steps",
    "train.dense_only_save_checkpoints_secs": "dense_only_save_checkpoints_secs",
    "train.dense_only_save_checkpoints_steps": "dense_only_save_checkpoints_steps",
    "train.label_key": "label_features",
    "train.max_steps": "max_steps",
    "train.per_replica_batch_size": "batch_size",
    "train.save_checkpoints_secs": "save_checkpoints_secs",
    "train.save_checkpoints_steps": "save_checkpoints_steps",
    "train.slow_start_steps": "slow_start_steps",
    "train.steps": "steps",
}
"""Parameter to setting of the run."""

READ = frozenset(
    {
        "cls",
        "name",
        "mode",
        "custom_vocab_size_mapping",
        "default_occurrence_threshold",
        "deterministic",  # the order of batches is always fixed
        "enable_caching_with_tpu_var_mode",
        "enable_deepinsight",
        "enable_host_call_scalar_metrics",
        "eval.file_pattern",
        "eval.per_replica_batch_size",
        "feature_list",
        "files_interleave_cycle_length",
        "gradient_multiplier",
        "host_call_every_n_steps",
        "top_k_sampling_num_per_core",
        "qr_collision_rate",
        "qr_hashing_threshold",
        "qr_multi_hashing",
        "train.date_and_file_name_format",
        "train.end_date",
        "train.file_folder",
        "train.file_pattern",
        "train.record",
        "train.repeat",
        "train.start_date",
        "train.vocab_file_folder_prefix",
        "use_random_init_embedding_for_oov",
        "vocab_file_path",
        "vocab_size_offset",
        "vocab_size_per_slot",
    }
)
"""Parameters that the task reads."""

_PREDICT = "use `monolith predict`, which writes predictions"
_KAFKA = "set prediction_kafka_servers and prediction_kafka_topic of the run"
_TFS = "tables and dense part are placed by `monolith export --layout`"

UNREAD: Mapping[str, str] = {
    "delimiter": _PREDICT,
    "enable_grads_and_vars_summary": "add a hook that writes them",
    "enable_host_call_norm_metrics": "add a hook that writes norms",
    "file_name": _PREDICT,
    "input.eval_examples": "set eval.steps",
    "input.train_examples": "set train.steps",
    "metrics.dump_filename": "set metrics.file_base_name",
    "metrics.enable_deep_insight": "set metrics.file_base_name, or prediction_kafka_servers of the run",
    "metrics.enable_file_metrics": "set metrics.file_base_name",
    "metrics.enable_kafka_metrics": _KAFKA,
    "metrics.enable_tf2_profiler_hook": "set profile_some_steps_from of the run",
    "metrics.enable_throughput_hook": "set log_step_count_steps of the run",
    "metrics.file_ext": "the files of predictions have fixed names",
    "metrics.key_fn": "write a hook that reads StepResult",
    "metrics.layout_fn": "write a hook that reads StepResult",
    "metrics.parse_fn": "write a hook that reads StepResult",
    "metrics.use_data_service": "use `monolith train --data`, or Kafka",
    "output_fields": _PREDICT,
    "output_path": _PREDICT,
    "serving.export_mode": _TFS,
    "serving.export_with_cleared_entry_devices": _TFS,
    "serving.export_with_gpu_allowed": _TFS,
    "serving.shared_embedding": _TFS,
    "serving.with_remote_gpu": _TFS,
    "train.max_pending_seconds_for_barrier": "set operation_timeout_in_ms of the run",
    "train.sample_bias": "call sigmoid_loss_and_pred(sample_bias=True) in the model",
}
"""Parameters without a reader, each with its remedy."""

_OWN_PACKAGE = "monolith.compat.tasks."


def run_settings(params: Params) -> dict[str, tuple[Any, str]]:
    """Return the settings that the parameters of a task ask for: setting to (value, place).

    A parameter counts when its value differs from the default of the class here that defines it.

    Raises:
        ConfigError: A parameter that no code reads has another value than its default.
    """
    owner: type[Any] = params.cls
    library: Any = next(base for base in owner.__mro__ if base.__module__.startswith(_OWN_PACKAGE))
    defaults = dict(leaves(library.params()))
    settings: dict[str, tuple[Any, str]] = {}
    for path, value in leaves(params):
        if path not in defaults or value == defaults[path]:
            continue
        if path in UNREAD:
            raise ConfigError(
                f"parameter {path!r} of {owner.__name__} is {value!r}, expected its default {defaults[path]!r}: no "
                f"code reads it; {UNREAD[path]}"
            )
        if path in SETTINGS:
            settings[SETTINGS[path]] = _convert(path, value), f"{owner.__name__}.{path}"
    return settings


def leaves(params: Params, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and the value of each parameter that is not a group."""
    for name, value in params.iter_params():
        if isinstance(value, Params):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _convert(path: str, value: Any) -> Any:
    if path == "train.label_key":
        return (value,)
    return tuple(value) if path == "metrics.extra_fields_keys" else value
