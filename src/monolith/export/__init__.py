"""Export a trained model to files that a server reads without the user's code and without torch.

``export_model`` and ``export_module`` write an export and need torch and onnx. ``ProgramSession`` runs the dense part
and needs neither.
:mod:`monolith.artifacts` defines the file layout. Names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monolith.artifacts.program_session import ProgramSession
    from monolith.export.exporter import export_model, export_onnx
    from monolith.export.modules import export_module
    from monolith.export.options import ExportOptions
    from monolith.export.table_sources import SavedTables

__all__ = ["ExportOptions", "ProgramSession", "SavedTables", "export_model", "export_module", "export_onnx"]

_HOMES = {
    "export_model": "monolith.export.exporter",
    "export_module": "monolith.export.modules",
    "export_onnx": "monolith.export.exporter",
    "ExportOptions": "monolith.export.options",
    "ProgramSession": "monolith.artifacts.program_session",
    "SavedTables": "monolith.export.table_sources",
}


def __getattr__(name: str) -> Any:
    """Import ``name`` on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
