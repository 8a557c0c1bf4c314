"""``HostGpu``: the stand-in of a GPU, which runs the kernels of GPU tables on the processor.

The text of the kernels is that of a GPU. ``host_cuda.h`` gives it the operations of CUDA that it uses, and g++ compiles
it. The stand-in and a GPU pass the same tests. It finds defects of logic, not of races: one thread runs everything.
"""

from __future__ import annotations

import ctypes
import functools
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from monolith.embedding import TableSpec
from monolith.nn.gpu import GpuTable

__all__ = ["HostGpu", "NumpyTable"]


class HostGpu:
    """A ``GpuDevice`` on the processor."""

    place = torch.device("cpu")
    processors = 1
    is_capturing = False

    def compile(self, text: str) -> HostKernels:
        return HostKernels(text)

    def make_event(self) -> DoneEvent:
        return DoneEvent()

    def make_host_tensor(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype)

    def make_staging(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def upload(self, array: Any) -> torch.Tensor:
        return torch.tensor(np.asarray(array))

    def synchronize(self) -> None:
        """Return: all work is done."""


class DoneEvent:
    """A ``CopyEvent`` without work before it."""

    def record(self) -> None:
        """Return: all work is done."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        """Return: all work is done."""


_turn = threading.Lock()  # one machine of host_cuda.h serves all threads


class HostKernels:
    """Kernels compiled by g++."""

    def __init__(self, text: str) -> None:
        self._library = _compile(text)

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        if blocks == 0:
            return
        values = [ctypes.c_void_p(each.data_ptr()) if isinstance(each, torch.Tensor) else each for each in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(each) for each in values))
        launch = getattr(self._library, f"launch_{name}")
        launch.restype = ctypes.c_bool
        with _turn:
            is_done = launch(ctypes.c_uint(blocks), ctypes.c_uint(threads), pointers)
        if not is_done:
            raise AssertionError(f"threads of kernel {name!r} wait for each other forever")


@functools.cache
def _compile(text: str) -> ctypes.CDLL:
    names = re.findall(r'extern "C" __global__ void (\w+)\(', text)
    calls = "".join(
        f'extern "C" bool launch_{name}(unsigned blocks, unsigned threads, void** arguments) {{\n'
        f"  return host_cuda::launch(host_cuda::Launcher<&{name}>::call, blocks, threads, arguments);\n}}\n"
        for name in dict.fromkeys(names)
    )
    folder = Path(tempfile.mkdtemp(prefix="monolith-host-gpu-"))
    source, library = folder / "kernels.cc", folder / "kernels.so"
    source.write_text(f'#include "host_cuda.h"\n{text}\n{calls}')
    options = ["-std=c++17", "-O0", "-ffp-contract=off", "-shared", "-fPIC", "-w", f"-I{Path(__file__).parent}"]
    compiler = shutil.which("g++")
    assert compiler is not None, "there is no g++; skip the test"
    try:
        subprocess.run([compiler, *options, str(source), "-o", str(library)], check=True, timeout=120)
        return ctypes.CDLL(str(library))
    finally:
        shutil.rmtree(folder)  # a loaded library stays


class NumpyTable:
    """A ``GpuTable`` with the calls of ``Table``: arrays instead of tensors.

    Args:
        spec: The table.
        device: The GPU, or its stand-in.
    """

    def __init__(self, spec: TableSpec, device: Any) -> None:
        self.table = GpuTable(spec, device)

    @property
    def spec(self) -> TableSpec:
        return self.table.spec

    @property
    def stats(self) -> Any:
        return self.table.stats

    @property
    def max_time_s(self) -> int:
        return self.table.max_time_s

    @property
    def memory_bytes(self) -> int:
        return self.table.memory_bytes

    def __len__(self) -> int:
        return len(self.table)

    def lookup(self, ids: Any, *, return_found: bool = False) -> Any:
        rows = self._call("lookup", ids)
        return (rows, self._call("contains", ids)) if return_found else rows

    def items(self, batch_size: int = 65536) -> Iterator[tuple[Any, Any]]:
        for ids, rows in self.table.items(batch_size):
            yield ids.cpu().numpy(), rows.cpu().numpy()

    def apply_gradients(self, ids: Any, grads: Any, *arguments: Any, step: int = 0, **settings: Any) -> None:
        names = ("learning_rates", "time_s", "step", "dedup")
        rates = settings.pop("learning_rates", None)
        given = dict(zip(names, arguments, strict=False))
        self._call("apply_gradients", ids, grads, **{"learning_rates": rates, "step": step, **given, **settings})

    def apply_pooled_gradients(
        self, ids: Any, offsets: Any, grads: Any, mode: Any = "sum", *, step: int = 0, **settings: Any
    ) -> None:
        rates = settings.pop("learning_rates", None)
        self.table.apply_pooled_gradients(
            *map(self._tensor, (ids, offsets, grads)), mode, learning_rates=rates, step=step, **settings
        )

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._call, name)

    def _call(self, name: str, *arguments: Any, **settings: Any) -> Any:
        rates = {name: settings.pop(name) for name in ("learning_rates",) if name in settings}
        tensors = [self._tensor(each) if isinstance(each, np.ndarray) else each for each in arguments]
        named = {name: self._tensor(each) if isinstance(each, np.ndarray) else each for name, each in settings.items()}
        result = getattr(self.table, name)(*tensors, **named, **rates)
        return result.cpu().numpy() if isinstance(result, torch.Tensor) else result

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(array)).to(self.table.device)
