"""Chooses the GPU of one of several processes on a machine."""

from __future__ import annotations

from monolith.core.errors import ConfigError

__all__ = ["visible_gpu"]


def visible_gpu(local_rank: int, processes_per_gpu: int = 1) -> str:
    """Return the number of the GPU, as ``CUDA_VISIBLE_DEVICES`` wants it.

    >>> visible_gpu(3, processes_per_gpu=2)
    '1'

    Raises:
        ConfigError: The rank is negative, or there is no process per GPU.
    """
    if local_rank < 0 or processes_per_gpu < 1:
        raise ConfigError(
            f"rank {local_rank} with {processes_per_gpu} processes per GPU; give 0 or more, and 1 or more"
        )
    return str(local_rank // processes_per_gpu)
