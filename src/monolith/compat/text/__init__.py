"""Text forms of the original: lists of feature ids, and predictions."""

from __future__ import annotations

from monolith.compat.text.fid_text import parse_fid_list
from monolith.compat.text.prediction_text import PredictionText

__all__ = ["PredictionText", "parse_fid_list"]
