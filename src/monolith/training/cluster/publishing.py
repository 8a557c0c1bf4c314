"""The instant that a job on parameter servers publishes: rows of all servers, and the dense weights of that instant.

``monolith.sync`` writes the files.
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
from monolith.training.cluster.job_state import WEIGHTS, join_weights
from monolith.training.cluster.worker_hook import weights_of

__all__ = ["FlushedServers", "flush_alone", "flush_jointly"]


class FlushedServers(Protocol):
    """Servers whose delta logs can be flushed."""

    def flush_positions(self) -> tuple[LogPosition, ...]:
        """Flush the log of every server; return the position of each."""
        ...

    def flush_jointly(self, table: str) -> tuple[tuple[LogPosition, ...], Ids, Floats]:
        """Flush all logs at one cut; return also the ids and rows of a table at that cut."""
        ...


def flush_alone(servers: FlushedServers, between_steps: AbstractContextManager[None]) -> Flush:
    """Return the flush of a job with one worker.

    Args:
        servers: The servers.
        between_steps: Keeps the worker between two steps, so that all servers have all of its pushes.
    """

    def flush(take: Callable[[], Weights]) -> tuple[Sequence[LogPosition], Weights]:
        servers.flush_positions()  # so that little remains to be written while the worker waits
        with between_steps:
            return servers.flush_positions(), take()

    return flush


def flush_jointly(servers: FlushedServers, between_steps: AbstractContextManager[None], model: nn.Module) -> Flush:
    """Return the flush of a job with several workers, which continue to train meanwhile.

    The weights are those that the workers share. Other values, such as running statistics of layers, are the chief's,
    as in a checkpoint.

    Args:
        servers: The servers.
        between_steps: Keeps the chief between two steps.
        model: The model of the chief.
    """

    def flush(take: Callable[[], Weights]) -> tuple[Sequence[LogPosition], Weights]:
        with between_steps:
            own = take()
        positions, ids, rows = servers.flush_jointly(WEIGHTS)
        return positions, _with_shared(model, own, ids, rows)

    return flush


def _with_shared(model: nn.Module, own: Weights, ids: NDArray[np.int64], rows: Floats) -> Weights:
    shared = weights_of(model)
    joined = join_weights(ids, rows, sum(weight.numel() for weight in shared))
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
