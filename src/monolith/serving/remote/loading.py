"""Load exports. For a distributed export, connect ``entry`` to its ``ps_*`` and ``dense_0`` servers.

A load of an entry succeeds when all of these servers have its version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

from monolith.artifacts.export_manifest import ExportManifest, read_export_manifest
from monolith.core.errors import ConfigError
from monolith.core.throttle import yield_gil
from monolith.serving.remote.calls import RemoteCalls
from monolith.serving.remote.dense import RemoteDense
from monolith.serving.remote.rows import PsRowClient
from monolith.serving.servable.servable import Servable

__all__ = ["servable_loader"]


def servable_loader(
    calls: RemoteCalls | None = None,
    *,
    threads: int = 1,
    in_memory: bool = False,
    verify: Literal["sizes", "checksums"] = "sizes",
) -> Callable[[Path], Servable]:
    """Return a loader of exports.

    Args:
        calls: Remote calls to the servers of sub-models; None allows no ``entry``.
        threads: Threads of the dense part, per call.
        in_memory: Read tables into memory instead of mapping their files.
        verify: As in ``Servable.load``.
    """

    def load(folder: Path) -> Servable:
        manifest = _numbered(read_export_manifest(folder), folder)
        yield_gil()
        if manifest.sub_model != "entry":
            return Servable.load(folder, threads=threads, in_memory=in_memory, verify=verify, manifest=manifest)
        if calls is None:
            raise ConfigError(
                f"'{folder}' is the `entry` of a distributed export; configure the servers of its rows: --remote "
                "ps_0=host:port, --remote-file or --discovery"
            )
        rows = PsRowClient(manifest, calls)
        dense = RemoteDense(manifest, calls) if manifest.dense is None else None
        rows.check()
        if dense is not None:
            dense.check()
        return Servable.load(folder, threads=threads, verify=verify, rows=rows, dense=dense, manifest=manifest)

    return load


def _numbered(manifest: ExportManifest, folder: Path) -> ExportManifest:
    """Return the manifest with the version of its folder, by which an entry asks the servers of its parts.

    The manifest has another one in a copy, such as of an older version that is to replace the newest one.
    """
    version = int(folder.name) if folder.name.isdecimal() else manifest.version
    return replace(manifest, version=version)
