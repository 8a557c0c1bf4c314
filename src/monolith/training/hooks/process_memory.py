"""How much memory this process has. The one module that imports psutil."""

from __future__ import annotations

from monolith.core.errors import ConfigError

__all__ = ["resident_bytes"]


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory."""
    try:
        import psutil
    except ImportError as exc:
        raise ConfigError("watching memory needs psutil: pip install 'monolith[train]'") from exc
    return int(psutil.Process().memory_info().rss)
