from __future__ import annotations

import copy
import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from monolith.core.config_fields import config_fields
from monolith.core.config_sections import read_setting
from monolith.core.errors import ConfigError
from monolith.training.config import (
    CheckpointConfig,
    ClusterConfig,
    ExportConfig,
    GradientConfig,
    MetricsConfig,
    PipelineConfig,
    PublishConfig,
    PushConfig,
    RunConfig,
    RunnerConfig,
    RuntimeConfig,
    TableMemoryConfig,
)
from monolith.training.config.cluster import (
    AsynchronousMode,
    Mode,
    PartialSyncMode,
    RanksMode,
    RetryConfig,
    SoloMode,
)

SECTIONS = {
    "checkpoint": CheckpointConfig,
    "pipeline": PipelineConfig,
    "gradient": GradientConfig,
    "metrics": MetricsConfig,
    "runtime": RuntimeConfig,
    "tables": TableMemoryConfig,
    "publish": PublishConfig,
    "push": PushConfig,
    "export": ExportConfig,
    "cluster": ClusterConfig,
}


@pytest.mark.parametrize(("name", "section"), SECTIONS.items())
def test_a_section_stands_alone_and_is_part_of_the_whole(name: str, section: type) -> None:
    assert getattr(RunnerConfig(), name) == section()


def test_a_run_has_the_sections_of_one_process() -> None:
    names = [field.name for field in dataclasses.fields(RunConfig)]
    assert set(names) == {"model_dir", *SECTIONS} - {"cluster"}


def test_a_run_takes_sections_and_single_fields_of_them() -> None:
    section = CheckpointConfig(save_checkpoints_steps=5, background_save=False)
    config = RunConfig(checkpoint=section, save_checkpoints_steps=7, seed=3)
    assert config.checkpoint == dataclasses.replace(section, save_checkpoints_steps=7)
    assert config.runtime == RuntimeConfig(seed=3)


def test_a_run_refuses_a_section_of_another_type() -> None:
    with pytest.raises(ConfigError, match=r"RunConfig\.checkpoint is .*, expected a CheckpointConfig"):
        RunConfig(checkpoint=RuntimeConfig())


def test_times_are_seconds_inside_and_keep_the_unit_of_their_name_outside() -> None:
    config = RunnerConfig(keep_checkpoint_every_n_hours=2, retry_backoff_ms=250, max_slow_start_wait_minute=3)
    assert config.checkpoint.retention.keep_checkpoint_every_s == 7200
    assert (config.cluster.retry.retry_backoff_s, config.runtime.max_slow_start_wait_s) == (0.25, 180)
    assert (read_setting(config, "keep_checkpoint_every_n_hours"), read_setting(config, "retry_backoff_ms")) == (2, 250)


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, SoloMode()),
        ({"num_ps": 2, "dense_exchange_steps": 3}, AsynchronousMode(3)),
        ({"num_ps": 2, "enable_partial_sync_training": True}, PartialSyncMode(1)),
        ({"enable_sync_training": True}, RanksMode()),
    ],
)
def test_the_switches_of_a_job_select_one_mode(settings: dict[str, Any], mode: Mode) -> None:
    assert RunnerConfig(**settings).cluster.mode == mode


def test_two_modes_are_refused() -> None:
    with pytest.raises(ConfigError, match="enable_sync_training and enable_partial_sync_training are both True"):
        RunnerConfig(enable_sync_training=True, enable_partial_sync_training=True)


def test_equal_settings_give_equal_configurations() -> None:
    one, other = RunConfig(seed=1), RunConfig(runtime=RuntimeConfig(seed=1))
    assert one == other != RunConfig(seed=2)
    assert repr(one) == repr(other)
    assert hash(one.checkpoint) == hash(other.checkpoint)


@pytest.mark.parametrize("field", config_fields(RunnerConfig).values(), ids=lambda field: field.name)
def test_every_field_explains_itself_in_one_line(field: Any) -> None:
    assert field.help.endswith("."), f"{field.name} has no docstring, or one without an end"
    assert len(field.help) <= 115
    assert all(word in field.help for word in field.literals)


def test_sections_have_names_that_one_writes_in_a_file() -> None:
    assert {field.section for field in config_fields(RunnerConfig).values()} == {
        "run",
        "checkpoint",
        "pipeline",
        "gradient",
        "metrics",
        "runtime",
        "tables",
        "publish",
        "push",
        "cluster",
        "serving",
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"save_checkpoints_secs": 60, "save_checkpoints_steps": 5}, "save_checkpoints_secs is 60 and save_.* is 5"),
        ({"dense_only_save_checkpoints_secs": 1, "dense_only_save_checkpoints_steps": 1}, "give one of the two"),
        ({"sync_targets": ("a:1",)}, r"sync_targets is \('a:1',\) without publish_dir or model_dir"),
        ({"sync_targets": ("a:1", "A:1"), "model_dir": "m"}, "sync_targets has 'A:1' twice"),
        ({"sync_targets": ("https://a:1",), "model_dir": "m"}, "over https and sync_ca_file is None"),
        ({"sync_targets": ("a:1",), "model_dir": "m", "sync_signature_name": "x"}, "sync_signature_name is 'x'"),
        ({"sync_timeout_s": 0}, "sync_timeout_s is 0; give a number above 0"),
        ({"save_checkpoints_steps": 0}, "save_checkpoints_steps is 0; give a whole number of at least 1"),
        ({"save_checkpoints_steps": 1.5}, r"save_checkpoints_steps is 1\.5; give a whole number"),
        ({"save_checkpoints_secs": 0}, "save_checkpoints_secs is 0; give a number above 0"),
        ({"save_checkpoints_secs": float("nan")}, "save_checkpoints_secs is nan; give a finite number"),
        ({"checkpoints_max_to_keep": 0}, "checkpoints_max_to_keep is 0; give a whole number of at least 1"),
        ({"checkpoints_max_to_keep": None}, "checkpoints_max_to_keep is None"),
        ({"keep_checkpoint_every_n_hours": -1}, "keep_checkpoint_every_n_hours is -1; give a number above 0"),
        ({"restore_dir": ""}, "restore_dir is ''; give a path"),
        ({"restore_dir": 7}, "restore_dir is 7; give a path"),
        ({"restore_ckpt": " "}, "restore_ckpt is ' '; give text"),
        ({"clear_nn": 1}, "clear_nn is 1; give True or False"),
        ({"clear_nn": True, "reload_alias_map": {"a": "b"}}, "with clear_nn True; .* give one of the two"),
        ({"reload_alias_map": ["a"]}, r"reload_alias_map is \['a'\]; give a mapping whose keys are names"),
        ({"reload_alias_map": {"a": 1}}, "give a mapping from names to names"),
        ({"tide_start_hour": 24, "tide_end_hour": 6}, "tide_start_hour is 24; give a whole number from 0 to 23"),
        ({"tide_start_hour": 22}, "tide_end_hour is None; a tide window needs both"),
        ({"tide_end_hour": 22}, "tide_start_hour is None; a tide window needs both"),
        ({"tide_start_minute": 30}, "tide_start_minute is 30 without a tide window"),
        ({"tide_save_secs": 30}, "tide_save_secs is 30 without a tide window; give tide_start_hour and tide_end_hour"),
        ({"batch_prefetch_capacity": -1}, "batch_prefetch_capacity is -1; give a whole number of at least 0"),
        ({"enable_embedding_postpush": "yes"}, "enable_embedding_postpush is 'yes'; give True or False"),
        ({"clip_type": "global"}, "clip_type is 'global'; did you mean 'global_norm'"),
        ({"clip_type": None}, "clip_type is None; "),
        ({"clip_norm": 0}, "clip_norm is 0; give a number above 0"),
        ({"clip_norm": "1"}, "clip_norm is '1'; give a finite number"),
        ({"sparse_norm_warmup_steps": 0}, "sparse_norm_warmup_steps is 0"),
        ({"dense_optimizer": "adamm"}, "dense_optimizer is 'adamm'; did you mean 'adam"),
        ({"dense_learning_rate": -0.1}, r"dense_learning_rate is -0\.1; give a number of at least 0"),
        ({"dense_optimizer_options": {1: 2}}, "give a mapping whose keys are names"),
        ({"metrics_port": 70000}, "metrics_port is 70000; give a whole number from 0 to 65535"),
        ({"deep_insight_sample_ratio": 2}, "deep_insight_sample_ratio is 2; give a number of at most 1"),
        ({"extra_fields_keys": "a"}, "extra_fields_keys is 'a'; give a sequence of names"),
        ({"prediction_kafka_topic": "t"}, "prediction_kafka_servers is None; dumps to Kafka need both"),
        ({"prediction_kafka_servers": "h:1"}, "prediction_kafka_topic is None; dumps to Kafka need both"),
        ({"progress": "no"}, "progress is 'no'; give True or False"),
        ({"accelerator": "gpu"}, "accelerator is 'gpu'; did you mean 'cpu'|give one of"),
        ({"threads": 0}, "threads is 0; give a whole number of at least 1"),
        ({"seed": -1}, "seed is -1; give a whole number from 0 to 18446744073709551615"),
        ({"seed": True}, "seed is True; give a whole number"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616; give a whole number from 0 to 18446744073709551615"),
        ({"model_dir": None}, "model_dir is None; give a path"),
    ],
)
def test_a_run_refuses_invalid_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunConfig(**values)


@pytest.mark.parametrize("name", ["retry_backoff_ms", "discovery_cleanup_timeout_ms", "restore_sync_poll_interval_ms"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_milliseconds_that_are_not_finite_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is {value}; give a finite number"):
        RunnerConfig(**{name: value})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"server_type": "chief"}, "server_type is 'chief'; give one of 'ps', 'worker'"),
        ({"num_ps": -1}, "num_ps is -1"),
        ({"discovery_type": "zookeper"}, "did you mean 'zookeeper'"),
        ({"retry_wait_in_secs": -1}, "retry_wait_in_secs is -1"),
        ({"server_type": "ps", "num_ps": 2, "index": 3}, "index is 3 with 2 servers in all"),
        ({"export_dir_base": ""}, "export_dir_base is ''; give a path"),
        ({"clip_norm": -1}, "clip_norm is -1"),
        ({"index": 2, "num_workers": 2}, "index is 2 with num_workers 2; give 0 to num_workers - 1"),
    ],
)
def test_a_runner_refuses_invalid_settings(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RunnerConfig(**values)


def test_the_index_of_a_server_is_one_among_the_servers() -> None:
    assert RunnerConfig(server_type="ps", num_ps=2, index=1, num_workers=1).runtime.index == 1


def test_paths_are_kept_as_text() -> None:
    config = RunConfig(model_dir=Path("runs") / "a", restore_dir=Path("b"), prediction_path="s3://bucket/c")
    assert (config.model_dir, config.checkpoint.restore.restore_dir, config.metrics.dump.prediction_path) == (
        "runs/a",
        "b",
        "s3://bucket/c",
    )


def test_a_list_of_names_is_kept_as_a_tuple() -> None:
    assert RunConfig(extra_fields_keys=["a", "b"]).metrics.dump.extra_fields_keys == ("a", "b")  # type: ignore[arg-type]


def test_a_field_that_allows_none_takes_none() -> None:
    config = RunConfig(clip_norm=None, keep_checkpoint_every_n_hours=None)
    assert config.gradient.clip_norm is None


def test_a_configuration_cannot_be_changed_but_copied() -> None:
    config = RunConfig(seed=3, reload_alias_map={"a": "b"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.runtime.seed = 4  # type: ignore[misc]
    assert dataclasses.replace(config, seed=4).runtime.seed == 4
    assert copy.deepcopy(config) == config == pickle.loads(pickle.dumps(config))


def test_a_misspelt_field_is_refused_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'save_checkpoints_steps'"):
        RunConfig(save_checkpoint_steps=3)  # type: ignore[call-arg]


def test_a_retired_field_is_refused_with_its_remedy() -> None:
    with pytest.raises(ConfigError, match="RunnerConfig sets 'enable_gpu_training', which is retired: use accelerator"):
        RunnerConfig(enable_gpu_training=True)  # type: ignore[call-arg]


def test_a_runner_config_keeps_every_setting_of_the_run_defaults_included() -> None:
    run = RunConfig(seed=7, save_checkpoints_steps=10, model_dir="a")
    runner = run.to_runner_config(num_ps=2)
    assert {field.name: getattr(runner, field.name) for field in dataclasses.fields(run)} == vars(run)
    assert (runner.cluster.num_ps, runner.cluster.retry) == (2, RetryConfig(max_retry_times=6, retry_wait_s=5))


def test_a_runner_config_of_a_runner_config_keeps_its_cluster() -> None:
    assert RunnerConfig(num_ps=3, seed=1).to_runner_config(seed=2) == RunnerConfig(num_ps=3, seed=2)
