"""Model servers to which a run sends its changed rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from monolith.core.errors import ConfigError
from monolith.training.config._checks import check_names, check_number, check_path, check_text

__all__ = ["PushConfig"]


@dataclass(frozen=True, kw_only=True)
class PushConfig:
    """Pushing of rows to servers with TensorFlow Serving's API that do not follow the published log."""

    sync_targets: tuple[str, ...] = ()
    """Model servers that get changed rows: host:port, http(s)://host:port, MODEL= and one, or zk://HOSTS/BZID/MODEL."""
    sync_model_name: str = "default"
    """Name of the model at targets that name no model."""
    sync_signature_name: str = "hashtable_assign"
    """Signature that takes rows: hashtable_assign, raw_assign (of each table) or NAME/raw_assign (of all)."""
    sync_timeout_s: float = 3.0
    """Timeout of one request to a target, in seconds."""
    sync_ca_file: str | Path | None = None
    """Authority of the certificates of https targets (PEM)."""
    sync_token_file: str | Path | None = None
    """File with the bearer token of the targets."""

    def __post_init__(self) -> None:
        check_names(self, "sync_targets")
        check_text(self, "sync_model_name", "sync_signature_name")
        check_number(self, "sync_timeout_s", above=0)
        check_path(self, "sync_ca_file")
        check_path(self, "sync_token_file")
        if not self.sync_targets:
            return
        from monolith.sync.push_messages import check_signature  # the engine is not needed to read other settings
        from monolith.sync.push_targets import parse_targets, split_fleets

        targets = parse_targets(split_fleets(self.sync_targets)[0], self.sync_model_name)
        check_signature(self.sync_signature_name)
        if self.sync_ca_file is None and (encrypted := [each for each in targets if each.is_encrypted]):
            raise ConfigError(
                f"sync_targets has {encrypted[0]} over https and sync_ca_file is None; give the authority"
            )
