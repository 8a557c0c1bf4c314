"""The event log on a disk that fails, and after a power loss at random moments."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from fault_layer import build_fault_layer, why_no_fault_layer
from file_record import Record, SimulatedDisk, Survival, read_records
from monolith.core.errors import DataError
from monolith.data.sources.event_log.source import EventLogSource
from monolith.data.sources.event_log.topic import Topic

pytestmark = pytest.mark.skipif(bool(why_no_fault_layer()), reason=why_no_fault_layer() or "-")

CHILD = Path(__file__).parents[1] / "support" / "log_fault_child.py"
POINTS = int(os.environ.get("MONOLITH_FAULT_POINTS", "12"))


def run(folder: Path, durability: str, count: int, rules: str = "") -> tuple[str, list[Record]]:
    record = folder.with_name(f"{folder.name}.record")
    environment = {**os.environ, "LD_PRELOAD": str(build_fault_layer())}
    arguments = [str(CHILD), str(folder), str(record), durability, str(count), rules]
    child = subprocess.run(
        [sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True
    )
    return child.stdout.strip().splitlines()[-1], read_records(record)


def read(folder: Path, on_corrupt: Literal["raise", "skip"] = "raise") -> list[int]:
    source = EventLogSource(Topic.open(folder, "events"), "example", until_end=True, on_corrupt=on_corrupt)
    numbers: list[int] = []
    while (chunk := source.read()) is not None:
        numbers += [int(chunk[index].split(b" ", 1)[0]) for index in range(len(chunk))]
    source.close()
    return numbers


def acknowledged(records: list[Record]) -> int:
    return sum(record.kind == "N" and record.text.startswith("done ") for record in records)


@pytest.mark.parametrize("durability", ["commit", "interval"])
def test_a_power_loss_keeps_acknowledged_records(durability: str, tmp_path: Path, seed: int) -> None:
    """Commit mode keeps a prefix with every acknowledged record.

    Interval mode may lose unsynced records, also from the middle: readers report them, the rest is in order. A topic
    that was never created loses nothing.
    """
    chance = random.Random(seed)
    root = tmp_path / "files"
    root.mkdir()
    disk = SimulatedDisk(root)
    result, records = run(root, durability, 25)
    assert result == "done"
    moments = sorted(chance.sample(range(1, len(records) + 1), min(POINTS, len(records))))
    applied = 0
    for number, moment in enumerate(moments):
        for record in records[applied:moment]:
            disk.apply(record)
        applied = moment
        survival: Survival = chance.choice(["synced", "random", "names", "everything"])
        place = f"seed {seed}, moment {moment}, {survival}"
        survivors = tmp_path / f"survivors-{number}"
        disk.restore(survivors, survival, chance)
        safe = acknowledged(records[:moment])
        if not (survivors / "events" / "topic.json").exists():
            assert safe == 0
            continue
        if durability == "commit" or survival == "everything":
            numbers = read(survivors)
            assert numbers == list(range(len(numbers))), place
            assert len(numbers) >= safe, place
        else:
            numbers = read(survivors, "skip")
            assert numbers == sorted(set(numbers)), place
        partition = Topic.open(survivors, "events").open_partition(0)
        end = partition.written_end
        assert partition.append([b"99 "], [b""], [1]) == end, place
        partition.sync(end + 1)
        assert read(survivors, "skip") == [*numbers, 99], place


def test_a_failed_sync_stops_the_partition_until_it_is_repaired(tmp_path: Path) -> None:
    root = tmp_path / "files"
    root.mkdir()
    result, records = run(root, "commit", 8, "on=fsync,do=EIO,match=seg-,skip=2,times=1")
    assert result.startswith("DataError: ")
    assert "monolith log repair" in result
    topic = Topic.open(root, "events")
    partition = topic.open_partition(0)
    assert partition.has_failed
    with pytest.raises(DataError, match="has failed"):
        partition.append([b"x"], [b""], [1])
    assert len(read(root)) >= acknowledged(records)  # readers stay at the durable end
    changes = type(partition).repair(topic.native_settings(0))
    assert changes == ["started a new segment after a failed fdatasync"]
    assert partition.append([b"99 "], [b""], [1]) == partition.written_end - 1
    partition.sync(partition.written_end)
    assert read(root)[-1] == 99


def test_a_full_disk_inside_any_operation_loses_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(4):
        root = tmp_path / str(number)
        root.mkdir()
        operation = ("write", "create", "truncate", "rename")[number]
        rules = f"on={operation},do=ENOSPC,skip={chance.randrange(6)},times=1"
        _, records = run(root, "interval", 12, rules)
        numbers = read(root)
        assert numbers == list(range(len(numbers))), f"seed {seed}: {rules}"
        assert len(numbers) >= acknowledged(records), f"seed {seed}: {rules}"
