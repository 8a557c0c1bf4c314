"""The ranks as one of them sees the others: what they say to each other, over ``torch.distributed``.

The only module that calls it. Every call is made by all ranks, in the same order per channel; a rank that is lost ends
the wait of the others with one error. What is said is none of its business.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from monolith.core.errors import ClusterError, ConfigError
from monolith.training.synchronous.rank_place import RankPlace

__all__ = ["Channel", "Peers", "PeersLost", "told_reason"]

logger = logging.getLogger(__name__)

Numbers = NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)

TIMEOUT_S = 300.0
"""How long a rank waits for the others in one call."""
MEETING_TIMEOUT_S = 600.0
"""How long all ranks may take to be there."""


class PeersLost(ClusterError):
    """Another process of a group has ended or stands still.

    Attributes:
        reason: What was being done, and what torch said of it.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Channel:
    """Calls among all ranks that one thread makes; another thread has another channel.

    Args:
        group: The process group of its own.
        rank: Which rank this is.
        size: How many there are.
        device: Where the tensors of ``exchange`` travel from: the GPU for NCCL, else the host.
    """

    def __init__(self, group: Any, rank: int, size: int, device: torch.device) -> None:
        self._group = group
        self.rank = rank
        self.size = size
        self._device = device

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over all ranks, the same on all of them; return it."""
        with self._together("adding up"):
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def numbers(self, own: Sequence[int]) -> Numbers:
        """Return the numbers of all ranks, one row each; every rank gives the same number of them."""
        mine = torch.tensor(list(own), dtype=torch.int64)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        with self._together("agreeing"):
            dist.all_gather(rows, mine, group=self._group)
        found: Numbers = torch.stack(rows).numpy()
        return found

    def exchange(self, values: NDArray[_Scalar], sent: Sequence[int], received: Sequence[int]) -> NDArray[_Scalar]:
        """Send a part of flat values to each rank; return what each rank sent here, in rank order.

        Args:
            values: The parts, one after the other.
            sent: Length of each part.
            received: Length of the part that comes from each rank.
        """
        outgoing = torch.from_numpy(np.ascontiguousarray(values)).to(self._device)
        incoming = torch.empty(sum(received), dtype=outgoing.dtype, device=self._device)
        with self._together("exchanging rows"):
            dist.all_to_all_single(incoming, outgoing, list(received), list(sent), group=self._group)
        found: NDArray[_Scalar] = incoming.cpu().numpy()
        return found

    def spread(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Replace a tensor by that of one rank; return it."""
        with self._together("sharing weights"):
            dist.broadcast(tensor, group=self._group, group_src=source)
        return tensor

    def from_chief(self, content: bytes = b"", source: int = 0) -> bytes:
        """Return what rank 0 gave; what others gave is not looked at."""
        length = self.spread(torch.tensor([len(content)], dtype=torch.int64), source)
        found = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == source:
            found = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else found
        if len(found):
            self.spread(found, source)
        return found.numpy().tobytes()

    def to_chief(self, content: bytes) -> list[bytes]:
        """Return at rank 0 what each rank gave, in rank order; elsewhere nothing."""
        lengths = self.numbers([len(content)])[:, 0]
        padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
        if content:
            padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        rows = [torch.empty_like(padded) for _ in range(self.size)] if self.is_chief else None
        if len(padded):
            with self._together("reporting to rank 0"):
                dist.gather(padded, rows, group=self._group)
        return [row.numpy().tobytes()[:length] for row, length in zip(rows or (), lengths, strict=False)]

    @contextmanager
    def _together(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch has no other for a lost rank or a timeout
            reason = told_reason(error)
            raise PeersLost(
                f"rank {self.rank} of {self.size} lost the others while {what} ({reason}); another rank "
                "has ended or stands still: see what it said. Start all of them again to go on from the last "
                "checkpoint",
                reason=f"{what}: {reason}",
            ) from error

    def close(self) -> None:
        """Let go of the group: without another holder its connections end, and the others see it."""
        self._group = None


class Peers:
    """The connection with all other ranks; three channels, for three threads.

    Args:
        place: Which rank this is, and where rank 0 waits.
        accelerator: ``cuda`` exchanges over NCCL what is on GPUs, and everything else over gloo.
        timeout_s: How long a rank waits for the others in one call.
        meeting_timeout_s: How long all of them may take to be there.

    Raises:
        ClusterError: Not all ranks came.
    """

    def __init__(
        self,
        place: RankPlace,
        *,
        accelerator: str = "cpu",
        timeout_s: float = TIMEOUT_S,
        meeting_timeout_s: float = MEETING_TIMEOUT_S,
    ) -> None:
        if dist.is_initialized():
            raise ConfigError("torch.distributed is in use in this process; one Peers at a time: close the other first")
        self.place = place
        self._device = torch.device("cpu")
        backend = "gloo"
        if accelerator == "cuda":
            torch.cuda.set_device(place.local_rank)
            self._device = torch.device("cuda", place.local_rank)
            backend = "cpu:gloo,cuda:nccl"
        timeout = timedelta(seconds=timeout_s)
        try:
            store = _meet(place, timedelta(seconds=meeting_timeout_s))
            store.set_timeout(timeout)
            dist.init_process_group(
                backend,
                store=dist.PrefixStore("monolith", store),  # type: ignore[attr-defined]
                rank=place.rank,
                world_size=place.size,
                timeout=timeout,
            )
        except (RuntimeError, ValueError) as error:
            raise ClusterError(
                f"rank {place.rank} of {place.size} has not found the others at {place.host}:{place.port} in "
                f"{meeting_timeout_s:g} s ({told_reason(error)}); check that all ranks were started, and the address"
            ) from error
        self.steps = self._channel(dist.group.WORLD)
        """Of the thread that trains."""
        self.rows = self._channel(dist.new_group(backend=backend, timeout=timeout))
        """Of whoever pulls rows, maybe ahead."""
        self.saves = Channel(
            dist.new_group(backend="gloo", timeout=timeout), place.rank, place.size, torch.device("cpu")
        )
        """Of the thread that writes checkpoints."""
        logger.info("rank %d of %d is connected at=%s:%d", place.rank, place.size, place.host, place.port)

    @property
    def rank(self) -> int:
        """Which rank this is."""
        return self.place.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self.place.size

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0."""
        return self.place.rank == 0

    def close(self) -> None:
        """Let the others go; a second call does nothing."""
        if dist.is_initialized():
            with suppress(RuntimeError):  # a rank that is gone already
                dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _channel(self, group: Any) -> Channel:
        return Channel(group, self.place.rank, self.place.size, self._device)


def _meet(place: RankPlace, timeout: timedelta) -> Any:
    if place.size == 1:
        return dist.HashStore()  # type: ignore[attr-defined]
    host = f"[{place.host}]" if ":" in place.host else place.host
    url = f"tcp://{host}:{place.port}"
    store, _, _ = next(rendezvous(url, place.rank, place.size, timeout=timeout))
    return store


def told_reason(error: BaseException) -> str:
    """Return what torch says, without the place in its source and its advice."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"^\[[^]]*:\d+\] ", "", line).partition(". ")[0].rstrip(".")
