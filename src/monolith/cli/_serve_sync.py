"""Options of ``monolith serve`` for following a training run, and for the canary that checks updates first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from monolith.cli._serve_security import client_security
from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.serving.follow.canary import Canary

__all__ = ["CanaryOptions", "SyncOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """Training runs that the models follow."""

    sync_from: Annotated[
        list[str] | None,
        typer.Option(
            help="Follow a training run: its --publish-dir (folder or URL), or host:port of its publisher. With "
            "several models, write MODEL=... and repeat."
        ),
    ] = None
    sync_cache: Annotated[
        Path | None, typer.Option(help="Folder for updates from a publisher; default: a temporary folder.")
    ] = None
    sync_token_file: Annotated[Path | None, typer.Option(help="File with the bearer token of the publishers.")] = None
    sync_ca: Annotated[Path | None, typer.Option(help="CA of the publishers' certificates (PEM); turns TLS on.")] = None
    sync_cert: Annotated[
        Path | None, typer.Option(help="Client certificate for publishers that require one (PEM).")
    ] = None
    sync_key: Annotated[Path | None, typer.Option(help="Private key of --sync-cert (PEM).")] = None
    sync_server_name: Annotated[
        str, typer.Option(help="Server name in the certificates, if it differs from the host.")
    ] = ""
    sync_poll_s: Annotated[float, typer.Option(min=0.001, help="Seconds between checks for a new cut.")] = 0.05

    def settings(self) -> dict[str, Any]:
        """Return the arguments of ``Following``.

        Raises:
            ConfigError: A source is invalid, or a TLS file cannot be read.
        """
        from monolith.serving.follow.following import FeedSettings, parse_sources

        security = client_security(
            "sync",
            ca=self.sync_ca,
            cert=self.sync_cert,
            key=self.sync_key,
            server_name=self.sync_server_name,
            token_file=self.sync_token_file,
        )
        return {
            "sources": parse_sources(self.sync_from or []),
            "poll_s": self.sync_poll_s,
            "feeds": FeedSettings(cache=self.sync_cache, security=security),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryOptions:
    """Checks of updates and versions on a sample, before they are served."""

    canary: Annotated[
        bool, typer.Option(help="Check updates and new versions on a sample of requests before serving them.")
    ] = False
    canary_records: Annotated[
        Path | None, typer.Option(help="File of records to use as the sample, instead of requests.")
    ] = None
    canary_record_kind: Annotated[str, typer.Option(help="Message type of these records.")] = "example_batch"
    canary_rows: Annotated[int, typer.Option(min=1, help="Most rows of the sample.")] = 1024
    canary_min_rows: Annotated[int, typer.Option(min=1, help="Skip the check while the sample has fewer rows.")] = 32
    canary_max_nan_rate: Annotated[float, typer.Option(help="Largest fraction of scores that are not finite.")] = 0.0
    canary_max_score_shift: Annotated[float, typer.Option(help="Largest mean change of a score.")] = 0.1
    canary_max_mean_shift: Annotated[float, typer.Option(help="Largest change of the mean score.")] = 0.05
    canary_max_calibration_error: Annotated[
        float, typer.Option(help="Largest relative difference of summed scores and summed labels.")
    ] = 0.5

    def guard(self) -> Canary | None:
        """Return the canary that checks cuts and versions; None if it is off.

        Raises:
            ConfigError: The message type of the records is unknown.
        """
        from monolith.data.sources.base import RecordKind
        from monolith.serving.follow.canary import Canary, CanaryLimits, CanarySettings

        if not self.canary and self.canary_records is None:
            return None
        kinds = get_args(RecordKind)
        if self.canary_record_kind not in kinds:
            raise ConfigError(f"--canary-record-kind is {self.canary_record_kind!r}, expected {', '.join(kinds)}")
        limits = CanaryLimits(
            nan_rate=self.canary_max_nan_rate,
            score_shift=self.canary_max_score_shift,
            mean_shift=self.canary_max_mean_shift,
            calibration_error=self.canary_max_calibration_error,
        )
        return Canary(
            CanarySettings(
                limits=limits,
                records=self.canary_records,
                record_kind=cast("RecordKind", self.canary_record_kind),
                min_rows=min(self.canary_min_rows, self.canary_rows),
                max_rows=self.canary_rows,
            )
        )
