"""Metric names are listed once and follow the conventions of Prometheus."""

from __future__ import annotations

import re

from monolith.telemetry import names as metrics
from monolith.telemetry.names import MetricSpec


def test_every_metric_is_listed_once_and_public() -> None:
    constants = {name for name, value in vars(metrics).items() if isinstance(value, MetricSpec)}
    assert constants | {"ALL", "BOUNDS_US", "MetricSpec"} == set(metrics.__all__)
    assert len({metric.name for metric in metrics.ALL}) == len(metrics.ALL) == len(constants)


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in metrics.ALL:
        assert re.fullmatch(r"monolith_[a-z0-9_]+", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name


def test_a_constant_is_named_after_its_metric() -> None:
    for metric in metrics.ALL:
        assert getattr(metrics, metric.name.removeprefix("monolith_").upper()) is metric
