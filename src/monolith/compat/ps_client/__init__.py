"""The original's client of parameter servers: tables by name and width, barriers, health and statistics."""

from __future__ import annotations

from monolith.compat.ps_client.client import ApplyResult, GradientEntry, LookupEntry, LookupResult, PsClient

__all__ = ["ApplyResult", "GradientEntry", "LookupEntry", "LookupResult", "PsClient"]
