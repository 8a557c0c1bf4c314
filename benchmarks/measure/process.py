"""The memory of this process as the kernel sees it: its resident size, and huge pages for memory others allocated."""

from __future__ import annotations

import ctypes
import os

__all__ = ["make_pages_huge", "resident_bytes"]

MADV_HUGEPAGE = 14
MADV_COLLAPSE = 25
HUGE_PAGE = 2 << 20


def resident_bytes() -> int:
    """Return the resident set of this process, without freed memory that the allocator could give back."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_pages_huge(address: int, size: int) -> bool:
    """Turn memory that is in use already into huge pages and return whether all of it is (Linux 6.1 and later)."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    start = -(-address // HUGE_PAGE) * HUGE_PAGE
    end = (address + size) // HUGE_PAGE * HUGE_PAGE
    return all(madvise(start, end - start, advice) == 0 for advice in (MADV_HUGEPAGE, MADV_COLLAPSE))
