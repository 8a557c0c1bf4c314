"""``RankConnection``: the channels of one rank to all other ranks, over ``torch.distributed``."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from monolith.core.errors import ClusterError, ConfigError
from monolith.training.groups.channel import Channel, short_reason
from monolith.training.groups.ranks.rank_env import RankInfo

__all__ = ["TIMEOUT_S", "RankConnection"]

logger = logging.getLogger(__name__)

TIMEOUT_S = 300.0
"""Timeout of one collective call."""
RENDEZVOUS_TIMEOUT_S = 600.0
"""Timeout of the rendezvous of all ranks."""


class RankConnection:
    """The connection with all other ranks: three channels, for three threads.

    Args:
        info: The rank of this process, and the address of rank 0.
        accelerator: ``cuda`` exchanges tensors on GPUs over NCCL, and everything else over gloo.
        timeout_s: Timeout of one collective call.
        rendezvous_timeout_s: Timeout of the rendezvous of all ranks.

    Raises:
        ClusterError: Not all ranks came to the rendezvous in time.
    """

    def __init__(
        self,
        info: RankInfo,
        *,
        accelerator: str = "cpu",
        timeout_s: float = TIMEOUT_S,
        rendezvous_timeout_s: float = RENDEZVOUS_TIMEOUT_S,
    ) -> None:
        if dist.is_initialized():
            raise ConfigError(
                "torch.distributed is in use in this process, expected one RankConnection at a time; close the other"
            )
        self.info = info
        self._device = torch.device("cpu")
        backend = "gloo"
        if accelerator == "cuda":
            torch.cuda.set_device(info.local_rank)
            self._device = torch.device("cuda", info.local_rank)
            backend = "cpu:gloo,cuda:nccl"
        timeout = timedelta(seconds=timeout_s)
        try:
            store = _meet(info, timedelta(seconds=rendezvous_timeout_s))
            store.set_timeout(timeout)
            dist.init_process_group(
                backend,
                store=dist.PrefixStore("monolith", store),  # type: ignore[attr-defined]
                rank=info.rank,
                world_size=info.size,
                timeout=timeout,
            )
        except (RuntimeError, ValueError) as error:
            raise ClusterError(
                f"rank {info.rank} of {info.size} did not reach the others at {info.host}:{info.port} in "
                f"{rendezvous_timeout_s:g} s ({short_reason(error)}); check that all ranks run, and the address"
            ) from error
        self.steps = self._channel(dist.group.WORLD)
        """The channel of the thread that trains."""
        self.rows = self._channel(dist.new_group(backend=backend, timeout=timeout))
        """The channel of the thread that pulls rows, possibly ahead of the step."""
        self.saves = Channel(dist.new_group(backend="gloo", timeout=timeout), info.rank, info.size, torch.device("cpu"))
        """The channel of the thread that writes checkpoints."""
        logger.info("rank connected rank=%d size=%d address=%s:%d", info.rank, info.size, info.host, info.port)

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.info.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.info.size

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0."""
        return self.info.rank == 0

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        if dist.is_initialized():
            with suppress(RuntimeError):  # a rank that has ended already
                dist.destroy_process_group()
        # Without references the groups close their store, so that the next connection can use its port.
        for channel in (self.steps, self.rows, self.saves):
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _channel(self, group: Any) -> Channel:
        return Channel(group, self.info.rank, self.info.size, self._device)


def _meet(info: RankInfo, timeout: timedelta) -> Any:
    if info.size == 1:
        return dist.HashStore()  # type: ignore[attr-defined]
    host = f"[{info.host}]" if ":" in info.host else info.host
    url = f"tcp://{host}:{info.port}"
    store, _, _ = next(rendezvous(url, info.rank, info.size, timeout=timeout))
    return store
