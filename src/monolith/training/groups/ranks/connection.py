"""``RankConnection``: the channels of one rank to all other ranks, over ``torch.distributed``."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError
from monolith.embedding.ranks.channel import Channel, short_reason
from monolith.training.groups.ranks.rank_env import RankInfo

__all__ = ["TIMEOUT_S", "RankConnection"]

logger = logging.getLogger(__name__)

TIMEOUT_S = 300.0
"""Timeout of one collective call."""
RENDEZVOUS_TIMEOUT_S = 600.0
"""Timeout of the rendezvous of all ranks."""
_LEAVE_S = 5.0
"""Timeout of rank 0 for the other ranks to leave."""
_MEET_AGAIN_S = 0.05


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
            self._store = _meet(info, timedelta(seconds=rendezvous_timeout_s))
            self._store.set_timeout(timeout)
            dist.init_process_group(
                backend,
                store=dist.PrefixStore("monolith", self._store),  # type: ignore[attr-defined]
                rank=info.rank,
                world_size=info.size,
                timeout=timeout,
            )
            self.steps = self._channel(dist.group.WORLD)
            """The channel of the thread that trains."""
            self.rows = self._channel(dist.new_group(backend=backend, timeout=timeout))
            """The channel of the thread that pulls rows, possibly ahead of the step."""
            saves = dist.new_group(backend="gloo", timeout=timeout)
            self.saves = Channel(saves, info.rank, info.size, torch.device("cpu"))
            """The channel of the thread that writes checkpoints."""
        except (RuntimeError, ValueError) as error:
            if dist.is_initialized():  # a rank was lost after it had come
                dist.destroy_process_group()
            raise ClusterError(
                f"rank {info.rank} of {info.size} did not reach the others at {info.host}:{info.port} in "
                f"{rendezvous_timeout_s:g} s ({short_reason(error)}); check that all ranks run, and the address"
            ) from error
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

    def leave(self) -> None:
        """Close the connections when all ranks are done, so that they can connect again at the same address.

        Rank 0 has the store of the rendezvous, and closes it after the other ranks, which mark the store they leave.
        A rank that connects again before rank 0 has closed the store finds its mark, and tries again.
        """
        store, self._store = self._store, None
        if store is not None and self.size > 1:
            with suppress(RuntimeError):  # a rank that has ended already
                if self.is_chief:
                    store.wait([_mark(rank) for rank in range(1, self.size)], timedelta(seconds=_LEAVE_S))
                else:
                    store.add(_mark(self.rank), 1)  # answered, so that no later question overtakes the mark
        del store
        self.close()

    def close(self) -> None:
        """Close the connections without a wait for other ranks; a second call does nothing."""
        self._store = None
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
        if kind is None:
            self.leave()
        else:
            self.close()

    def _channel(self, group: Any) -> Channel:
        return Channel(group, self.info.rank, self.info.size, self._device)


def _meet(info: RankInfo, timeout: timedelta) -> Any:
    if info.size == 1:
        return dist.HashStore()  # type: ignore[attr-defined]
    host = f"[{info.host}]" if ":" in info.host else info.host
    url = f"tcp://{host}:{info.port}"
    deadline = Deadline(SystemClock(), timeout.total_seconds())
    while True:
        try:
            store, _, _ = next(rendezvous(url, info.rank, info.size, timeout=timedelta(seconds=deadline.remaining_s())))
            if info.rank == 0 or not store.check([_mark(info.rank)]):
                return store
            del store
        except dist.DistNetworkError:  # rank 0 closed the store of the connection before during the rendezvous
            if info.rank == 0 or deadline.is_past:
                raise
        if deadline.is_past:
            raise RuntimeError("rank 0 has not closed its connection before this one")
        time.sleep(_MEET_AGAIN_S)


def _mark(rank: int) -> str:
    return f"left/{rank}"
