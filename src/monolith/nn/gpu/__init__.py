"""Tables in the memory of a GPU, with kernels that are compiled at first use."""

from monolith.nn.gpu.store import GpuStore
from monolith.nn.gpu.table import GpuTable
from monolith.nn.gpu.table_set import GpuTableSet

__all__ = ["GpuStore", "GpuTable", "GpuTableSet"]
