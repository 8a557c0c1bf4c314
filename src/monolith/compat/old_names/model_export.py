"""Old name of ``monolith.export``."""

import warnings

from monolith.export import ExportOptions, export_model, export_onnx

__all__ = ["ExportOptions", "export_model", "export_onnx"]

warnings.warn("monolith.model_export is deprecated; import monolith.export", DeprecationWarning, stacklevel=2)
