"""Retention of checkpoints: rules on manifests, without file access."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from monolith.artifacts.checkpoint_manifest import CheckpointManifest
from monolith.core.errors import ConfigError

__all__ = ["Retention"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Keep the newest ``max_to_keep`` checkpoints that are neither exempt nor spared; spare one per interval."""

    max_to_keep: int | None = 10
    """None or 0 removes nothing."""
    spare_every_s: float | None = 24 * 3600.0
    """One checkpoint per interval is kept forever; None spares none."""

    def __post_init__(self) -> None:
        """Check the values."""
        if self.max_to_keep is not None and self.max_to_keep < 0:
            raise ConfigError(
                f"checkpoints_max_to_keep is {self.max_to_keep!r}, expected a number from 1, or 0 for all"
            )
        if self.spare_every_s is not None and not self.spare_every_s >= 0:
            raise ConfigError(f"spare_every_s is {self.spare_every_s!r}, expected seconds from 0, or None")

    def spare(
        self, last: CheckpointManifest | None, saved_at_s: float, started_at_s: float
    ) -> tuple[bool, float | None]:
        """Return whether a new checkpoint is spared, and the time after which the next one is.

        Args:
            last: Previous checkpoint; it stores the due time across restarts.
            saved_at_s: Time of the new checkpoint.
            started_at_s: Start of the run.
        """
        if self.spare_every_s is None:
            return False, None
        pause_s = self.spare_every_s
        due_s = started_at_s + pause_s
        if last is not None and last.spare_after_s is not None:
            due_s = min(last.spare_after_s, saved_at_s + pause_s)  # a shorter interval takes effect immediately
        is_spared = saved_at_s > due_s
        return is_spared, saved_at_s + pause_s if is_spared else due_s

    def removable(self, saved: Mapping[str, CheckpointManifest], exempt: Collection[str]) -> list[str]:
        """Return the names to remove, oldest first.

        Args:
            saved: Name to manifest, in the order of saving.
            exempt: Names that stay and do not count.
        """
        if not self.max_to_keep:
            return []
        counted = [name for name, manifest in saved.items() if name not in exempt and not manifest.is_spared]
        return counted[: -self.max_to_keep]
