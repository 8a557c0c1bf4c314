"""One rank of a job from its settings and its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from monolith.core.errors import ConfigError
from monolith.training.distributed.job_config import ClusterJobConfig
from monolith.training.hooks import Hook
from monolith.training.runner import Job
from monolith.training.synchronous.peer_estimator import PeerEstimator
from monolith.training.synchronous.peers import TIMEOUT_S, Peers
from monolith.training.synchronous.rank_place import RankPlace, read_place

__all__ = ["run_rank"]


def run_rank(
    config: ClusterJobConfig, environment: Mapping[str, str], *, hooks: Sequence[Hook] = ()
) -> dict[str, float] | None:
    """Be the rank that the environment says, to the end of the job; return the metrics at rank 0, None elsewhere.

    Raises:
        ConfigError: The settings do not go with ranks, or the environment contradicts itself.
        ClusterError: Another rank was lost, or did not come.
    """
    place = read_place(environment)
    _check(config, place)
    timeout_s = TIMEOUT_S if config.operation_timeout_in_ms is None else config.operation_timeout_in_ms / 1000
    with Peers(
        place,
        accelerator=config.accelerator,
        timeout_s=timeout_s,
        meeting_timeout_s=config.session_creation_timeout_secs,
    ) as peers:
        placed = replace(config, index=place.rank, num_workers=place.size)
        metrics = Job(placed, hooks=hooks, make_estimator=partial(PeerEstimator, peers=peers)).train()
    return metrics if place.rank == 0 else None


def _check(config: ClusterJobConfig, place: RankPlace) -> None:
    """Refuse what ranks cannot do, before they wait for each other."""
    for field, given, found in (("index", config.index, place.rank), ("num_workers", config.num_workers, place.size)):
        if given not in (found, 0 if field == "index" else 1):
            raise ConfigError(
                f"{field} is {given}, but this is rank {place.rank} of {place.size}; leave {field} away, the launcher "
                "says it"
            )
    if config.data == "-" and place.size > 1:
        raise ConfigError(f"data is '-', and {place.size} ranks cannot share standard input; give files or Kafka")
