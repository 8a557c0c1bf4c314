"""Alert rules name metrics and labels that exist, so that an alert can fire."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from monolith.telemetry import names as metrics

RULES = Path(__file__).parents[3] / "deploy" / "prometheus" / "alerts.yaml"
KNOWN = {metric.name: metric for metric in metrics.ALL}
EVERY = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", EVERY, ids=[rule["alert"] for rule in EVERY])
def test_a_rule_uses_known_metrics_and_labels_and_has_an_action(rule: dict[str, object]) -> None:
    names = re.findall(r"monolith_\w+", str(rule["expr"]))
    assert names
    assert set(names) <= set(KNOWN)
    labels = {label for name in names for label in KNOWN[name].labels} | {"instance"}
    annotations = rule["annotations"]
    assert isinstance(annotations, dict)
    assert set(re.findall(r"\$labels\.(\w+)", annotations["summary"])) <= labels
    assert set(re.findall(r'{(\w+)="', str(rule["expr"]))) <= labels
    assert set(re.findall(r"monolith_\w+", annotations["action"])) <= set(KNOWN)
