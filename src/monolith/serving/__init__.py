"""Serving: exported models loaded and asked. No torch: a server starts without it."""

from __future__ import annotations

from monolith.serving.servable import Servable

__all__ = ["Servable"]
