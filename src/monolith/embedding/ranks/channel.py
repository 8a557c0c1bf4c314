"""Collective calls among the processes of a group, over ``torch.distributed``.

Every process makes every call, in the same order per channel. A lost process ends the wait of the others with
``PeersLost``. A channel belongs to one thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from monolith.core.errors import ClusterError

__all__ = ["Channel", "PeersLost", "short_reason"]

Numbers = NDArray[np.int64]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class PeersLost(ClusterError):
    """Another process of a group has ended or does not answer.

    Attributes:
        reason: The call that failed, and torch's error.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Channel:
    """Collective calls that one thread makes; another thread has another channel.

    Args:
        group: The process group of this channel.
        rank: The rank of this process.
        size: The number of processes.
        device: The device of the tensors of ``all_to_all``: the GPU for NCCL, else the host.
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
        """Replace a tensor by its sum over all ranks, the same bytes on all of them; return it."""
        with self._collective("summing"):
            dist.all_reduce(tensor, group=self._group)
        return tensor

    def all_gather_ints(self, own: Sequence[int]) -> Numbers:
        """Return the numbers of all ranks, one row each; every rank gives equally many."""
        mine = torch.tensor(list(own), dtype=torch.int64)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        with self._collective("agreeing"):
            dist.all_gather(rows, mine, group=self._group)
        numbers: Numbers = torch.stack(rows).numpy()
        return numbers

    def all_to_all(self, values: NDArray[_Scalar], sent: Sequence[int], received: Sequence[int]) -> NDArray[_Scalar]:
        """Send a part of flat values to each rank; return the parts that came from each rank, in rank order.

        Args:
            values: The parts, one after the other.
            sent: Length of each part.
            received: Length of the part that comes from each rank.
        """
        outgoing = torch.from_numpy(np.ascontiguousarray(values)).to(self._device)
        incoming = torch.empty(sum(received), dtype=outgoing.dtype, device=self._device)
        with self._collective("exchanging rows"):
            dist.all_to_all_single(incoming, outgoing, list(received), list(sent), group=self._group)
        parts: NDArray[_Scalar] = incoming.cpu().numpy()
        return parts

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        """Replace a tensor by that of rank ``source``; return it."""
        with self._collective("broadcasting"):
            dist.broadcast(tensor, group=self._group, group_src=source)
        return tensor

    def broadcast_bytes(self, content: bytes = b"", source: int = 0) -> bytes:
        """Return the bytes of rank ``source``; those of other ranks are ignored."""
        length = self.broadcast(torch.tensor([len(content)], dtype=torch.int64), source)
        found = torch.empty(int(length), dtype=torch.uint8)
        if self.rank == source:
            found = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else found
        if len(found):
            self.broadcast(found, source)
        return found.numpy().tobytes()

    def gather_bytes(self, content: bytes) -> list[bytes]:
        """Return the bytes of each rank, in rank order, at rank 0; an empty list elsewhere."""
        lengths = self.all_gather_ints([len(content)])[:, 0]
        padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
        if content:
            padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        rows = [torch.empty_like(padded) for _ in range(self.size)] if self.is_chief else None
        if len(padded):
            with self._collective("gathering at rank 0"):
                dist.gather(padded, rows, group=self._group)
        if rows is None:
            return []
        return [row.numpy().tobytes()[:length] for row, length in zip(rows, lengths, strict=True)]

    @contextmanager
    def _collective(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch has no other for a lost rank or a timeout
            reason = short_reason(error)
            raise PeersLost(
                f"rank {self.rank} of {self.size} lost the others while {what} ({reason}); another rank has ended or "
                "does not answer: see its log. Restart all ranks to resume from the last checkpoint",
                reason=f"{what}: {reason}",
            ) from error

    def close(self) -> None:
        """Release the group. Its connections close with the last reference, and the others notice."""
        self._group = None


def short_reason(error: BaseException) -> str:
    """Return the first line of a torch error, without its source location and advice."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"^\[[^]]*:\d+\] ", "", line).partition(". ")[0].rstrip(".")
