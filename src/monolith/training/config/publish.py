"""Publishing of a run's state for servers while it trains."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monolith.core.errors import ConfigError
from monolith.training.config._checks import check_choice, check_number, check_path

__all__ = ["PublishConfig"]


@dataclass(frozen=True, kw_only=True)
class PublishConfig:
    """Publishing of learned rows and dense weights."""

    publish_dir: str | Path | None = None
    """Folder or URL to publish in; servers follow it (monolith serve --sync-from). None = no publishing."""
    publish_interval_s: float = 1.0
    """Seconds between publishes."""
    publish_flavour: Literal["serving", "durable"] = "serving"
    """Form of rows: serving, as slices are served; durable, with optimizer state, for full_precision exports."""

    publish_port: int | None = None
    """Port of the feed of published state, for serve --sync-from HOST:PORT; 0 = any free port, None = no feed."""
    publish_host: str = "127.0.0.1"
    """Interface of the feed; the default is this machine only. Use token or TLS on other interfaces."""
    publish_token_file: str | Path | None = None
    """File with the bearer token that subscribers must send."""
    publish_tls_cert: str | Path | None = None
    """Certificate (PEM) of the feed; turns TLS on."""
    publish_tls_key: str | Path | None = None
    """Private key of the certificate (PEM)."""
    publish_tls_ca: str | Path | None = None
    """Authority (PEM) of client certificates, which subscribers must then present."""

    def __post_init__(self) -> None:
        check_path(self, "publish_dir")
        check_number(self, "publish_interval_s", above=0)
        check_choice(self, "publish_flavour", ("serving", "durable"))
        for name in ("publish_token_file", "publish_tls_cert", "publish_tls_key", "publish_tls_ca"):
            check_path(self, name)
        if self.publish_port is not None:
            check_number(self, "publish_port", at_least=0)
            if self.publish_port > 65535:
                raise ConfigError(f"publish_port is {self.publish_port}; give 0 (any) to 65535")
            if self.publish_dir is None:
                raise ConfigError(
                    f"publish_port is {self.publish_port} without publish_dir; give the folder to publish in too"
                )
