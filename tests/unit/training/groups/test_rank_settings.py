"""Settings of one rank: rank 0 reports for all ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from monolith.training.config import RunConfig
from monolith.training.groups.ranks import Ranks


def settings_of(rank: int, config: RunConfig) -> RunConfig:
    connection: Any = SimpleNamespace(rank=rank, size=2, steps=None)
    return Ranks(connection).member_config(config)


def test_only_rank_0_sends_the_metrics_of_a_run_to_a_logger() -> None:
    config = RunConfig(model_dir="model", logger="wandb", logger_offline=True)
    loggers = [settings_of(rank, config).metrics.experiment for rank in range(2)]
    assert [(each.logger, each.logger_offline) for each in loggers] == [("wandb", True), (None, False)]
