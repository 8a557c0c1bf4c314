"""Judge the files of a scenario after simulated power losses: every acknowledged step must be there, whole.

``judge_power_losses`` replays the records of a run, and restores the survivors at chosen moments. ``judge_run`` runs a
scenario under faults and judges everything that it leaves. Both return problems as text; an empty list is a pass.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from fault_layer import FaultHost, FaultRun
from file_record import Record, SimulatedDisk, Survival
from file_scenarios import SCENARIOS, Scenario

__all__ = ["FAULTS", "TARGETS", "Verdict", "choose_points", "judge_power_losses", "judge_run"]

FAULTS = {
    "write EIO": "on=write,do=EIO",
    "write ENOSPC": "on=write,do=ENOSPC",
    "fsync EIO": "on=fsync,do=EIO",
    "fsync ENOSPC": "on=fsync,do=ENOSPC",
    "folder fsync EIO": "on=fsync_folder,do=EIO",
    "rename EIO": "on=rename,do=EIO",
    "rename ENOSPC": "on=rename,do=ENOSPC",
    "create ENOSPC": "on=create,do=ENOSPC",
    "create EMFILE": "on=create,do=EMFILE",
    "mkdir ENOSPC": "on=mkdir,do=ENOSPC",
    "unlink EIO": "on=unlink,do=EIO",
    "truncate EIO": "on=truncate,do=EIO",
    "alloc ENOMEM": "on=alloc,do=ENOMEM,least=4096",
}
"""Name of a fault to its rule; ``skip`` and ``times`` are added."""

TARGETS = [
    ("snapshot", "manifest.json", "rename"),
    ("snapshot", ".rows", "fsync"),
    ("checkpoint", "manifest.json", "fsync"),
    ("checkpoint", "dense.bin", "fsync"),
    ("checkpoint", "step-", "rename"),
    ("delta_log", "seg-", "rename"),
    ("delta_log", "snapshot-", "fsync"),
    ("publish", "cut.json", "rename"),
    ("publish", "base.json", "rename"),
    ("publish", ".safetensors", "fsync"),
    ("publish", "dense-", "rename"),
    ("publish", "publisher.lock", "fsync"),
    ("export", ".table", "fsync"),
    ("export", "entry", "rename"),
    ("export", "ExportSaver", "rename"),
]
"""Scenarios with a part of the name of each kind of file, and an operation that fails."""

_SURVIVALS: tuple[Survival, ...] = ("synced", "names", "removals", "newest", "random")


@dataclass
class Verdict:
    """Outcome of one run under faults."""

    problems: list[str] = field(default_factory=list)
    faults: int = 0
    operations: int = 0
    power_losses: int = 0


def choose_points(records: list[Record], count: int, chance: random.Random) -> set[int]:
    """Return numbers of records to lose the power after: acknowledgements, renames, ends of removals, random others."""
    kinds = [record.kind for record in records]
    chosen = {number for number, record in enumerate(records) if record.text.startswith("done ")}
    removals = [number for number in range(len(kinds) - 1) if kinds[number] == "U" != kinds[number + 1]]
    renames = [number for number, kind in enumerate(kinds) if kind == "R"]
    chosen |= {*removals[-count:], *chance.sample(renames, min(count, len(renames)))}
    others = sorted(set(range(len(records))) - chosen)
    return chosen | set(chance.sample(others, min(count, len(others))))


def judge_power_losses(
    scenario: Scenario,
    disk: SimulatedDisk,
    records: list[Record],
    points: Collection[int],
    scratch: Path,
    chance: random.Random,
    *,
    earlier: int = 0,
) -> list[str]:
    """Return the problems of power losses at some points of a run.

    Args:
        scenario: The scenario.
        disk: The disk before the run.
        records: Records of the run.
        points: Numbers of records; the power is lost after each.
        scratch: Folder for the survivors.
        chance: Random numbers.
        earlier: Step that was acknowledged before the run.
    """
    problems = []
    done = begun = earlier
    for number, record in enumerate(records):
        disk.apply(record)
        if record.kind == "N":
            word, step = record.text.split()
            begun = max(begun, int(step))
            done = int(step) if word == "done" else done
        for survival in _SURVIVALS if number in points else ():
            target = scratch / "survivors"
            shutil.rmtree(target, ignore_errors=True)
            disk.restore(target, survival, chance)
            where = f"power loss after record {number} ({record.kind} {_name(record)}), survival {survival}"
            try:
                step_found = scenario.recover(target)
            except Exception as error:
                problems.append(f"{where}: acknowledged {done}: {type(error).__name__}: {error}")
                continue
            if not done <= step_found <= begun:
                problems.append(f"{where}: step {step_found} is there, acknowledged {done}, begun {begun}")
    return problems


def judge_run(
    host: FaultHost, name: str, folder: Path, rules: str, chance: random.Random, *, steps: int = 4, points: int = 10
) -> Verdict:
    """Run a scenario under faults with retries, then without, and judge all that it leaves.

    Args:
        host: Runs the scenario.
        name: Name of the scenario.
        folder: A new folder; scratch folders lie beside it.
        rules: Rules of the fault layer.
        chance: Random numbers.
        steps: Steps under faults.
        points: Random moments of power loss, besides the acknowledgements.
    """
    scenario = SCENARIOS[name]
    folder.mkdir(parents=True)
    scratch = folder.with_name(f"{folder.name}.scratch")
    scratch.mkdir()
    disk = SimulatedDisk(folder)
    run = host.run(name, folder, steps=steps, rules=rules, tries=3)
    verdict = Verdict(faults=run.faults, operations=run.operations)
    verdict.problems += _judge_outcome(run)
    chosen = choose_points(run.records, points, chance)
    verdict.power_losses += len(chosen) * len(_SURVIVALS)
    verdict.problems += judge_power_losses(scenario, disk, run.records, chosen, scratch, chance)
    after = host.run(name, folder, first=steps + 1, steps=1)
    verdict.operations += after.operations
    if after.failures or after.problems or after.status != 0:
        verdict.problems.append(f"the next step failed without a fault: {after.failures} {after.problems}")
    else:
        reached = scenario.recover(folder)
        if reached != steps + 1:
            verdict.problems.append(f"step {reached} is there after step {steps + 1}")
        if left := scenario.leftovers(folder):
            verdict.problems.append(f"names are left over: {left}")
    return verdict


def _judge_outcome(run: FaultRun) -> list[str]:
    problems = list(run.problems)
    if run.status != 0:
        problems.append(f"the process ended with status {run.status}")
    expected = ("OSError", "SnapshotCorrupt", "ArtifactError", "DeltaLogBroken", "ManifestInvalid", "MemoryError")
    problems += [f"unexpected error: {text}" for text in run.failures if not text.split(": ")[1].endswith(expected)]
    return problems


def _name(record: Record) -> str:
    return record.text[-60:] if record.kind != "W" else f"of {len(record.first)} bytes"
