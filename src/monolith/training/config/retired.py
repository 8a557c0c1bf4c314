"""``RETIRED``: settings of the original that have no effect here, each with its remedy.

An old configuration is refused by the name of such a setting, and the error states the remedy. A remedy names only
settings and options that exist and work.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["RETIRED"]

_ADMISSION = "admission belongs to a feature; give embedding_feature(occurrence_threshold=, admission=), or TableSpec"
_AS_DATA = "it is part of the data; give it to mt.data.files, or to monolith train --data"
_AS_STREAM = "name the stream as data, with mt.data.kafka; dumps have prediction_kafka_servers and _topic"
_AS_HOOK = "give the hook to Estimator(hooks=[...]), or use the settings of the metrics section"
_BUILT_IN = "it is always done; remove it"
_AGENT = "the configuration of monolith agent holds it; remove it here"
_FRESHNESS = "use publish_dir, whose log servers follow, or sync_targets, which are pushed to"
_NEVER_WORKED = "it had no effect; remove it"
_NO_PLATFORM = "it was for one company's platform; remove it"
_NO_TENSORFLOW = "it steered TensorFlow, which is not used; remove it"
_ROUGH_SORT = "item vectors are computed with Estimator.predict; remove it"

RETIRED: Mapping[str, str] = MappingProxyType(
    {
        # tables
        "filter_capacity": _ADMISSION,
        "filter_split_num": _ADMISSION,
        "filter_type": _ADMISSION,
        "filter_equal_probability": _ADMISSION,
        "hashtable_init_capacity": "tables grow by themselves; remove it",
        "use_native_multi_hash_table": _BUILT_IN,
        "use_gpu_emb_table": "tables are in main memory; remove it",
        "enable_fid_dedup": _BUILT_IN,
        "enable_fused_layout": _BUILT_IN,
        "reorder_fids_in_data_pipeline": _BUILT_IN,
        # the step
        "mode": "call train, evaluate or predict of the Estimator",
        "enable_gpu_training": "use accelerator 'cuda'",
        "processes_per_gpu": _NEVER_WORKED,
        "device_fn": "use accelerator",
        "intra_op_parallelism_threads": "use threads",
        "inter_op_parallelism_threads": "use threads",
        "enable_variable_prefetch": "dense weights are in the worker's own process; remove it",
        "enable_variable_partition": "dense weights are in the worker's own process; remove it",
        "enable_async_optimize": "use enable_embedding_postpush",
        "enable_pipelined_fwda2a": "use embedding_prefetch_capacity",
        "enable_pipelined_bwda2a": "use enable_embedding_postpush",
        "sample_bias": "correct the logit in the model: mt.layers.LogitCorrection(sample_bias=True)",
        # checkpoints
        "merge_sync_training_ckpt": _BUILT_IN,
        "dense_only_stop_training_when_save": "every save is a cut between two steps; remove it",
        "max_pending_seconds_for_barrier": "a save waits at no barrier; remove it",
        "enable_alias_map_auto_gen": "names are not guessed; use reload_alias_map",
        "enable_model_ckpt_info": "monolith inspect checkpoint counts the rows; remove it",
        # profiling, metrics, dumps
        "enable_local_profiling": "use profile_some_steps_from 0",
        "profile_with_nvprof_from_to": "use profile_some_steps_from",
        "enable_tf2_profiler_hook": "use profile_some_steps_from",
        "tensorboard_log_path": "summaries are in model_dir; remove it",
        "enable_model_dump": _NEVER_WORKED,
        "disable_native_metrics": "use progressive_validation",
        "enable_throughput_hook": _AS_HOOK,
        "enable_deep_insight": "use prediction_path or prediction_kafka_topic",
        "enable_file_metrics": "use prediction_path",
        "file_base_name": "use prediction_path",
        "enable_kafka_metrics": "use prediction_kafka_servers and prediction_kafka_topic",
        # data
        "input_path": _AS_DATA,
        "wildcard": _AS_DATA,
        "is_hourly": _AS_DATA,
        "start_date": _AS_DATA,
        "end_date": _AS_DATA,
        "start_hour": _AS_DATA,
        "end_hour": _AS_DATA,
        "data_type": _AS_DATA,
        "feature_list": "use mt.data.FeatureList",
        "lagrangex_header": _AS_DATA,
        "sort_id": _AS_DATA,
        "kafka_dump": _AS_DATA,
        "kafka_dump_prefix": _AS_DATA,
        "kafka_topics": _AS_STREAM,
        "kafka_servers": _AS_STREAM,
        "kafka_group_id": _AS_STREAM,
        "enable_dynamic_sharding": _AS_DATA,
        "max_task_num_per_worker": _AS_DATA,
        "use_dataservice": "batches are read ahead in the process; use batch_prefetch_capacity",
        "dataset_use_dataservice": "batches are read ahead in the process; use batch_prefetch_capacity",
        "num_extra_dsworker_on_gpu_worker": "batches are read ahead in the process; use batch_prefetch_capacity",
        "items_input_lagrangex_header": _AS_DATA,
        "items_input_has_sort_id": _AS_DATA,
        "items_input_kafka_dump": _AS_DATA,
        "items_input_kafka_dump_prefix": _AS_DATA,
        "use_fountain": _NO_PLATFORM,
        "fountain_zk_host": _NO_PLATFORM,
        "fountain_model_name": _NO_PLATFORM,
        # the task
        "task": "name the task with monolith train --task, or build the model in code",
        "params_override": "use the task's own parameters",
        "use_estimator": _NEVER_WORKED,
        "enable_resource_constrained_roughsort": _ROUGH_SORT,
        "roughsort_candidate_items_path": _ROUGH_SORT,
        "roughsort_items_use_parquet": _ROUGH_SORT,
        # the cluster
        "is_local": "num_ps and enable_sync_training decide it; remove it",
        "barrier_timeout_ms": "workers wait at no barrier; remove it",
        "tf_grpc_worker_cache_threads": _NO_TENSORFLOW,
        "monolith_grpc_worker_service_handler_multiplier": _NO_TENSORFLOW,
        "zk_watch_address_family": "addresses of both families are understood; remove it",
        "ps_replica_num": _NEVER_WORKED,
        "submit_time_secs": _NO_PLATFORM,
        "containers_ready_time_secs": _NO_PLATFORM,
        "cluster_type": _NO_PLATFORM,
        "dc_aware": _NO_PLATFORM,
        # serving
        "enable_realtime_training": _FRESHNESS,
        "enable_parameter_sync": _FRESHNESS,
        "base_name": _AGENT,
        "bzid": _AGENT,
        "max_rpc_deadline_millis": "the server takes it; give monolith serve --remote-timeout-ms",
        "unified_serving": _BUILT_IN,
        "export_mode": "give monolith export --layout",
        "shared_embedding": "each export has its own copy of the rows; remove it",
        "with_remote_gpu": "give monolith export --layout distributed --remote-dense",
        "export_with_gpu_allowed": _NO_TENSORFLOW,
        "export_with_cleared_entry_devices": _NO_TENSORFLOW,
    }
)
"""Name to remedy."""
