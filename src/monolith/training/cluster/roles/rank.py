"""The role of a rank: trains together with the other ranks, from the settings and the environment of the launcher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monolith.core.config_sections import replace_settings
from monolith.core.errors import ConfigError
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.groups.ranks import RankConnection, RankInfo, Ranks, read_rank_env
from monolith.training.groups.ranks.connection import TIMEOUT_S
from monolith.training.hooks import Hook
from monolith.training.runner import Job

__all__ = ["run_rank"]


def run_rank(
    config: ClusterJobConfig, environment: Mapping[str, str], *, hooks: Sequence[Hook] = ()
) -> dict[str, float] | None:
    """Train as the rank of the environment, to the end of the job; return the metrics at rank 0, None elsewhere.

    Raises:
        ConfigError: The settings do not fit ranks, or the environment contradicts itself.
        ClusterError: Another rank was lost, or did not come to the rendezvous.
    """
    info = read_rank_env(environment)
    _check(config, info)
    timeout_s = config.cluster.wait.operation_timeout_s or TIMEOUT_S
    with RankConnection(
        info,
        accelerator=config.run.runtime.accelerator,
        timeout_s=timeout_s,
        rendezvous_timeout_s=config.cluster.wait.session_creation_timeout_s,
    ) as connection:
        placed = replace_settings(config, index=info.rank, num_workers=info.size)
        metrics = Job(placed, hooks=hooks, group=Ranks(connection, half=config.cluster.sync.fp16_exchange)).train()
    return metrics if info.rank == 0 else None


def _check(config: ClusterJobConfig, info: RankInfo) -> None:
    """Refuse settings that do not fit ranks, before the rendezvous."""
    for field, value, expected in (
        ("index", config.run.runtime.index, info.rank),
        ("num_workers", config.run.runtime.num_workers, info.size),
    ):
        if value not in (expected, 0 if field == "index" else 1):
            raise ConfigError(
                f"{field} is {value}, expected {expected}: this is rank {info.rank} of {info.size}; omit {field}, the "
                "launcher sets it"
            )
    if config.input.data == "-" and info.size > 1:
        raise ConfigError(f"data is '-', and {info.size} ranks cannot share standard input; give files or Kafka")
