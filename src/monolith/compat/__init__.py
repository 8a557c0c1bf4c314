"""Code for users of the original system: its files, names, encodings and formulas.

No package except the command line imports this one, and no training or serving path needs it. README.md beside this
file lists the parts and states which names stay stable. Every name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith.compat.original_names import OriginalNames

__all__ = ["OriginalNames"]


def __getattr__(name: str) -> Any:
    """Import ``OriginalNames``, which needs torch, on first use."""
    if name != "OriginalNames":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("monolith.compat.original_names").OriginalNames
