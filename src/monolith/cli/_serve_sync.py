"""The options of ``monolith serve`` about following training: whose, and what is tried before it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from monolith.cli._serve_security import client_security
from monolith.core.errors import ConfigError

if TYPE_CHECKING:
    from monolith.serving.canary import Canary

__all__ = ["CanaryOptions", "SyncOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    """Whose training the models follow."""

    sync_from: Annotated[
        list[str] | None,
        typer.Option(
            help="Folder that training publishes in, or host:port of a publisher: follow it. MODEL=... for one of "
            "several models."
        ),
    ] = None
    sync_cache: Annotated[
        Path | None, typer.Option(help="Folder for what publishers send; a temporary one when not given.")
    ] = None
    sync_token_file: Annotated[Path | None, typer.Option(help="Bearer token of the publishers.")] = None
    sync_ca: Annotated[Path | None, typer.Option(help="Authority of their certificates (PEM); turns TLS on.")] = None
    sync_cert: Annotated[Path | None, typer.Option(help="Certificate to show to those that ask for one (PEM).")] = None
    sync_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None
    sync_server_name: Annotated[
        str, typer.Option(help="Name in their certificates, where it is not the host that is dialled.")
    ] = ""
    sync_poll_s: Annotated[float, typer.Option(min=0.001, help="Seconds between looks for another cut there.")] = 0.05

    def settings(self) -> dict[str, Any]:
        """Return the arguments of ``Following``.

        Raises:
            ConfigError: A source cannot be one, or a file of TLS cannot be read.
        """
        from monolith.serving.following import FeedSettings, parse_sources

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
    """What is tried before it is shown."""

    canary: Annotated[
        bool, typer.Option(help="Try what is published, and new versions, on a sample of requests before showing it.")
    ] = False
    canary_records: Annotated[Path | None, typer.Option(help="File with that sample, instead of requests.")] = None
    canary_record_kind: Annotated[str, typer.Option(help="What its records are.")] = "example_batch"
    canary_rows: Annotated[int, typer.Option(min=1, help="Rows of the sample.")] = 1024
    canary_min_rows: Annotated[int, typer.Option(min=1, help="With fewer rows all is shown.")] = 32
    canary_max_nan_rate: Annotated[float, typer.Option(help="Share of scores that may be not finite.")] = 0.0
    canary_max_score_shift: Annotated[float, typer.Option(help="How far a score may move, on average.")] = 0.1
    canary_max_mean_shift: Annotated[float, typer.Option(help="How far the mean score may move.")] = 0.05
    canary_max_calibration_error: Annotated[
        float, typer.Option(help="How far scores may be from the sample's labels in sum, as a share.")
    ] = 0.5

    def guard(self) -> Canary | None:
        """Return what tries cuts and versions; None = nothing is tried.

        Raises:
            ConfigError: There is no such kind of record.
        """
        from monolith.data.sources.base import RecordKind
        from monolith.serving.canary import Canary, CanaryLimits, CanarySettings

        if not self.canary and self.canary_records is None:
            return None
        kinds = get_args(RecordKind)
        if self.canary_record_kind not in kinds:
            raise ConfigError(f"--canary-record-kind is {self.canary_record_kind!r}; give one of {', '.join(kinds)}")
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
