"""Writers of durable files under the fault layer: failing and slow disks, short writes, and power loss.

A run is recorded by ``cpp/testing/fault_layer.c``. The judge replays the records up to some moment, drops everything
that was not synced, and opens the survivors as a restarted process does. ``TEST_SEED`` repeats a run, and
``MONOLITH_FAULT_POINTS`` sets the number of random moments per run.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_layer import FaultHost, why_no_fault_layer
from file_judge import FAULTS, TARGETS, choose_points, judge_power_losses, judge_run
from file_record import SimulatedDisk
from file_scenarios import CARELESS, SCENARIOS

pytestmark = pytest.mark.skipif(bool(why_no_fault_layer()), reason=why_no_fault_layer() or "-")

POINTS = int(os.environ.get("MONOLITH_FAULT_POINTS", "8"))


@pytest.fixture(scope="module")
def host() -> Iterator[FaultHost]:
    with FaultHost() as running:
        yield running


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", SCENARIOS)
def test_acknowledged_steps_survive_a_power_loss_at_any_moment(
    host: FaultHost, name: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    root = tmp_path / "files"
    root.mkdir()
    disk = SimulatedDisk(root)
    run = host.run(name, root, steps=6)
    assert (run.status, run.failures, run.problems) == (0, [], [])
    points = choose_points(run.records, POINTS, chance)
    assert judge_power_losses(SCENARIOS[name], disk, run.records, points, tmp_path, chance) == []
    # The records are complete: replayed without a loss they give the real files.
    disk.restore(tmp_path / "replayed", "everything")
    assert content_of(tmp_path / "replayed") == content_of(root)
    assert SCENARIOS[name].leftovers(root) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_writer_resumes_from_the_survivors_of_a_power_loss(
    host: FaultHost, name: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    root = tmp_path / "files"
    root.mkdir()
    disk = SimulatedDisk(root)
    run = host.run(name, root, steps=4)
    for record in run.records[: chance.randrange(len(run.records) // 2, len(run.records))]:
        disk.apply(record)
    survivors = tmp_path / "survivors"
    disk.restore(survivors, "random", chance)
    again = host.run(name, survivors, first=10, steps=2)
    assert (again.status, again.failures, again.problems) == (0, [], [])
    assert SCENARIOS[name].recover(survivors) == 11
    assert SCENARIOS[name].leftovers(survivors) == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_failed_operation_loses_no_acknowledged_step(host: FaultHost, name: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    faults = 0
    for number, (fault, rule) in enumerate(chance.sample(sorted(FAULTS.items()), len(FAULTS))):
        if number >= 6 and faults > 0:
            break
        # Beyond the usual six only if none of them struck, for a scenario with few operations: then without delay.
        most = 1 if number >= 6 else 2 if number % 2 else 12
        rules = f"{rule},skip={chance.randrange(most)},times={chance.choice([1, 2])}"
        verdict = judge_run(host, name, tmp_path / str(number), rules, chance, steps=3, points=2)
        assert verdict.problems == [], f"{fault}: {rules}, seed {seed}"
        faults += verdict.faults
    assert faults > 0


@pytest.mark.parametrize(("name", "file", "operation"), TARGETS)
def test_a_failed_operation_on_each_kind_of_file_is_reported_and_repeated(
    host: FaultHost, name: str, file: str, operation: str, tmp_path: Path, seed: int
) -> None:
    rules = f"on={operation},match={file},do=EIO,skip={int(file != 'publisher.lock')}"
    verdict = judge_run(host, name, tmp_path / "files", rules, random.Random(seed), steps=4, points=0)
    assert verdict.problems == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_short_writes_and_a_slow_disk_change_nothing(host: FaultHost, name: str, tmp_path: Path, seed: int) -> None:
    root = tmp_path / "files"
    root.mkdir()
    rules = f"on=write,do=short,times=-1,chance=700,seed={seed};on=fsync,do=delay:20,times=5"
    run = host.run(name, root, steps=3, rules=rules)
    assert (run.status, run.failures, run.problems) == (0, [], [])
    assert run.faults > 0
    assert SCENARIOS[name].recover(root) == 3


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_kill_between_any_two_operations_loses_no_acknowledged_step(
    host: FaultHost, name: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    for number in range(3):
        root = tmp_path / str(number)
        root.mkdir()
        run = host.run(name, root, steps=9, rules=f"on=any,do=kill,skip={chance.randrange(10, 60)}")
        done = [int(record.text.split()[1]) for record in run.records if record.text.startswith("done ")]
        assert run.status in (-9, 0)
        reached = SCENARIOS[name].recover(root)
        assert max(done, default=0) <= reached <= max(done, default=0) + 1
        again = host.run(name, root, first=10, steps=1)
        assert (again.status, again.failures, again.problems) == (0, [], [])
        assert SCENARIOS[name].leftovers(root) == []


@pytest.mark.parametrize("name", CARELESS)
def test_the_judge_notices_a_careless_writer(host: FaultHost, name: str, tmp_path: Path) -> None:
    root = tmp_path / "files"
    root.mkdir()
    disk = SimulatedDisk(root)
    run = host.run(name, root, steps=6)
    assert (run.status, run.failures) == (0, [])
    points = range(len(run.records))
    assert judge_power_losses(CARELESS[name], disk, run.records, points, tmp_path, random.Random(0)) != []
