"""``ExportFolder``: list, add and remove the exports of a model.

::

    <base>/<version>/                   a standalone export
    <base>/<sub-model>/<version>/       entry, ps_<i>, dense_<i> of a distributed one
    <base>/[<sub-model>/]ExportSaverListenerState      step of each export
    <base>/temp-...                     an export in progress, or the leftover of a killed one

An export appears by one rename after all of it is on disk, so servers that poll see complete exports only. Exports are
removed with their checkpoints. Local folders only. Writers of several processes take turns.
"""

from __future__ import annotations

import contextlib
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
from monolith.core.durable_files import make_folder, only_writer, replace_file, replace_folder, sync_folder
from monolith.core.errors import ArtifactError, ConfigError, ManifestInvalid, VersionConflict

__all__ = ["STATE_FILE", "ExportFolder"]

logger = logging.getLogger(__name__)

STATE_FILE = "ExportSaverListenerState"

_STAGING, _REMOVED = "temp-", ".removed-"
_SUB_MODEL = re.compile(r"entry|(ps|dense)_\d+")
_ENTRY = re.compile(r'entries\s*\{\s*export_dir:\s*("(?:[^"\\]|\\.)*")\s*global_step:\s*(-?\d+)\s*\}')
_MOST_VERSION = 2**63 - 1


class ExportFolder:
    """Exports under ``root``. The first export creates the folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    # --- reading ---

    def versions(self, sub_model: str = "") -> list[int]:
        """Return the existing versions, oldest first."""
        place = self.root / sub_model
        names = [path.name for path in place.iterdir() if path.is_dir()] if place.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def sub_models(self) -> list[str]:
        """Return the names of existing sub-models; empty for standalone exports."""
        names = [path.name for path in self.root.iterdir() if path.is_dir()] if self.root.is_dir() else []
        return sorted(name for name in names if _SUB_MODEL.fullmatch(name))

    def path_of(self, version: int, sub_model: str = "") -> Path:
        """Return the folder of a version, existing or not."""
        return self.root / sub_model / str(version)

    def newest(self, sub_model: str = "") -> Path | None:
        """Return the folder of the newest version; None without one."""
        versions = self.versions(sub_model)
        return self.path_of(versions[-1], sub_model) if versions else None

    def next_version(self, now_s: float) -> int:
        """Return the next version: unix seconds, or the newest version + 1 if that is larger."""
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
        follows_step: int | None = None,
        keep_steps: Collection[int] | None = None,
    ) -> dict[str, Path]:
        """Write an export atomically. Other writers wait, including other processes.

        Args:
            version: Number of the version; None takes it from the clock.
            subs: Names of the sub-models; "" for a standalone export.
            fill: Takes an empty folder and the version; writes and syncs the files of each sub-model into a subfolder
                with its name, and returns the manifests without files.
            now_s: Present time.
            overwrite: Replace an existing version.
            follows_step: Step of the checkpoint that controls the retention; None means the step of the export.
            keep_steps: Steps of existing checkpoints; recorded exports of other steps are removed. None keeps all.

        Returns:
            Sub-model to folder.

        Raises:
            VersionConflict: The version exists.
        """
        _check_version(version)
        make_folder(self.root)
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
            for sub, path in sorted(paths.items(), key=lambda each: each[0] != "entry"):  # entries name tables of parts
                step = manifests[sub].global_step if follows_step is None else follows_step
                self._note(sub, path, step, keep_steps)
        return paths

    def _check_free(self, version: int, subs: Sequence[str]) -> None:
        taken = [self.path_of(version, sub) for sub in subs if self.path_of(version, sub).exists()]
        if taken:
            raise VersionConflict(
                f"'{taken[0]}' exists; give another version, or overwrite=True (--overwrite) to replace it"
            )

    def _publish(self, staging: Path, version: int, subs: Sequence[str]) -> dict[str, Path]:
        """Rename the sub-models to their final names: the parts before the entry that calls them."""
        paths: dict[str, Path] = {}
        try:
            for sub in sorted(subs, key=lambda each: (each == "entry", each)):
                target = self.path_of(version, sub)
                make_folder(target.parent)
                replace_folder(staging / sub, target)
                paths[sub] = target
                sync_folder(target.parent)
                _native.failpoint("export.sub_model_there")
        except BaseException:
            for sub, target in paths.items():  # roll back
                with contextlib.suppress(OSError):
                    _roll_back(staging / sub, target)
            raise
        sync_folder(self.root)
        return paths

    def _clear_leftovers(self) -> None:
        for place in (self.root, *(self.root / sub for sub in self.sub_models())):
            for prefix in (_STAGING, _REMOVED):
                for path in place.glob(f"{prefix}*"):
                    shutil.rmtree(path, ignore_errors=True)
            for path in place.glob(f"{STATE_FILE}.tmp-*"):
                path.unlink(missing_ok=True)

    # --- state and retention ---

    def recorded(self, sub_model: str = "") -> dict[int, int]:
        """Return version to step of the exports in the state file.

        Raises:
            ManifestInvalid: The file is invalid.
        """
        path = self.root / sub_model / STATE_FILE
        try:
            text = path.read_text("utf-8")
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ManifestInvalid(f"'{path}' is invalid text ({error}); remove it") from error
        if _ENTRY.sub("", text).strip():
            raise ManifestInvalid(f"'{path}' is invalid, expected a list of exports; remove it")
        # Escapes, which TensorFlow writes for bytes beyond ASCII, are in the folders above a version only.
        names = {Path(name[1:-1]).name: int(step) for name, step in _ENTRY.findall(text)}
        return {int(name): step for name, step in names.items() if name.isdecimal()}

    def _note(self, sub: str, path: Path, step: int, keep_steps: Collection[int] | None) -> None:
        try:
            entries = {**self.recorded(sub), int(path.name): step}
            spared = {int(path.name), *self._versions_of_tables(sub)}
            kept = {}
            for version, of_step in sorted(entries.items()):
                if not self.path_of(version, sub).is_dir():
                    continue
                if keep_steps is not None and of_step not in keep_steps and version not in spared:
                    self._remove(self.path_of(version, sub))
                    continue
                kept[version] = of_step
            text = "".join(
                f"entries {{\n  export_dir: {_quoted(self.path_of(version, sub))}\n  global_step: {of_step}\n}}\n"
                for version, of_step in kept.items()
            )
            replace_file(self.root / sub / STATE_FILE, text.encode())
        except (OSError, ArtifactError):  # the export is safe; its record and the removals may fail
            logger.warning("exports not recorded or removed root=%s", self.root, exc_info=True)

    def _versions_of_tables(self, sub: str) -> set[int]:
        """Return the versions of a part whose rows an entry without tables reads."""
        found = set[int]()
        for version in self.versions("entry") if sub.startswith("ps_") else ():
            with contextlib.suppress(ManifestInvalid):
                if (named := read_export_manifest(self.path_of(version, "entry")).tables_version) is not None:
                    found.add(named)
        return found

    def _remove(self, path: Path) -> None:
        aside = path.parent / f"{_REMOVED}{path.name}-{secrets.token_hex(8)}"
        path.rename(aside)
        sync_folder(path.parent)  # else a power loss brings the name back with some of its files
        shutil.rmtree(aside, ignore_errors=True)
        logger.info("export removed path=%s", path)


def _check_version(version: int | None) -> None:
    if version is not None and (type(version) is not int or not 1 <= version <= _MOST_VERSION):
        raise ConfigError(f"version is {version!r}, expected an integer from 1 to 2^63 - 1, or None for the time")


def _seal(folder: Path, manifest: ExportManifest) -> None:
    write_export_manifest(folder, replace(manifest, files=describe_files(folder)))
    read_export_manifest(folder)
    for inner in folder.rglob("*"):
        if inner.is_dir():
            sync_folder(inner)
    sync_folder(folder)


def _roll_back(source: Path, target: Path) -> None:
    """Undo ``replace_folder``: the previous folder, if any, is at ``source``."""
    if source.exists():
        replace_folder(source, target)
    else:
        target.rename(source)


def _quoted(path: Path) -> str:
    return json.dumps(str(path.absolute()), ensure_ascii=False)
