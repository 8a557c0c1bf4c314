"""The folder that holds the exports of a model: versions, adding one, and removing those whose checkpoint is gone.

::

    <base>/<version>/                   a standalone export
    <base>/<sub-model>/<version>/       entry, ps_<i>, dense_<i> of a distributed one
    <base>/[<sub-model>/]ExportSaverListenerState      which step each export is of
    <base>/temp-...                     an export under way, or what a killed one left

An export takes its name by one rename, when the disk has all of it. What servers poll is therefore whole, or not there.
Local folders only.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from monolith import _native
from monolith.artifacts.checkpoint_manifest import describe_files
from monolith.artifacts.export_manifest import ExportManifest, read_export_manifest, write_export_manifest
from monolith.core.durable_files import only_writer, replace_file, sync_folder
from monolith.core.errors import ArtifactError, ConfigError, ManifestInvalid, VersionConflict

__all__ = ["STATE_FILE", "ExportFolder"]

logger = logging.getLogger(__name__)

STATE_FILE = "ExportSaverListenerState"

_STAGING, _REMOVED = "temp-", ".removed-"
_SUB_MODEL = re.compile(r"entry|(ps|dense)_\d+")
_ENTRY = re.compile(r'entries\s*\{\s*export_dir:\s*("(?:[^"\\]|\\.)*")\s*global_step:\s*(-?\d+)\s*\}')
_MOST_VERSION = 2**63 - 1
_RENAME_EXCHANGE = 2
_CURRENT_FOLDER = -100


class ExportFolder:
    """The exports under ``root``, which is made by the first one."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    # --- reading ---

    def versions(self, sub_model: str = "") -> list[int]:
        """Return the versions that are there, oldest first."""
        place = self.root / sub_model
        names = [path.name for path in place.iterdir() if path.is_dir()] if place.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def sub_models(self) -> list[str]:
        """Return the names of sub-models that have a folder; none for standalone exports."""
        names = [path.name for path in self.root.iterdir() if path.is_dir()] if self.root.is_dir() else []
        return sorted(name for name in names if _SUB_MODEL.fullmatch(name))

    def path_of(self, version: int, sub_model: str = "") -> Path:
        """Return where an export is, or would be."""
        return self.root / sub_model / str(version)

    def newest(self, sub_model: str = "") -> Path | None:
        """Return the folder of the newest version, or None."""
        versions = self.versions(sub_model)
        return self.path_of(versions[-1], sub_model) if versions else None

    def next_version(self, now_s: float) -> int:
        """Return unix seconds, or the number after the newest version when that is as high."""
        known = [version for sub in ("", *self.sub_models()) for version in self.versions(sub)[-1:]]
        return max([int(now_s), *(version + 1 for version in known)])

    # --- writing ---

    def add(
        self,
        version: int | None,
        subs: Sequence[str],
        fill: Callable[[Path, int], Mapping[str, ExportManifest]],
        *,
        now_s: float,
        overwrite: bool = False,
        keep_steps: Collection[int] | None = None,
    ) -> dict[str, Path]:
        """Write an export, whole or not at all. Another writer waits, be it another process.

        Args:
            version: Its number; None = from the clock.
            subs: Names of its sub-models; "" is the only one of a standalone export.
            fill: Is given an empty folder and the version; writes and syncs the files of each sub-model in the folder
                of its name there, and returns the manifests without files.
            now_s: The time.
            overwrite: Whether a version that is there is replaced; otherwise it is refused.
            keep_steps: Steps of checkpoints: recorded exports of other steps are removed. None removes nothing.

        Returns:
            Sub-model to folder.

        Raises:
            VersionConflict: The version exists.
        """
        _check_version(version)
        self.root.mkdir(parents=True, exist_ok=True)
        with only_writer(self.root):
            self._clear_leftovers()
            chosen = self.next_version(now_s) if version is None else version
            if not overwrite:
                self._check_free(chosen, subs)
            staging = self.root / f"{_STAGING}{chosen}-{secrets.token_hex(8)}"
            staging.mkdir()
            try:
                for sub in subs:
                    (staging / sub).mkdir(exist_ok=True)
                manifests = fill(staging, chosen)
                _native.failpoint("export.before_manifest")
                for sub in subs:
                    _seal(staging / sub, manifests[sub])
                _native.failpoint("export.before_rename")
                paths = self._publish(staging, chosen, subs)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
            _native.failpoint("export.after_rename")
            for sub, path in paths.items():
                self._note(sub, path, manifests[sub].global_step, keep_steps)
        return paths

    def _check_free(self, version: int, subs: Sequence[str]) -> None:
        taken = [self.path_of(version, sub) for sub in subs if self.path_of(version, sub).exists()]
        if taken:
            raise VersionConflict(
                f"'{taken[0]}' is there already; give another version, or overwrite=True (--overwrite) to replace it"
            )

    def _publish(self, staging: Path, version: int, subs: Sequence[str]) -> dict[str, Path]:
        """Move the sub-models to their places: the parts before the entry, which asks them."""
        paths: dict[str, Path] = {}
        try:
            for sub in sorted(subs, key=lambda each: (each == "entry", each)):
                target = self.path_of(version, sub)
                target.parent.mkdir(parents=True, exist_ok=True)
                _put(staging / sub, target)
                paths[sub] = target
                sync_folder(target.parent)
                _native.failpoint("export.sub_model_there")
        except BaseException:
            for sub, target in paths.items():  # back to what was there before
                with contextlib.suppress(OSError):
                    _take_back(staging / sub, target)
            raise
        sync_folder(self.root)
        return paths

    def _clear_leftovers(self) -> None:
        for place in (self.root, *(self.root / sub for sub in self.sub_models())):
            for prefix in (_STAGING, _REMOVED):
                for path in place.glob(f"{prefix}*"):
                    shutil.rmtree(path, ignore_errors=True)

    # --- state and retention ---

    def recorded(self, sub_model: str = "") -> dict[int, int]:
        """Return version to step of the exports that the state file names.

        Raises:
            ManifestInvalid: The file is something else.
        """
        path = self.root / sub_model / STATE_FILE
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ManifestInvalid(f"'{path}' is no text ({error}); remove it") from error
        if _ENTRY.sub("", text).strip():
            raise ManifestInvalid(f"'{path}' is no list of exports; remove it to let exports be recorded anew")
        names = {Path(json.loads(name)).name: int(step) for name, step in _ENTRY.findall(text)}
        return {int(name): step for name, step in names.items() if name.isdecimal()}

    def _note(self, sub: str, path: Path, step: int, keep_steps: Collection[int] | None) -> None:
        try:
            entries = {**self.recorded(sub), int(path.name): step}
            kept = {}
            for version, of_step in sorted(entries.items()):
                if not self.path_of(version, sub).is_dir():
                    continue
                if keep_steps is not None and of_step not in keep_steps and version != int(path.name):
                    self._remove(self.path_of(version, sub))
                    continue
                kept[version] = of_step
            text = "".join(
                f"entries {{\n  export_dir: {_quoted(self.path_of(version, sub))}\n  global_step: {of_step}\n}}\n"
                for version, of_step in kept.items()
            )
            replace_file(self.root / sub / STATE_FILE, text.encode())
        except (OSError, ArtifactError):  # the export is safe; that its record or old ones are not is no reason to fail
            logger.warning("exports could not be recorded or removed root=%s", self.root, exc_info=True)

    def _remove(self, path: Path) -> None:
        aside = path.parent / f"{_REMOVED}{path.name}-{secrets.token_hex(8)}"
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        logger.info("export removed path=%s", path)


def _check_version(version: int | None) -> None:
    if version is not None and (type(version) is not int or not 1 <= version <= _MOST_VERSION):
        raise ConfigError(f"version is {version!r}; give a whole number from 1 to 2^63 - 1, or None for the time")


def _seal(folder: Path, manifest: ExportManifest) -> None:
    write_export_manifest(folder, replace(manifest, files=describe_files(folder)))
    read_export_manifest(folder)
    for inner in folder.rglob("*"):
        if inner.is_dir():
            sync_folder(inner)
    sync_folder(folder)


def _put(source: Path, target: Path) -> None:
    """Move a folder to its place. One that is there changes places with it, in one step."""
    if not target.exists():
        source.rename(target)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.renameat2(
        _CURRENT_FOLDER, os.fsencode(source), _CURRENT_FOLDER, os.fsencode(target), ctypes.c_uint(_RENAME_EXCHANGE)
    )
    if done == 0:
        return
    if (code := ctypes.get_errno()) not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(code, os.strerror(code), str(target))
    aside = source.parent / f"{_REMOVED}{secrets.token_hex(8)}"  # a file system that cannot exchange
    target.rename(aside)
    try:
        source.rename(target)
    except BaseException:
        aside.rename(target)
        raise
    aside.rename(source)


def _take_back(source: Path, target: Path) -> None:
    """Undo ``_put``: what it put aside stands where the new folder came from."""
    if source.exists():
        _put(source, target)
    else:
        target.rename(source)


def _quoted(path: Path) -> str:
    return json.dumps(str(path.absolute()), ensure_ascii=False)
