from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monolith.core.config import load
from monolith.training.config import RETIRED, RunConfig, RunnerConfig, environment_exports

TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1).filter(str.strip)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "model_dir": TEXT,
        "restore_ckpt": TEXT,
        "seed": st.integers(0, 2**62),
        "save_checkpoints_steps": st.integers(1, 10**9),
        "clip_norm": st.none() | st.floats(1e-300, 1e300),
        "dense_learning_rate": st.floats(0, 1),
        "progress": st.none() | st.booleans(),
        "background_save": st.booleans(),
        "accelerator": st.sampled_from(["cpu", "cuda"]),
        "extra_fields_keys": st.lists(TEXT).map(tuple),
        "reload_alias_map": st.none() | st.dictionaries(TEXT, TEXT),
        "dense_optimizer_options": st.dictionaries(TEXT, st.integers() | st.booleans() | st.lists(st.integers())),
    },
)


@settings(max_examples=30)
@given(VALUES)
def test_a_child_process_loads_the_same_configuration(values: dict[str, Any]) -> None:
    config = RunConfig(**values)
    assert load(RunConfig, environment=environment_exports(config), retired=RETIRED).config == config


def test_only_what_differs_from_the_default_is_exported() -> None:
    assert environment_exports(RunConfig()) == {"MONOLITH_METRIC_PREFIX": "monolith.training"}


def test_the_prefix_of_metrics_has_the_name_of_the_run() -> None:
    exports = environment_exports(RunConfig(deep_insight_name="ctr"))
    assert exports["MONOLITH_METRIC_PREFIX"] == "monolith.training.ctr"


def test_thread_settings_of_a_runner_are_exported_under_the_names_that_are_read() -> None:
    config = RunnerConfig(tf_grpc_worker_cache_threads=16, monolith_grpc_worker_service_handler_multiplier=1.5)
    exports = environment_exports(config)
    assert exports["TF_GRPC_WORKER_CACHE_THREADS"] == "16"
    assert exports["MONOLITH_GRPC_WORKER_SERVICE_HANDLER_MULTIPLIER"] == "1.5"
    assert load(RunnerConfig, environment=exports).config == config


def test_exports_cause_no_remark_in_the_child(caplog: pytest.LogCaptureFixture) -> None:
    config = RunnerConfig(
        num_ps=2, tf_grpc_worker_cache_threads=1, monolith_grpc_worker_service_handler_multiplier=2.0, seed=1
    )
    with caplog.at_level(logging.WARNING):
        load(RunnerConfig, environment=environment_exports(config), retired=RETIRED)
    assert not caplog.records
