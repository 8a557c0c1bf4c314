"""``keep_freed_memory``: a process that trains keeps the memory of a step for its next step.

By default, allocators return large pieces to the system soon. Each step then takes them again, with a page fault per
4 KiB: a sixth of the processor time of a DeepFM step.
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

_PURGE_DELAY_MS = 1000
"""For mimalloc, which torch has on Arm. Its default is 10 ms, less than a step."""
_KEPT_BYTES = 256 << 20
"""For glibc: most free bytes at the end of its memory. Its default follows the largest piece that was freed."""
_LARGEST_PIECE_BYTES = 32 << 20
"""For glibc: larger pieces return to the system immediately. It takes no larger number."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_SETTINGS_OF_USERS = ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> None:
    """Let the allocators of this process keep some freed memory, unless the environment has settings for them.

    mimalloc reads its setting when torch is imported.
    """
    if "torch" not in sys.modules:
        os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(_PURGE_DELAY_MS))
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in _SETTINGS_OF_USERS):
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_PIECE_BYTES)
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
