from __future__ import annotations

import logging
import math
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monolith.core.errors import ConfigError
from monolith.data import Batch
from monolith.telemetry.names import KAFKA_LAG_RECORDS
from monolith.telemetry.registry import Registry
from monolith.testing import FakeClock
from monolith.training.config import RunConfig
from monolith.training.default_hooks import default_hooks
from monolith.training.hooks.prometheus import PrometheusHook
from monolith.training.metrics import RunMetrics
from step_results import FakeRun, step_result

HOST = "127.0.0.1"


def numbers(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(sample.labels.values())
            found[f"{sample.name}[{labels}]" if labels else sample.name] = sample.value
    return found


def fetched(port: int | None) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
        return numbers(answer.read().decode())


def test_a_run_can_be_watched_while_it_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    run, metrics = FakeRun(tmp_path, clock), RunMetrics(window_steps=1)
    run.step = 6
    hook = PrometheusHook(metrics, host=HOST, every_steps=1)
    assert hook.port is None
    run.store.apply_gradients({"item": [9]}, {"item": [[math.nan, 1]]})
    with caplog.at_level(logging.INFO):
        hook.on_start(run)
    assert f"url=http://{HOST}:{hook.port}/metrics" in caplog.text
    assert fetched(hook.port)["monolith_train_step"] == 6

    run.store.apply_gradients({"item": [1, 2, 3]}, {"item": [[1, 1], [1, 1], [math.nan, 1]]})
    batch = Batch.from_arrays(label=[[0.0], [1.0]], event_time_s=[1_700_000_000, 1_600_000_000])
    result = step_result(7, loss=2.5, batch=batch)
    metrics.update(result)
    hook.after_step(run, result)
    clock.advance_s(30)
    found = fetched(hook.port)
    assert found["monolith_train_step"] == 7
    assert found["monolith_train_steps_total"] == 1
    assert found["monolith_train_samples_total"] == 2
    assert found["monolith_train_ids_total"] == 20
    assert found["monolith_train_loss"] == 2.5
    assert found["monolith_train_head[ctr,auc]"] == 1
    assert found["monolith_train_head[ctr,calibration]"] == 1
    assert found["monolith_train_step_seconds_count"] == 1
    assert found["monolith_train_step_seconds_sum"] == 0.5
    assert found["monolith_train_event_time_seconds"] == 1_700_000_000
    assert found["monolith_checkpoint_age_seconds"] == 30
    assert found["monolith_table_rows[item]"] == len(run.store["item"])
    assert found["monolith_table_bytes[item]"] == run.store.memory_bytes
    assert found["monolith_table_nonfinite_gradients_total[item]"] == 1  # the one before the run is not the run's

    hook.after_save(run, tmp_path)
    clock.advance_s(4)
    assert fetched(hook.port)["monolith_checkpoint_age_seconds"] == 4
    port = hook.port
    hook.on_end(run, None)
    hook.on_end(run, None)
    with pytest.raises(urllib.error.URLError):
        fetched(port)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("metrics")]


def test_two_runs_in_one_process_do_not_meet(tmp_path: Path) -> None:
    hooks = [PrometheusHook(RunMetrics(), host=HOST) for _ in range(2)]
    run = FakeRun(tmp_path)
    for hook in hooks:
        hook.on_start(run)
    hooks[0].after_step(run, step_result(1))
    assert fetched(hooks[0].port)["monolith_train_steps_total"] == 1
    assert "monolith_train_steps_total" not in fetched(hooks[1].port)
    for hook in hooks:
        hook.on_end(run, None)


def test_a_second_run_of_a_hook_goes_on_counting(tmp_path: Path) -> None:
    run, hook = FakeRun(tmp_path), PrometheusHook(RunMetrics(), host=HOST)
    for step in (1, 2):
        hook.on_start(run)
        hook.after_step(run, step_result(step))
        hook.on_end(run, None)
    assert numbers(hook.registry.text())["monolith_train_steps_total"] == 2


def test_a_source_can_export_beside_a_run() -> None:
    registry = Registry()
    registry.export(KAFKA_LAG_RECORDS, 12, ("clicks", "3"))
    assert numbers(registry.text()) == {"monolith_kafka_lag_records[clicks,3]": 12}


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    run = FakeRun(tmp_path)
    first = PrometheusHook(RunMetrics(), host=HOST)
    first.on_start(run)
    with pytest.raises(ConfigError, match=f"metrics_port {first.port} on {HOST} cannot be served"):
        PrometheusHook(RunMetrics(), first.port or 0, host=HOST).on_start(run)
    first.on_end(run, None)


@pytest.mark.parametrize(("settings", "host"), [({}, "127.0.0.1"), ({"metrics_host": "0.0.0.0"}, "0.0.0.0")])
def test_the_metrics_page_of_a_run_is_for_this_machine_unless_the_host_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, str], host: str
) -> None:
    config = RunConfig(model_dir=tmp_path, metrics_port=0, **settings)
    (hook,) = (each for each in default_hooks(config, RunMetrics(), None) if isinstance(each, PrometheusHook))
    run = FakeRun(tmp_path)
    with caplog.at_level("INFO"):
        hook.on_start(run)
    hook.on_end(run, None)
    assert f"url=http://{host}:" in caplog.text
