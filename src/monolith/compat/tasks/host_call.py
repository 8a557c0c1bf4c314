"""Gathers values of steps: packed by dtype for one transfer, or over a window of steps.

The caller writes the values and computes metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from monolith.core.errors import ConfigError

__all__ = ["UID_BUCKETS", "BaseHostCall", "MetricWindow", "accumulate", "sampled_rows"]

UID_BUCKETS = 1000
_STEP = "global_step"


def accumulate(base: Tensor, delta: Tensor, offset: int) -> Tensor:
    """Return ``base`` with ``delta`` added from index ``offset``, as in a ring: indices past the end wrap to the front.

    Shapes: base (N,), delta (n,) with n ≤ N; result (N,).

    >>> accumulate(torch.zeros(5), torch.ones(2), 4).tolist()
    [1.0, 0.0, 0.0, 0.0, 1.0]

    Raises:
        ConfigError: A tensor is not one-dimensional, or ``delta`` is longer than ``base``.
    """
    if base.dim() != 1 or delta.dim() != 1 or len(delta) > len(base):
        raise ConfigError(
            f"shapes are {tuple(base.shape)} and {tuple(delta.shape)}; give two vectors, the second not the longer"
        )
    padded = torch.nn.functional.pad(delta, (0, len(base) - len(delta)))
    return base + padded.roll(offset)


def sampled_rows(uid: Tensor, ratio: float = 0.01, most: int | None = 6) -> Tensor:
    """Return the places of the rows that are sampled: those of users whose bucket, uid mod 1000, is below 1000 · ratio.

    Args:
        uid: (B,) integers.
        ratio: Share of the users.
        most: How many rows at most, the first ones; None for all.

    >>> sampled_rows(torch.tensor([5, 10, 1009, 2000])).tolist()
    [0, 2, 3]
    """
    places = (uid.remainder(UID_BUCKETS) < UID_BUCKETS * ratio).nonzero().squeeze(1)
    return places[:most]


class BaseHostCall:
    """Collects named vectors of a step and packs those of one dtype into one tensor.

    >>> call = BaseHostCall()
    >>> call.record_summary_tensor("loss", torch.tensor(0.5))
    >>> call.record_summary_tensor("labels", torch.tensor([1.0, 0.0]))
    >>> packed = call.compress_tensors(global_step=7)
    >>> [tuple(tensor.shape) for tensor in packed]
    [(1, 1), (1, 3)]
    >>> step, values = call.decompress_tensors(packed)
    >>> step, values["labels"].tolist()
    (7, [1.0, 0.0])

    Args:
        output_dir: Folder in which a subclass writes its results.
        enable_host_call: Whether anything is recorded.
    """

    def __init__(self, output_dir: str = "", enable_host_call: bool = True) -> None:
        self.output_dir = output_dir
        self.enable_host_call = enable_host_call
        self._tensors: dict[str, Tensor] = {}
        self._groups: list[list[tuple[str, int]]] = []

    def record_summary_tensor(self, name: str, tensor: Tensor) -> None:
        """Record a scalar or a vector for the next transfer.

        Raises:
            ConfigError: The name is taken, or the tensor has more than one axis.
        """
        if not self.enable_host_call:
            return
        if name == _STEP or name in self._tensors:
            raise ConfigError(f"{name!r} is recorded already; give another name")
        if tensor.dim() > 1:
            raise ConfigError(f"{name!r} has shape {tuple(tensor.shape)}; record scalars and vectors only")
        self._tensors[name] = tensor.reshape(-1)

    def compress_tensors(self, global_step: int) -> list[Tensor]:
        """Return one tensor (1, n) per dtype, that of the step first, and reset the recorded vectors."""
        named = {_STEP: torch.tensor([global_step], dtype=torch.int64)} | self._tensors
        by_dtype: dict[torch.dtype, list[str]] = {}
        for name, tensor in named.items():
            by_dtype.setdefault(tensor.dtype, []).append(name)
        self._tensors = {}
        self._groups = [[(name, len(named[name])) for name in names] for names in by_dtype.values()]
        return [torch.cat([named[name] for name in names]).unsqueeze(0) for names in by_dtype.values()]

    def decompress_tensors(self, tensors: Sequence[Tensor]) -> tuple[int, dict[str, Tensor]]:
        """Return the step and the vectors of the last ``compress_tensors``.

        Tensors of several replicas, stacked to (replicas, n), give vectors with those of all replicas in a row.

        Raises:
            ConfigError: The tensors do not have the form that ``compress_tensors`` gave.
        """
        widths = [sum(size for _, size in group) for group in self._groups]
        if [tensor.shape[-1] for tensor in tensors] != widths or any(tensor.dim() != 2 for tensor in tensors):
            shapes = [tuple(tensor.shape) for tensor in tensors]
            raise ConfigError(f"the tensors have shapes {shapes}; give those of compress_tensors, with widths {widths}")
        values: dict[str, Tensor] = {}
        for group, tensor in zip(self._groups, tensors, strict=True):
            parts = torch.split(tensor, [size for _, size in group], dim=1)
            values |= {name: part.reshape(-1) for (name, _), part in zip(group, parts, strict=True)}
        step = values.pop(_STEP)
        return int(step[0]), values

    def generate_host_call_hook(self) -> object | None:
        """Return the function to call with the tensors of a step; None = no function."""
        return None


class MetricWindow:
    """Vectors gathered over a window of steps, in memory of a fixed size.

    A window begins with the step after a multiple of ``every_n_steps`` and is complete with the next multiple.

    >>> window = MetricWindow(every_n_steps=2, rows_per_step=3)
    >>> window.add(1, {"label": torch.tensor([1.0, 0.0])})
    False
    >>> window.add(2, {"label": torch.tensor([1.0])})
    True
    >>> window.values()["label"].tolist()
    [1.0, 0.0, 1.0]

    Args:
        every_n_steps: Steps of a window.
        rows_per_step: Most rows that a step adds.
    """

    def __init__(self, every_n_steps: int, rows_per_step: int) -> None:
        if every_n_steps < 1 or rows_per_step < 1:
            raise ConfigError(f"a window has {every_n_steps} steps of {rows_per_step} rows; both must be 1 or more")
        self.every_n_steps = every_n_steps
        self.rows_per_step = rows_per_step
        self.count = 0
        """Rows gathered in this window."""
        self._buffers: dict[str, Tensor] = {}

    def add(self, step: int, rows: Mapping[str, Tensor]) -> bool:
        """Add the rows of a step, all vectors of one length; return whether the window is complete.

        Raises:
            ConfigError: The lengths differ, are too long, or the names are others than before.
        """
        if (step - 1) % self.every_n_steps == 0:
            self._buffers, self.count = {}, 0
        sizes = {name: tuple(vector.shape) for name, vector in rows.items()}
        if len(set(sizes.values())) != 1 or any(vector.dim() != 1 for vector in rows.values()):
            raise ConfigError(f"the rows of step {step} have shapes {sizes}; give vectors of one length")
        if self._buffers and self._buffers.keys() != rows.keys():
            raise ConfigError(f"step {step} gives {sorted(rows)}, steps before {sorted(self._buffers)}; keep the names")
        added = len(next(iter(rows.values())))
        room = self.every_n_steps * self.rows_per_step
        if added > self.rows_per_step or self.count + added > room:
            raise ConfigError(f"step {step} gives {added} rows; a step adds at most {self.rows_per_step}")
        for name, vector in rows.items():
            buffer = self._buffers.get(name)
            start = torch.zeros(room, dtype=vector.dtype, device=vector.device) if buffer is None else buffer
            self._buffers[name] = accumulate(start, vector.detach(), self.count)
        self.count += added
        return step % self.every_n_steps == 0

    def values(self) -> dict[str, Tensor]:
        """Return the vectors gathered in this window."""
        return {name: buffer[: self.count] for name, buffer in self._buffers.items()}
