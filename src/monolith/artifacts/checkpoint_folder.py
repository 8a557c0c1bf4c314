"""``CheckpointFolder``: find, add and remove the checkpoints of a run.

::

    <root>/step-000000100/      one checkpoint; see checkpoint_manifest
    <root>/exempt.json          names of checkpoints that retention keeps
    <root>/shared.json          checkpoints whose tables exports share, with the folders of the exports
    <root>/.saving-...          a save in progress, or the leftover of a killed one
    <root>/.removed-...         a removal in progress
    <root>/.replaced-...        the previous checkpoint of the same step, during its replacement

A checkpoint appears by one rename after all of it is on disk, and disappears by one rename. A crash therefore leaves a
complete checkpoint, or a name with a dot that the next save removes. The manifests have numbers; the largest number is
the newest checkpoint. Local folders only; :mod:`remote_folder` copies them from and to URLs. Writers of several
processes take turns.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monolith import _native
from monolith.artifacts.checkpoint_manifest import CheckpointManifest, describe_files, read_manifest, write_manifest
from monolith.artifacts.remote_folder import fetch_bundle
from monolith.artifacts.retention import Retention
from monolith.core.durable_files import make_folder, only_writer, replace_file, sync_folder
from monolith.core.errors import ArtifactError, CheckpointMissing, ManifestInvalid

__all__ = ["CheckpointFolder", "SavedCheckpoint", "pin_checkpoint"]

logger = logging.getLogger(__name__)

_NAME = re.compile(r"step-(\d{9,})")
_EXEMPT = "exempt.json"
_PINS = "shared.json"
_SAVING, _REMOVED, _REPLACED = ".saving-", ".removed-", ".replaced-"


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint with a readable manifest; its other files may be damaged."""

    path: Path
    manifest: CheckpointManifest

    @property
    def name(self) -> str:
        """Name of the folder, ``step-000000100``."""
        return self.path.name

    @property
    def step(self) -> int:
        """Step of the checkpoint."""
        return self.manifest.step


class CheckpointFolder:
    """Checkpoints under ``root``. The first save creates the folder."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    # --- reading ---

    def path_of(self, step: int) -> Path:
        """Return the folder of a step's checkpoint, existing or not."""
        return self.root / f"step-{step:09d}"

    def saved(self) -> list[SavedCheckpoint]:
        """Return all checkpoints with a readable manifest, in the order of saving."""
        return self._scan()[0]

    def newest(self) -> SavedCheckpoint | None:
        """Return the newest checkpoint; None if the folder has none.

        Raises:
            ArtifactError: The manifest of the newest checkpoint is missing or corrupt. The text names an earlier
                usable one; the user decides whether to restore it.
        """
        saved, broken = self._scan()
        newest = saved[-1] if saved else None
        for path, error in broken:
            if newest is None or _step_of(path) > newest.step or _changed_s(path) > _changed_s(newest.path):
                raise type(error)(f"{error}; {remedy(newest)}") from error
            logger.warning("checkpoint unreadable path=%s reason=%s", path, error)
        if newest is not None:
            fetch_bundle(newest.path)
        return newest

    def find(self, name: str) -> SavedCheckpoint:
        """Return the checkpoint with a name, ``step-000000100`` or ``100``.

        Raises:
            CheckpointMissing: The checkpoint does not exist; the text lists the existing ones.
        """
        path = self.path_of(int(name)) if name.isdecimal() else self.root / name
        if not path.is_dir():
            known = ", ".join(saved.name for saved in self.saved()) or "none"
            raise CheckpointMissing(f"checkpoint is {name!r}, expected one of '{self.root}': {known}")
        fetch_bundle(path)
        return SavedCheckpoint(path, read_manifest(path))

    def last_number(self) -> int:
        """Return the number of the newest checkpoint; 0 without one."""
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
                if path.exists():  # not in the middle of a removal
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
        """Write a checkpoint atomically, then apply the retention.

        Other writers wait, including other processes. A checkpoint of the same step is replaced.

        Args:
            header: Manifest without number, tables, files and sparing.
            fill: Writes and syncs all files into a given folder; returns table name to rows.
            retention: Rules for old checkpoints.
            started_at_s: Start of the run; sparing counts from here before the first checkpoint.
        """
        make_folder(self.root)
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
        """Restore a checkpoint whose replacement was never completed."""
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
        """Remove leftovers of killed saves and removals. The caller is the only writer."""
        self._undo_replacements()
        for prefix in (_SAVING, _REMOVED, _REPLACED):
            for path in self.root.glob(f"{prefix}*"):
                shutil.rmtree(path, ignore_errors=True)
        for path in self.root.glob(f"{_EXEMPT}.tmp-*"):
            path.unlink(missing_ok=True)

    # --- retention ---

    def _retain(self, retention: Retention) -> None:
        try:
            saved = self.saved()
            kept = self.exempted() | self.pinned()
            for name in retention.removable({each.name: each.manifest for each in saved}, kept):
                self._remove(name)
        except (OSError, ArtifactError):  # the new checkpoint is safe; old ones may stay
            logger.warning("old checkpoints not removed root=%s", self.root, exc_info=True)

    def _remove(self, name: str) -> None:
        aside = self.root / f"{_REMOVED}{name}-{secrets.token_hex(8)}"
        (self.root / name).rename(aside)
        sync_folder(self.root)  # else a power loss brings the name back with some of its files
        _native.failpoint("checkpoint.old_removed")
        shutil.rmtree(aside, ignore_errors=True)
        logger.info("checkpoint removed path=%s", self.root / name)

    def remove_older(self, number: int) -> list[str]:
        """Remove all checkpoints before a number, also spared and exempt ones; return their names.

        Checkpoints whose tables an existing export shares stay.

        Args:
            number: Number in the manifest of the oldest checkpoint to keep.
        """
        with only_writer(self.root):
            pinned = self.pinned()
            names = [each.name for each in self.saved() if each.manifest.number < number and each.name not in pinned]
            for name in names:
                self._remove(name)
        return names

    def exempted(self) -> frozenset[str]:
        """Return the names that retention keeps.

        Raises:
            ManifestInvalid: The list is invalid.
        """
        path = self.root / _EXEMPT
        try:
            names = json.loads(path.read_bytes())
        except FileNotFoundError:
            return frozenset()
        except ValueError as error:
            raise ManifestInvalid(
                f"'{path}' is invalid ({error}), expected a JSON list of names; correct or remove it"
            ) from error
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ManifestInvalid(f"'{path}' is {names!r}, expected a JSON list of names; correct or remove it")
        return frozenset(names)

    def exempt(self, name: str) -> None:
        """Exempt a checkpoint from retention; the name is as in ``find``.

        Raises:
            CheckpointMissing: The checkpoint does not exist.
        """
        exempted = self.find(name).name
        with self._exempt_list() as names:
            names.add(exempted)

    def unexempt(self, name: str) -> None:
        """Remove an exemption. A name without one is ignored."""
        folder = self.path_of(int(name)).name if name.isdecimal() else name
        with self._exempt_list() as names:
            names.discard(folder)

    def pinned(self) -> frozenset[str]:
        """Return the names of checkpoints whose tables an existing export shares."""
        # Backwards: an export in progress has a name that sorts behind that of the finished one, and is renamed to it.
        return frozenset(name for name, exports in self._pins().items() if any(map(os.path.isdir, reversed(exports))))

    def pin(self, name: str, exports: Iterable[str | os.PathLike[str]]) -> None:
        """Keep a checkpoint for as long as one of the folders ``exports`` exists; the name is as in ``find``.

        An export in progress gives its temporary folder too, and then needs no call when it is complete.
        """
        pinned = self.find(name).name
        with only_writer(self.root):
            pins = {
                other: paths  # all of them: the temporary folder of an export in progress stands for a later name
                for other, paths in self._pins().items()
                if (self.root / other).is_dir() and any(map(os.path.isdir, reversed(paths)))
            }
            added = [os.path.abspath(path) for path in exports]
            pins[pinned] = sorted({*pins.get(pinned, []), *added})
            replace_file(self.root / _PINS, json.dumps(dict(sorted(pins.items()))).encode() + b"\n")

    def _pins(self) -> dict[str, list[str]]:
        path = self.root / _PINS
        try:
            pins: Any = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ManifestInvalid(f"'{path}' is invalid ({error}), expected a JSON object; correct it") from error
        if not isinstance(pins, dict) or not all(isinstance(exports, list) for exports in pins.values()):
            raise ManifestInvalid(f"'{path}' is {pins!r}, expected a JSON object of lists; correct it")
        return pins

    @contextlib.contextmanager
    def _exempt_list(self) -> Iterator[set[str]]:
        """Yield the set of exempt names for changes; write it back without names of removed checkpoints."""
        with only_writer(self.root):
            names = set(self.exempted())
            yield names
            kept = sorted(name for name in names if (self.root / name).is_dir())
            replace_file(self.root / _EXEMPT, json.dumps(kept).encode() + b"\n")


def pin_checkpoint(checkpoint: str | os.PathLike[str], exports: Iterable[str | os.PathLike[str]]) -> None:
    """Keep the checkpoint in a folder for as long as one of the exports exists."""
    path = Path(checkpoint).absolute()
    CheckpointFolder(path.parent).pin(path.name, exports)


def remedy(good: SavedCheckpoint | None) -> str:
    """Return the remedy for an unusable checkpoint, given an earlier usable one."""
    if good is None:
        return "no earlier one exists: move it away to start from step 0"
    return f"the last good one is '{good.path}': set restore_ckpt={good.name!r}, or move the damaged one away"


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None  # the caller scanned for these names
    return int(match[1])


def _changed_s(path: Path) -> float:
    return path.stat().st_mtime


def _sync_all_folders(folder: Path) -> None:
    for inner in folder.rglob("*"):
        if inner.is_dir():
            sync_folder(inner)
    sync_folder(folder)
