"""``GpuDevice``: the memory, kernels and streams that tables use, and ``CudaDevice``, a GPU.

Tables reach a GPU only through this interface. Tests run the same tables and the same text of kernels on the processor
by another implementation.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from monolith.core.errors import ConfigError
from monolith.nn.gpu.program import Program

__all__ = ["CopyEvent", "CudaDevice", "GpuDevice", "Kernels", "open_device"]


class Kernels(Protocol):
    """The compiled kernels of one text."""

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Queue one kernel on the current stream; a tensor is passed as its address."""
        ...


class CopyEvent(Protocol):
    """A point in the work of a stream."""

    def record(self) -> None:
        """Move the point behind all work that is queued now."""
        ...

    def query(self) -> bool:
        """Return whether the work before the point is done."""
        ...

    def synchronize(self) -> None:
        """Wait for the work before the point."""
        ...


@runtime_checkable
class GpuDevice(Protocol):
    """A device with tensors and kernels."""

    @property
    def place(self) -> torch.device:
        """Device of tensors."""
        ...

    @property
    def processors(self) -> int:
        """Multiprocessors, for the sizes of grids."""
        ...

    @property
    def is_capturing(self) -> bool:
        """Whether the current stream records a graph instead of working."""
        ...

    def compile(self, text: str) -> Kernels:
        """Return the kernels of CUDA C++."""
        ...

    def make_event(self) -> CopyEvent:
        """Return an event that is not recorded yet."""
        ...

    def make_host_tensor(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor of zeros in host memory from which copies are asynchronous."""
        ...

    def make_staging(self, size: int) -> Tensor:
        """Return bytes in host memory from which copies are asynchronous, with any content."""
        ...

    def upload(self, array: NDArray[Any]) -> Tensor:
        """Return a copy on the device; the call does not wait."""
        ...

    def synchronize(self) -> None:
        """Wait for the current stream."""
        ...


class CudaDevice:
    """A GPU of this machine.

    Args:
        place: The GPU; "cuda" is the current one.

    Raises:
        ConfigError: torch finds no GPU.
    """

    def __init__(self, place: str | torch.device = "cuda") -> None:
        if not torch.cuda.is_available():
            raise ConfigError(f"device is {str(place)!r}, and torch finds no GPU; use device='cpu'")
        self.place = torch.device(place)
        self.processors = torch.cuda.get_device_properties(self.place).multi_processor_count

    @property
    def is_capturing(self) -> bool:
        """Whether the current stream records a graph."""
        return torch.cuda.is_current_stream_capturing()

    def compile(self, text: str) -> Program:
        """Return the kernels of CUDA C++, compiled at first use."""
        with torch.cuda.device(self.place):
            torch.zeros(1, device=self.place)  # makes the context
            return Program(text, self.place)

    def make_event(self) -> CopyEvent:
        """Return an event of CUDA."""
        with torch.cuda.device(self.place):
            event: CopyEvent = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return event

    def make_host_tensor(self, *shape: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor of zeros in pinned memory."""
        return torch.zeros(shape, dtype=dtype).pin_memory()

    def make_staging(self, size: int) -> Tensor:
        """Return bytes in pinned memory. torch reuses them when their copies are done."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def upload(self, array: NDArray[Any]) -> Tensor:
        """Return a copy on the GPU, by an asynchronous transfer from pinned memory."""
        given = np.ascontiguousarray(array)
        staging = self.make_staging(given.nbytes)
        staging.numpy()[:] = given.reshape(-1).view(np.uint8)  # pin_memory() copies by threads, and waits for them
        copy = staging.to(self.place, non_blocking=True)
        return copy.view(torch.from_numpy(np.empty(0, given.dtype)).dtype).view(given.shape)

    def synchronize(self) -> None:
        """Wait for the current stream."""
        torch.cuda.current_stream(self.place).synchronize()


def open_device(device: str | torch.device | GpuDevice) -> GpuDevice:
    """Return the device with a name; a ``GpuDevice`` is returned as it is."""
    if isinstance(device, str | torch.device):
        return CudaDevice(device)
    return device
