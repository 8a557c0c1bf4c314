"""The folder that holds the checkpoints of a run: finding them, adding one, removing old ones.

::

    <root>/step-000000100/      one checkpoint; see checkpoint_manifest
    <root>/exempt.json          names of checkpoints that are never removed
    <root>/.saving-...          a save under way, or what a killed one left
    <root>/.removed-...         on the way out
    <root>/.replaced-...        stood aside for a checkpoint of the same step

A checkpoint takes its name by one rename, when the disk has all of it, and loses it by one: what a crash leaves is
either a whole checkpoint or a name with a dot, which the next save removes. There is no pointer to the newest one: the
manifests have numbers. Local folders only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from monolith import _native
from monolith.artifacts.checkpoint_manifest import CheckpointManifest, describe_files, read_manifest, write_manifest
from monolith.artifacts.retention import Retention
from monolith.core.durable_files import only_writer, replace_file, sync_folder
from monolith.core.errors import ArtifactError, CheckpointMissing, ManifestInvalid

__all__ = ["CheckpointFolder", "SavedCheckpoint"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{9,})")
_EXEMPT = "exempt.json"
_SAVING, _REMOVED, _REPLACED = ".saving-", ".removed-", ".replaced-"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint whose manifest could be read; its other files may still be damaged."""

    path: Path
    manifest: CheckpointManifest

    @property
    def name(self) -> str:
        """The folder's name, ``step-000000100``."""
        return self.path.name

    @property
    def step(self) -> int:
        """The step it was saved at."""
        return self.manifest.step


class CheckpointFolder:
    """The checkpoints under ``root``, which is made by the first save."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    # --- reading ---

    def path_of(self, step: int) -> Path:
        """Return where the checkpoint of a step is, or would be."""
        return self.root / f"step-{step:09d}"

    def saved(self) -> list[SavedCheckpoint]:
        """Return all checkpoints with a manifest, in the order in which they were saved."""
        return self._scan()[0]

    def newest(self) -> SavedCheckpoint | None:
        """Return the checkpoint that was saved last; None when there is none.

        Raises:
            ArtifactError: What seems to be the newest one has no manifest that can be believed. The text names an
                earlier one that has; taking it is for the user to decide.
        """
        saved, broken = self._scan()
        newest = saved[-1] if saved else None
        for path, error in broken:
            if newest is None or _step_of(path) > newest.step or _changed_s(path) > _changed_s(newest.path):
                raise type(error)(f"{error}; {remedy(newest)}") from error
            logger.warning("checkpoint cannot be read path=%s reason=%s", path, error)
        return newest

    def find(self, name: str) -> SavedCheckpoint:
        """Return the checkpoint of a name, ``step-000000100`` or ``100``.

        Raises:
            CheckpointMissing: There is none; the text names those that are there.
        """
        path = self.path_of(int(name)) if name.isdecimal() else self.root / name
        if not path.is_dir():
            known = ", ".join(saved.name for saved in self.saved()) or "none"
            raise CheckpointMissing(f"there is no checkpoint {name!r} in '{self.root}'; there are: {known}")
        return SavedCheckpoint(path, read_manifest(path))

    def last_number(self) -> int:
        """Return the number of the newest checkpoint; 0 when there is none."""
        saved = self.saved()
        return saved[-1].manifest.number if saved else 0

    def _scan(self) -> tuple[list[SavedCheckpoint], list[tuple[Path, ArtifactError]]]:
        saved, broken = [], []
        for path in sorted(self.root.iterdir()) if self.root.is_dir() else ():
            if not _NAME.fullmatch(path.name):
                continue
            try:
                saved.append(SavedCheckpoint(path, read_manifest(path)))
            except ArtifactError as error:
                if path.exists():  # a reader may come between a rename and the end of a removal
                    broken.append((path, error))
        saved.sort(key=lambda each: (each.manifest.number, each.step))
        return saved, broken

    # --- writing ---

    def add(
        self,
        header: CheckpointManifest,
        fill: Callable[[Path], Mapping[str, int]],
        *,
        retention: Retention,
        started_at_s: float,
    ) -> SavedCheckpoint:
        """Write a checkpoint, whole or not at all, then remove those that retention does not keep.

        Another writer waits, be it another process. A checkpoint of the same step is replaced.

        Args:
            header: The manifest without number, tables, files and sparing.
            fill: Writes and syncs all files into the folder it is given; returns table name to rows.
            retention: What is kept.
            started_at_s: When the run began; before the first checkpoint, sparing counts from here.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with only_writer(self.root):
            self._clear_leftovers()
            previous = self.saved()
            last = previous[-1].manifest if previous else None
            staging = self.root / f"{_SAVING}{secrets.token_hex(8)}"
            staging.mkdir()
            try:
                tables = dict(fill(staging))
                _native.failpoint("checkpoint.before_manifest")
                is_spared, spare_after_s = retention.spare(last, header.saved_at_s, started_at_s)
                manifest = dataclasses.replace(
                    header,
                    number=last.number + 1 if last else 1,
                    is_spared=is_spared,
                    spare_after_s=spare_after_s,
                    tables=tables,
                    files=describe_files(staging),
                )
                write_manifest(staging, manifest)
                _sync_all_folders(staging)
                _native.failpoint("checkpoint.before_rename")
                path = self._publish(staging, header.step)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
            _native.failpoint("checkpoint.after_rename")
            self._clear_leftovers()
            self._retain(retention)
        return SavedCheckpoint(path, manifest)

    def _publish(self, staging: Path, step: int) -> Path:
        path = self.path_of(step)
        if path.exists():
            path.rename(self.root / f"{_REPLACED}{path.name}-{secrets.token_hex(8)}")
            _native.failpoint("checkpoint.old_aside")
        staging.rename(path)
        sync_folder(self.root)
        return path

    def repair(self) -> None:
        """Give back its name to a checkpoint that stood aside for one that never came."""
        if self.root.is_dir():
            with only_writer(self.root):
                self._undo_replacements()

    def _undo_replacements(self) -> None:
        for path in self.root.glob(f"{_REPLACED}*"):
            home = self.root / path.name.removeprefix(_REPLACED).rpartition("-")[0]
            if not home.exists():
                path.rename(home)
                sync_folder(self.root)

    def _clear_leftovers(self) -> None:
        """Remove what killed saves and removals left. The caller is the only writer."""
        self._undo_replacements()
        for prefix in (_SAVING, _REMOVED, _REPLACED):
            for path in self.root.glob(f"{prefix}*"):
                shutil.rmtree(path, ignore_errors=True)

    # --- retention ---

    def _retain(self, retention: Retention) -> None:
        try:
            saved = self.saved()
            for name in retention.removable({each.name: each.manifest for each in saved}, self.exempted()):
                self._remove(name)
        except (OSError, ArtifactError):  # the new checkpoint is safe; that old ones stay is no reason to lose it
            logger.warning("old checkpoints could not be removed root=%s", self.root, exc_info=True)

    def _remove(self, name: str) -> None:
        aside = self.root / f"{_REMOVED}{name}-{secrets.token_hex(8)}"
        (self.root / name).rename(aside)
        _native.failpoint("checkpoint.old_removed")
        shutil.rmtree(aside, ignore_errors=True)
        logger.info("checkpoint removed path=%s", self.root / name)

    def exempted(self) -> frozenset[str]:
        """Return the names that retention never removes.

        Raises:
            ManifestInvalid: The list cannot be read.
        """
        path = self.root / _EXEMPT
        try:
            names = json.loads(path.read_bytes())
        except FileNotFoundError:
            return frozenset()
        except ValueError as error:
            raise ManifestInvalid(f"'{path}' is not JSON ({error}); write a list of names, or remove it") from error
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ManifestInvalid(f"'{path}' holds {names!r}; write a list of names, or remove it")
        return frozenset(names)

    def exempt(self, name: str) -> None:
        """Never remove a checkpoint; see ``find`` for the name.

        Raises:
            CheckpointMissing: There is none of that name.
        """
        found = self.find(name).name
        with self._exempt_list() as names:
            names.add(found)

    def unexempt(self, name: str) -> None:
        """Let retention decide again. Nothing happens when the name was not exempt."""
        found = self.path_of(int(name)).name if name.isdecimal() else name
        with self._exempt_list() as names:
            names.discard(found)

    @contextlib.contextmanager
    def _exempt_list(self) -> Iterator[set[str]]:
        """Give the names to be changed; those whose checkpoint is gone are dropped."""
        with only_writer(self.root):
            names = set(self.exempted())
            yield names
            kept = sorted(name for name in names if (self.root / name).is_dir())
            replace_file(self.root / _EXEMPT, json.dumps(kept).encode() + b"\n")


def remedy(good: SavedCheckpoint | None) -> str:
    """Say what to do about a checkpoint that cannot be restored, given an earlier one that can."""
    if good is None:
        return "there is no earlier one; move it away to start anew"
    return f"the last good one is '{good.path}': set restore_ckpt={good.name!r}, or move the damaged one away"


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None  # the caller scanned for such names
    return int(match[1])


def _changed_s(path: Path) -> float:
    return path.stat().st_mtime


def _sync_all_folders(folder: Path) -> None:
    for inner in folder.rglob("*"):
        if inner.is_dir():
            sync_folder(inner)
    sync_folder(folder)
