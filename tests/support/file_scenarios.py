"""Scenarios for the fault layer: writers of files that promise durability, each with a reader that judges the files.

A scenario advances step by step. When ``advance`` returns, the step counts as acknowledged: after a power loss
``recover`` must find this step or a later one, whole. ``SCENARIOS`` lists them all; add new writers there.

The state of a step is a pure function of its number, so that a mixture of two steps is noticed. No scenario needs
torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from monolith.artifacts.checkpoint_folder import CheckpointFolder
from monolith.artifacts.checkpoint_manifest import CheckpointManifest, verify_files
from monolith.artifacts.delta_log import DeltaReader, DeltaWriter, read_cut
from monolith.artifacts.export_folder import ExportFolder
from monolith.artifacts.export_manifest import ExportManifest, read_export_manifest
from monolith.artifacts.retention import Retention
from monolith.core.clock import SystemClock
from monolith.core.durable_files import replace_file, seal, sync_folder, unseal, write_synced
from monolith.embedding import Adagrad, MultiTable, SliceSpec, TableSpec
from monolith.embedding.snapshot import MANIFEST
from monolith.sync import LocalRowLog, Publisher
from monolith.sync.dense_versions import DenseReader
from monolith.sync.row_updates import plan_update, rebuild_tables

__all__ = ["CARELESS", "SCENARIOS", "Scenario", "Writer"]

# Files of the wide table have many sectors, so that a short write loses rows unless the writer repeats the rest.
_WIDTHS = {"item": 2, "user": 256}
_SPECS = [TableSpec(name, [SliceSpec(width, optimizer=Adagrad(0.1))]) for name, width in _WIDTHS.items()]
_IDS = 24
_PERIOD = 4


class Writer(Protocol):
    """A writer of one scenario, as a running process has it."""

    def advance(self, step: int) -> None:
        """Make the state of a step durable. The step before was ``step - 1``, or failed, or is unknown."""

    def close(self) -> None:
        """Release the files."""


class Scenario(Protocol):
    """A kind of files that promises durability."""

    @property
    def name(self) -> str: ...

    def open(self, folder: Path) -> Writer:
        """Open the writer, with the files of an earlier one or without."""

    def recover(self, folder: Path) -> int:
        """Return the step that the files hold, as a restarted process reads them; 0 without any.

        Raises:
            Exception: The files hold no whole step.
        """

    def leftovers(self, folder: Path) -> list[str]:
        """Return the names that should not be there after a successful step."""


# --- the state of a step ---


def rows_at(step: int) -> dict[int, float]:
    """Return the rows after a step: id to value. Each id changes in every fourth step, one id lives for one step."""
    rows = {fid: float(step - (step - fid) % _PERIOD) for fid in range(_IDS) if step - (step - fid) % _PERIOD > 0}
    return rows | {1000 + step: float(step)}


def set_rows(tables: MultiTable, step: int) -> None:
    """Change tables of any earlier step to the rows of this one."""
    wanted = rows_at(step)
    for name in tables:
        table = tables[name]
        present = {int(fid): table.lookup([fid])[0, 0] for ids, _ in table.items() for fid in ids}
        if gone := [fid for fid in present if fid not in wanted]:
            table.delete(np.asarray(gone))
        changed = {fid: value for fid, value in wanted.items() if present.get(fid) != value}
        ids = np.asarray(list(changed), np.int64)
        values = np.repeat(np.asarray(list(changed.values()), np.float32)[:, None], _WIDTHS[name], axis=1)
        table.assign(ids, values, time_s=1000 + step)


def step_of(tables: MultiTable) -> int:
    """Return the step whose rows the tables hold; 0 for empty tables."""
    steps = {name: _step_of_rows(name, tables[name]) for name in tables}
    assert len(set(steps.values())) == 1, f"tables hold different steps: {steps}"
    return next(iter(steps.values()))


def _step_of_rows(name: str, table: Any) -> int:
    rows = {int(fid): float(table.lookup([fid])[0, 0]) for ids, _ in table.items() for fid in ids}
    if not rows:
        return 0
    step = max(rows) - 1000
    assert rows == rows_at(step), f"table {name} is a mixture: {rows}, expected {rows_at(step)} of step {step}"
    return step


def weights_at(step: int) -> dict[str, Any]:
    """Return the dense weights of a step; one of the tensors changes rarely."""
    return {"w": np.full(3, step, np.float32), "rare": np.full(2, step // 3, np.float32)}


def temporary_names(folder: Path, marks: Iterable[str]) -> list[str]:
    """Return the paths under a folder whose names contain one of the marks."""
    paths = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    return sorted(path for path in paths if any(mark in path for mark in marks))


# --- scenarios ---


@dataclass
class _SnapshotWriter:
    folder: Path
    tables: MultiTable

    def advance(self, step: int) -> None:
        set_rows(self.tables, step)
        self.tables.save(self.folder / "tables", shards=2)

    def close(self) -> None:
        pass


class SnapshotScenario:
    """Snapshots of tables, saved again and again into one folder."""

    name = "snapshot"

    def open(self, folder: Path) -> Writer:
        return _SnapshotWriter(folder, MultiTable(_SPECS))

    def recover(self, folder: Path) -> int:
        if not (folder / "tables" / MANIFEST).exists():
            return 0
        return step_of(MultiTable.load(folder / "tables"))

    def leftovers(self, folder: Path) -> list[str]:
        files = sorted(path.name for path in (folder / "tables").iterdir())
        return [] if len(files) == 5 else files  # two files per table, and the manifest


@dataclass
class _CheckpointWriter:
    folder: Path
    tables: MultiTable

    def advance(self, step: int) -> None:
        set_rows(self.tables, step)

        def fill(staging: Path) -> dict[str, int]:
            self.tables.save(staging / "tables")
            write_synced(staging / "dense.bin", b"%d" % step * 1000)
            return {name: len(self.tables[name]) for name in self.tables}

        # Every third save replaces the checkpoint of the step before.
        header = CheckpointManifest(
            step=step - (step % 3 == 0),
            number=0,
            kind="full",
            saved_at_s=float(step),
            reason="test",
            package_version="0",
        )
        keep = Retention(max_to_keep=2, spare_every_s=None)
        CheckpointFolder(self.folder / "checkpoints").add(header, fill, retention=keep, started_at_s=0.0)

    def close(self) -> None:
        pass


class CheckpointScenario:
    """Checkpoints with a retention of two; some replace the checkpoint of the same step."""

    name = "checkpoint"

    def open(self, folder: Path) -> Writer:
        return _CheckpointWriter(folder, MultiTable(_SPECS))

    def recover(self, folder: Path) -> int:
        checkpoints = CheckpointFolder(folder / "checkpoints")
        checkpoints.repair()
        newest = checkpoints.newest()
        if newest is None:
            return 0
        verify_files(newest.path, newest.manifest)
        step = step_of(MultiTable.load(newest.path / "tables"))
        assert (newest.path / "dense.bin").read_bytes() == b"%d" % step * 1000
        return step

    def leftovers(self, folder: Path) -> list[str]:
        return temporary_names(folder, (".saving-", ".removed-", ".replaced-", ".tmp"))


class _LogWriter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables, sequence = _recover_log(folder)
        self._writer = DeltaWriter(folder / "log", (0, 1), self._tables, clock=SystemClock(), holds=sequence)

    def advance(self, step: int) -> None:
        set_rows(self._tables, step)
        sequence, cut = self._writer.cut(self._tables.cut)
        if step % 3:
            cut.drop()
            return
        cut.write(self._folder / f"snapshot-{sequence}")
        self._writer.compact(sequence)

    def close(self) -> None:
        self._writer.close()


def _recover_log(folder: Path) -> tuple[MultiTable, int]:
    tables = MultiTable(_SPECS)
    whole = [path for path in folder.glob("snapshot-*") if (path / MANIFEST).exists()]
    after = max((int(path.name.rpartition("-")[2]) for path in whole), default=0)
    if after:
        tables.restore(folder / f"snapshot-{after}")
    if not after and not (folder / "log").exists():
        return tables, 0
    return tables, DeltaReader(folder / "log").replay(tables, after=after).sequence


class DeltaLogScenario:
    """The delta log of a shard, with a snapshot and a compaction after every third segment."""

    name = "delta_log"

    def open(self, folder: Path) -> Writer:
        return _LogWriter(folder)

    def recover(self, folder: Path) -> int:
        return step_of(_recover_log(folder)[0])

    def leftovers(self, folder: Path) -> list[str]:
        return temporary_names(folder / "log", (".tmp",))


class _Publishing:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables = MultiTable(_SPECS)
        self._step = 0
        rows = LocalRowLog(folder / "published", self._tables, clock=SystemClock())
        try:
            self._publisher = Publisher(folder / "published", rows, lambda: weights_at(self._step), clock=SystemClock())
        except BaseException:
            rows.close()
            raise

    def advance(self, step: int) -> None:
        self._step = step
        set_rows(self._tables, step)
        state = self._publisher.publish()
        if step % 3 == 0:
            self._tables.save(self._folder / f"base-{step}")
            self._publisher.rebase(self._folder / f"base-{step}", state)

    def close(self) -> None:
        self._publisher.close()


class PublishScenario:
    """A published folder: cuts of rows and dense weights, with a new base at every third step."""

    name = "publish"

    def open(self, folder: Path) -> Writer:
        return _Publishing(folder)

    def recover(self, folder: Path) -> int:
        root = folder / "published"
        cut = read_cut(root)
        if cut is None:
            return 0
        step = step_of(rebuild_tables(plan_update(root, cut, {}), MultiTable(_SPECS).to_serving(), (0, 1)))
        weights, _ = DenseReader(root).changes(cut.dense)
        wanted = weights_at(step)
        assert weights.keys() == wanted.keys()
        assert all(np.array_equal(weights[name], wanted[name]) for name in wanted), f"weights are not of step {step}"
        return step

    def leftovers(self, folder: Path) -> list[str]:
        return temporary_names(folder / "published", (".tmp",))


_SUB_MODELS = ("dense_0", "entry", "ps_0")


@dataclass
class _ExportWriter:
    folder: Path
    tables: MultiTable

    def advance(self, step: int) -> None:
        set_rows(self.tables, step)

        def fill(staging: Path, version: int) -> dict[str, ExportManifest]:
            serving = self.tables.to_serving()
            for sub in _SUB_MODELS:
                serving.save_images(staging / sub / "tables")
                write_synced(staging / sub / "program.bin", b"%d" % step * 1000)
            return {sub: self._header(version, sub, step) for sub in _SUB_MODELS}

        # Every third export overwrites the version of the step before.
        version = step - (step % 3 == 0)
        ExportFolder(self.folder / "exports").add(
            version, _SUB_MODELS, fill, now_s=0.0, overwrite=True, keep_steps=range(step - 2, step + 1)
        )

    def _header(self, version: int, sub: str, step: int) -> ExportManifest:
        return ExportManifest(
            name="model",
            version=version,
            sub_model=sub,
            global_step=step,
            exported_at_s=float(step),
            package_version="0",
            signatures={},
        )

    def close(self) -> None:
        pass


class ExportScenario:
    """Exports of three sub-models with table images; some overwrite a version."""

    name = "export"

    def open(self, folder: Path) -> Writer:
        return _ExportWriter(folder, MultiTable(_SPECS))

    def recover(self, folder: Path) -> int:
        """Return the step of the newest version of the entry; each of its parts must be whole.

        An overwritten version may have parts of both exports for a moment: sub-models change one after the other.
        """
        exports = ExportFolder(folder / "exports")
        versions = exports.versions("entry")
        if not versions:
            return 0
        steps = {sub: self._step_of_export(exports.path_of(versions[-1], sub)) for sub in _SUB_MODELS}
        assert max(steps.values()) - min(steps.values()) <= 1, f"sub-models hold steps {steps}"
        return steps["entry"]

    def _step_of_export(self, path: Path) -> int:
        manifest = read_export_manifest(path)
        verify_files(path, manifest)
        step = step_of(MultiTable.load_images(path / "tables"))
        assert manifest.global_step == step
        assert (path / "program.bin").read_bytes() == b"%d" % step * 1000
        return step

    def leftovers(self, folder: Path) -> list[str]:
        return temporary_names(folder, ("temp-", ".removed-", ".tmp"))


@dataclass
class _SealedWriter:
    folder: Path

    def advance(self, step: int) -> None:
        replace_file(self.folder / "state.json", seal({"step": step, "filler": "x" * (step % 5) * 700}))

    def close(self) -> None:
        pass


class SealedFileScenario:
    """A sealed file that is replaced again and again."""

    name = "sealed_file"

    def open(self, folder: Path) -> Writer:
        return _SealedWriter(folder)

    def recover(self, folder: Path) -> int:
        path = folder / "state.json"
        return int(unseal(path.read_bytes())["step"]) if path.exists() else 0

    def leftovers(self, folder: Path) -> list[str]:
        return []  # temporary files of a killed writer belong to the owner of the folder


SCENARIOS: dict[str, Scenario] = {
    each.name: each
    for each in (
        SealedFileScenario(),
        SnapshotScenario(),
        CheckpointScenario(),
        DeltaLogScenario(),
        PublishScenario(),
        ExportScenario(),
    )
}


# --- mistakes that the judge must notice ---


@dataclass(frozen=True)
class _CarelessWriter:
    folder: Path
    mistake: str

    def advance(self, step: int) -> None:
        content = seal({"step": step, "filler": "x" * 700})
        path = self.folder / "state.json"
        temporary = self.folder / "state.json.tmp"
        if self.mistake == "in_place":
            write_synced(path, content)
        elif self.mistake == "no_fsync":
            temporary.write_bytes(content)
            temporary.replace(path)
            sync_folder(self.folder)
        elif self.mistake == "no_folder_fsync":
            write_synced(temporary, content)
            temporary.replace(path)
        elif self.mistake == "old_removed_first":
            write_synced(self.folder / f"state-{step}.json", content)
            for old in self.folder.glob("state-*.json"):
                if old.name != f"state-{step}.json":
                    old.unlink()
            sync_folder(self.folder)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class CarelessScenario:
    """A file that is replaced with one of the usual mistakes."""

    name: str

    def open(self, folder: Path) -> Writer:
        return _CarelessWriter(folder, self.name)

    def recover(self, folder: Path) -> int:
        paths = [*folder.glob("state-*.json"), *folder.glob("state.json")]
        return max((int(unseal(path.read_bytes())["step"]) for path in paths), default=0)

    def leftovers(self, folder: Path) -> list[str]:
        return []


CARELESS: dict[str, Scenario] = {
    name: CarelessScenario(name) for name in ("in_place", "no_fsync", "no_folder_fsync", "old_removed_first")
}
