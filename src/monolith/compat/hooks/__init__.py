"""Hooks of the original that no default list of hooks contains, one per file."""

from __future__ import annotations

from monolith.compat.hooks.action_file import ActionFileHook
from monolith.compat.hooks.barrier import Barrier, BarrierHook
from monolith.compat.hooks.file_close import FileCloseHook
from monolith.compat.hooks.store_health import StoreHealthHook
from monolith.compat.hooks.tide_stop import TideStopHook

__all__ = ["ActionFileHook", "Barrier", "BarrierHook", "FileCloseHook", "StoreHealthHook", "TideStopHook"]
