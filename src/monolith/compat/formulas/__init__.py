"""Formulas of the original on arrays: numeric buckets, and the correction of sampled log-odds."""

from __future__ import annotations

from monolith.compat.formulas.buckets import log2_bucket, log_bucket, ratio_bucket
from monolith.compat.formulas.correction import clip_logits, correct_logits, logit_bound

__all__ = ["clip_logits", "correct_logits", "log2_bucket", "log_bucket", "logit_bound", "ratio_bucket"]
