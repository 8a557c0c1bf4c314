"""The calculator: its bytes per row are those of a real table, and wrong values are refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import monolith as mt
from monolith.cli.main import app
from monolith.core.errors import ConfigError
from monolith.training.cluster.sizing import Workload, size_cluster

DEMAND: dict[str, Any] = {"rows": 1_500_000, "dim": 16, "events_per_s": 10_000, "ids_per_event": 20}


@pytest.mark.parametrize(("optimizer", "rule"), [("adagrad", mt.Adagrad(0.1)), ("adam", mt.optim.Adam(0.1))])
def test_the_bytes_per_row_are_those_of_a_real_table(optimizer: str, rule: Any) -> None:
    table = mt.Table(mt.TableSpec("t", [mt.SliceSpec(16, optimizer=rule)]))
    ids = np.random.default_rng(0).permutation(DEMAND["rows"]).astype(np.int64) + 1
    table.assign(ids, np.zeros((len(ids), 16), np.float32))
    estimate = size_cluster(Workload(**DEMAND, optimizer=optimizer))
    assert estimate.bytes_per_row == pytest.approx(table.memory_bytes / len(ids), rel=0.1)


def test_servers_follow_memory_and_rate_and_workers_follow_events() -> None:
    small = size_cluster(Workload(**DEMAND))
    assert (small.servers, small.workers) == (1, 1)
    large = size_cluster(Workload(**{**DEMAND, "rows": 10**10}))
    assert large.servers == large.servers_for_memory > large.servers_for_rate
    assert large.memory_per_server <= 32e9 * 0.7
    busy = size_cluster(Workload(**{**DEMAND, "events_per_s": 2_000_000}))
    assert busy.servers == busy.servers_for_rate > busy.servers_for_memory
    assert busy.workers == 36


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows is 0, expected a number above 0"),
        ({"events_per_s": float("nan")}, "events_per_s is nan"),
        ({"load": 1.5}, "load is 1.5, expected a share up to 1"),
        ({"optimizer": "adamm"}, "optimizer is 'adamm', expected one of sgd, adagrad"),
    ],
)
def test_a_wrong_demand_is_refused_by_its_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Workload(**{**DEMAND, **change})


def test_the_command_prints_a_table_or_json() -> None:
    arguments = ["size", "--rows", "1e9", "--dim", "16", "--events-per-s", "1e5", "--ids-per-event", "30"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0
    assert "7 (7 for memory, 2 for the rate)" in shown.output
    assert json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)["workers"] == 2
