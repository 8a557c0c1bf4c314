"""A registry counts values, and Prometheus' own parser reads its text."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from monolith.core.errors import ConfigError
from monolith.telemetry.histogram import CallMetrics
from monolith.telemetry.names import (
    KAFKA_LAG_RECORDS,
    PS_CALL_SECONDS,
    PS_UP,
    SERVING_REQUESTS_TOTAL,
    SERVING_ROWS_TOTAL,
    TABLE_ROWS,
    TRAIN_LOSS,
    TRAIN_STEP,
    TRAIN_STEP_SECONDS,
    TRAIN_STEPS_TOTAL,
)
from monolith.telemetry.registry import Registry
from monolith.telemetry.text import render
from monolith.testing import FakeClock


def parsed(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples by name and label values, as the reference parser reads them."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_only_a_counter_without_labels_has_a_value_before_the_first_one() -> None:
    registry = Registry()
    registry.declare(SERVING_ROWS_TOTAL, TRAIN_LOSS, TRAIN_STEP_SECONDS, SERVING_REQUESTS_TOTAL)
    assert registry.value(SERVING_ROWS_TOTAL) == 0
    assert registry.value(TRAIN_LOSS) is None
    assert registry.value(TRAIN_STEP_SECONDS) is None
    assert parsed(render(registry.samples())) == {("monolith_serving_rows_total",): 0.0}


def test_counters_add_gauges_are_set_and_histograms_observe() -> None:
    registry = Registry()
    for value in (1, 2):
        registry.export(TRAIN_STEPS_TOTAL, value)
        registry.export(TRAIN_STEP, value)
        registry.export(TRAIN_STEP_SECONDS, value)
    samples = parsed(registry.text())
    assert samples["monolith_train_steps_total",] == 3
    assert samples["monolith_train_step",] == 2
    assert samples["monolith_train_step_seconds_count",] == 2
    assert samples["monolith_train_step_seconds_sum",] == 3
    assert samples["monolith_train_step_seconds_bucket", "1"] == 1
    assert samples["monolith_train_step_seconds_bucket", "30"] == 2
    assert samples["monolith_train_step_seconds_bucket", "+Inf"] == 2
    assert registry.value(TRAIN_STEPS_TOTAL) == 3
    assert registry.value(TRAIN_STEP_SECONDS)["count"] == 2
    assert registry.value(TRAIN_LOSS) is None


def test_a_declared_counter_starts_at_zero() -> None:
    registry = Registry()
    registry.declare(SERVING_ROWS_TOTAL, TABLE_ROWS)
    assert parsed(registry.text()) == {("monolith_serving_rows_total",): 0}
    assert "# TYPE monolith_table_rows gauge" in registry.text()


def test_computed_and_collected_metrics_are_read_on_request() -> None:
    registry, values = Registry(), [1]
    registry.compute(PS_UP, lambda: values[0])
    registry.collect(lambda: [(TABLE_ROWS, [(("user",), values[0])])])
    assert set(parsed(registry.text()).values()) == {1}
    values[0] = 5
    assert parsed(registry.text()) == {("monolith_ps_up",): 5, ("monolith_table_rows", "user"): 5}


def test_labels_and_numbers_of_any_kind_survive_the_text_form() -> None:
    registry = Registry()
    name = 'a "table"\\ with\nlines'
    registry.export(TABLE_ROWS, np.int64(7), (name,))  # type: ignore[arg-type]
    assert parsed(registry.text()) == {("monolith_table_rows", name): 7}
    for value in (math.inf, -math.inf, 1e300, np.float32(0.5)):
        registry.export(TRAIN_LOSS, float(value))
        assert parsed(registry.text())["monolith_train_loss",] == value
    registry.export(TRAIN_LOSS, math.nan)
    assert math.isnan(parsed(registry.text())["monolith_train_loss",])


def test_wrong_labels_and_a_falling_counter_are_refused() -> None:
    registry = Registry()
    with pytest.raises(ConfigError, match=r"monolith_kafka_lag_records .*'clicks'"):
        registry.export(KAFKA_LAG_RECORDS, 1, ("clicks",))
    with pytest.raises(ConfigError, match="monolith_train_steps_total got -1"):
        registry.export(TRAIN_STEPS_TOTAL, -1)
    assert parsed(registry.text()) == {}


def test_no_increment_is_lost_between_threads() -> None:
    registry = Registry()

    def count() -> None:
        for _ in range(1000):
            registry.export(TRAIN_STEPS_TOTAL, 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert registry.value(TRAIN_STEPS_TOTAL) == 4000


def test_calls_are_counted_with_their_errors_and_durations() -> None:
    clock = FakeClock()
    calls = CallMetrics(clock)
    with calls.call("Pull"):
        clock.advance_s(0.002)
    with calls.call("Pull") as outcome:
        outcome.has_failed = True
    with pytest.raises(ValueError), calls.call("Push"):
        raise ValueError
    snapshot = calls.snapshot()
    assert {name: (each["count"], each["errors"]) for name, each in snapshot.items()} == {
        "Pull": (2, 1),
        "Push": (1, 1),
    }
    samples = parsed(render([(PS_CALL_SECONDS, [((name,), each) for name, each in snapshot.items()])]))
    assert samples["monolith_ps_call_seconds_bucket", "Pull", "0.001"] == 1
    assert samples["monolith_ps_call_seconds_bucket", "Pull", "0.0025"] == 2
