"""The moment that a job on parameter servers publishes: rows of all servers, and the dense weights that belong to them.

What is written, and where to, is the business of ``monolith.sync``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from monolith.artifacts.delta_log import LogPosition
from monolith.embedding.store import Ids
from monolith.embedding.store import Rows as Floats
from monolith.sync.publisher import Weights
from monolith.sync.remote_rows import Flush
from monolith.training.distributed.shared_rows import WEIGHTS, joined_weights
from monolith.training.distributed.worker_hook import weights_of

__all__ = ["FlushedServers", "flush_alone", "flush_jointly"]


class FlushedServers(Protocol):
    """Servers whose logs can be brought up to date."""

    def flush_positions(self) -> tuple[LogPosition, ...]:
        """Have every server write its log now; return where each is."""
        ...

    def flush_jointly(self, table: str) -> tuple[tuple[LogPosition, ...], Ids, Floats]:
        """Have them write their logs as they are at one moment; return also a table's ids and rows of that moment."""
        ...


def flush_alone(servers: FlushedServers, between_steps: AbstractContextManager[None]) -> Flush:
    """Return how the one worker of a job publishes.

    Args:
        servers: The servers.
        between_steps: Keeps the worker from pushing while it is entered: then all servers have all of its pushes.
    """

    def flush(take: Callable[[], Weights]) -> tuple[Sequence[LogPosition], Weights]:
        servers.flush_positions()  # so that little is left to be written while the worker waits
        with between_steps:
            return servers.flush_positions(), take()

    return flush


def flush_jointly(servers: FlushedServers, between_steps: AbstractContextManager[None], model: nn.Module) -> Flush:
    """Return how the chief of several workers publishes, whatever the others do meanwhile.

    The weights are those that the workers share. What they do not share, such as running statistics of layers, is the
    chief's, as in a checkpoint.

    Args:
        servers: The servers.
        between_steps: Keeps the chief from a step while it is entered.
        model: The chief's.
    """

    def flush(take: Callable[[], Weights]) -> tuple[Sequence[LogPosition], Weights]:
        with between_steps:
            own = take()
        positions, ids, rows = servers.flush_jointly(WEIGHTS)
        return positions, _with_shared(model, own, ids, rows)

    return flush


def _with_shared(model: nn.Module, own: Weights, ids: NDArray[np.int64], rows: Floats) -> Weights:
    shared = weights_of(model)
    joined = joined_weights(ids, rows, sum(weight.numel() for weight in shared))
    parts: dict[int, Floats] = {}
    begin = 0
    for weight in shared:
        parts[id(weight)] = joined[begin : begin + weight.numel()]
        begin += weight.numel()
    found: dict[str, NDArray[Any]] = dict(own)
    for name, weight in model.state_dict(keep_vars=True).items():  # a weight may have several names
        if id(weight) in parts:
            found[name] = parts[id(weight)].reshape(found[name].shape).astype(found[name].dtype)
    return found
