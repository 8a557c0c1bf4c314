"""Every setting of the original is a field that code reads, or is refused with a remedy that works."""

from __future__ import annotations

import re

import pytest

from monolith.core.config import load
from monolith.core.config_sections import flat_fields
from monolith.core.errors import ConfigError
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.config import RETIRED

FIELDS = flat_fields(ClusterJobConfig).keys()

ORIGINAL = """
server_type index num_ps num_workers model_name filter_capacity filter_split_num filter_type filter_equal_probability
hashtable_init_capacity use_native_multi_hash_table embedding_prefetch_capacity enable_embedding_postpush
enable_variable_prefetch enable_variable_postpush enable_sync_training enable_partial_sync_training
enable_gpu_training processes_per_gpu merge_sync_training_ckpt mode partial_recovery tide_start_hour tide_start_minute
tide_end_hour tide_end_minute tide_save_secs enable_realtime_training enable_async_optimize enable_pipelined_fwda2a
enable_pipelined_bwda2a profile_some_steps_from profile_save_steps_interval profile_with_nvprof_from_to
reorder_fids_in_data_pipeline chief_timeout_secs save_checkpoints_secs save_checkpoints_steps
dense_only_save_checkpoints_secs dense_only_save_checkpoints_steps dense_only_stop_training_when_save warmup_file
skip_zero_embedding_when_serving max_rpc_deadline_millis checkpoints_max_to_keep submit_time_secs
containers_ready_time_secs cluster_type max_slow_start_wait_minute enable_model_ckpt_info feature_eviction_on_save
only_feature_engineering enable_variable_partition enable_fused_layout force_shutdown_ps clear_nn continue_training
reload_alias_map enable_alias_map_auto_gen enable_model_dump enable_resource_constrained_roughsort
roughsort_candidate_items_path roughsort_items_use_parquet items_input_lagrangex_header items_input_has_sort_id
items_input_kafka_dump items_input_kafka_dump_prefix device_fn use_dataservice num_extra_dsworker_on_gpu_worker
save_summary_steps log_step_count_steps model_dir tensorboard_log_path intra_op_parallelism_threads
inter_op_parallelism_threads num_extra_ps num_redundant_ps uuid operation_timeout_in_ms session_creation_timeout_secs
max_retry_times retry_wait_in_secs fountain_zk_host fountain_model_name dc_aware task tf_config deep_insight_name
discovery_type zk_server zk_watch_address_family is_local enable_fid_dedup bzid ps_replica_num
tf_grpc_worker_cache_threads monolith_grpc_worker_service_handler_multiplier params_override base_name data_type
feature_list lagrangex_header sort_id kafka_dump kafka_dump_prefix restore_dir restore_ckpt deep_insight_target
deep_insight_sample_ratio unified_serving use_estimator kafka_topics kafka_group_id kafka_servers input_path is_hourly
wildcard start_date end_date start_hour end_hour enable_dynamic_sharding max_task_num_per_worker
disable_native_metrics enable_parameter_sync enable_local_profiling restore_sync_timeout_secs
restore_sync_poll_interval_ms connect_retries retry_backoff_ms barrier_timeout_ms slow_start_steps export_when_saving
export_dir_base dense_weight_decay clip_norm sparse_norm_warmup_steps extra_fields_keys
"""


@pytest.mark.parametrize("name", ORIGINAL.split())
def test_a_setting_of_the_original_is_a_field_or_retired(name: str) -> None:
    assert name in FIELDS or name in RETIRED


@pytest.mark.parametrize("name", sorted(set(RETIRED) - FIELDS))
def test_a_retired_setting_is_refused_with_its_remedy(name: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        load(ClusterJobConfig, command_line={name: "1"}, retired=RETIRED)
    assert RETIRED[name] in str(caught.value)


def test_no_remedy_names_a_retired_setting() -> None:
    for name, remedy in RETIRED.items():
        words = set(re.findall(r"\w+", re.sub(r"\(.*\)", "", remedy))) - FIELDS  # in parentheses: Python arguments
        assert not words & set(RETIRED), f"the remedy of {name} names {words & set(RETIRED)}"


def test_every_setting_that_a_remedy_names_is_a_field() -> None:
    named = {word for remedy in RETIRED.values() for word in re.findall(r"\w+", remedy.partition("use ")[2])}
    fields = {word for word in named if "_" in word and not word.startswith("_")}
    assert fields
    assert fields <= FIELDS
