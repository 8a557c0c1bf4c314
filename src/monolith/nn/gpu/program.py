"""``Program``: CUDA C++ compiled by NVRTC at first use, kept on disk, and launched through the driver.

Both libraries come with torch and the GPU's driver; no toolkit is needed. A compiled program is kept per text, options
and processor in ``$MONOLITH_CACHE`` or ``~/.cache/monolith/gpu``.
"""

from __future__ import annotations

import ctypes
import glob
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from monolith.core.errors import ConfigError, EngineError

__all__ = ["Program"]


class Program:
    """The kernels of one text.

    Args:
        source: CUDA C++ with ``extern "C" __global__`` functions.
        device: Device on which the kernels run; its context must be current.

    Raises:
        ConfigError: The compiler refuses the text, or there is no compiler.
    """

    def __init__(self, source: str, device: torch.device) -> None:
        major, minor = torch.cuda.get_device_capability(device)
        image = _compile(source, f"sm_{major}{minor}")
        self._number = torch.empty(0, device=device).get_device()
        self._driver = _driver()
        self._module = ctypes.c_void_p()
        self._image = image  # the driver reads it
        _check_driver(self._driver.cuModuleLoadData(ctypes.byref(self._module), image))
        self._context = ctypes.c_void_p()
        _check_driver(self._driver.cuCtxGetCurrent(ctypes.byref(self._context)))
        self._functions: dict[str, ctypes.c_void_p] = {}

    def launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        """Queue one kernel on the current stream of torch; a tensor is passed as its address."""
        if blocks == 0:
            return
        function = self._functions.get(name)
        if function is None:
            function = ctypes.c_void_p()
            _check_driver(self._driver.cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()))
            self._functions[name] = function
        values = [ctypes.c_void_p(each.data_ptr()) if isinstance(each, torch.Tensor) else each for each in arguments]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(self._number))  # current_stream() takes 10 us
        _check_driver(self._driver.cuCtxSetCurrent(self._context))  # the thread of a backward pass may have none
        _check_driver(self._driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None))


def _compile(source: str, processor: str) -> bytes:
    options = [f"--gpu-architecture={processor}", "--std=c++17", "--fmad=false", "--extra-device-vectorization"]
    identity = hashlib.sha256("\0".join([source, *options]).encode()).hexdigest()
    folder = Path(os.environ.get("MONOLITH_CACHE") or Path.home() / ".cache" / "monolith") / "gpu"
    kept = folder / f"{identity}.cubin"
    try:
        return kept.read_bytes()
    except OSError:
        pass
    image = _run_compiler(source, options)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = kept.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(image)
        fresh.replace(kept)
    except OSError:
        pass  # a cache that cannot be written costs the next process a second
    return image


def _run_compiler(source: str, options: Sequence[str]) -> bytes:
    library = _compiler()
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
    texts = (ctypes.c_char_p * len(options))(*(each.encode() for each in options))
    code = library.nvrtcCompileProgram(program, len(options), texts)
    try:
        if code != 0:
            size = ctypes.c_size_t()
            library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            library.nvrtcGetProgramLog(program, log)
            raise ConfigError(f"the GPU kernels do not compile: {log.value.decode(errors='replace')[:2000]}")
        size = ctypes.c_size_t()
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        image = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, image)
        return image.raw
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def _compiler() -> ctypes.CDLL:
    major = (torch.version.cuda or "12").partition(".")[0]
    places = [
        *glob.glob(f"{Path(torch.__file__).parent.parent}/nvidia/**/libnvrtc.so.*", recursive=True),
        f"libnvrtc.so.{major}",
        "libnvrtc.so",
    ]
    for place in places:
        if "builtins" in place:
            continue
        try:
            return ctypes.CDLL(place)
        except OSError:
            continue
    raise ConfigError(f"libnvrtc.so.{major}, the compiler of GPU kernels, is missing; install torch with CUDA")


@cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ConfigError(f"the driver of the GPU is missing ({error}); install it, or use device='cpu'") from error


def _check_driver(code: int) -> None:
    if code != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        message = text.value.decode() if text.value else str(code)
        raise EngineError(f"the GPU's driver refuses a call: {message}")
