from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from monolith.artifacts.delta_log import Cut, DeltaWriter, publish, shard_folder
from monolith.cli import main as program
from monolith.core.errors import ConfigError, DeltaLogBroken
from monolith.embedding import MultiTable, Sgd, SliceSpec, TableSpec
from monolith.testing.fakes.clock import FakeClock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The logs of two shards, three segments each, a second apart."""
    for index in range(2):
        clock = FakeClock(now_s=1_700_000_000.0)
        tables = MultiTable([TableSpec("user", [SliceSpec(2, optimizer=Sgd(0.1))])])
        with DeltaWriter(shard_folder(tmp_path, index, 2), (index, 2), tables, clock=clock) as writer:
            for number in range(3):
                tables["user"].assign([2 * number + index], np.ones((1, 2)), time_s=1_600_000_000 + number)
                tables["user"].delete([2 * number + index - 2])
                writer.write()
                clock.advance_s(1)
    publish(tmp_path, Cut(sequences={0: 3, 1: 2}, dense=9), clock=FakeClock(now_s=1_700_000_005.0))
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(program.app, ["inspect", "delta", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: object) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return report


def test_the_plain_form_shows_the_content_of_the_logs(root: Path) -> None:
    out = run(root, "--verify")
    assert "cut 1 of 2023-11-14 22:13:25 UTC: dense 9, shards {0: 3, 1: 2}" in out
    assert f"{shard_folder(root, 1, 2)}: durable, shard 1 of 2, 3 segments, " in out
    assert out.count("all checksums match") == 2
    assert "  1  2023-11-14 22:13:20 UTC, newest event 2020-09-13 12:26:40 UTC" in out
    assert out.count(", all rows") == 2
    assert "    user: 1 rows changed, 1 removed" in out


@pytest.mark.parametrize(
    ("moment", "replay"),
    [
        ("2", [1, 2]),
        ("@1700000000.5", [1]),
        ("2023-11-14T22:13:21", [1, 2]),
        ("2023-11-15T00:13:21+02:00", [1, 2]),
        ("2000-01-01", []),
    ],
)
def test_a_moment_shows_the_segments_of_a_replay(root: Path, moment: str, replay: list[int]) -> None:
    assert as_json(shard_folder(root, 0, 2), "--at", moment)["logs"][0]["replay"] == replay


def test_a_compacted_log_is_sound_from_its_oldest_segment_on(root: Path) -> None:
    folder = shard_folder(root, 0, 2)
    (folder / f"seg-{1:020d}.delta").unlink()
    assert as_json(folder, "--verify", "--at", "3")["logs"][0]["replay"] == [2, 3]
    assert "segments 2 to 3 (2)" in run(folder, "--at", "3")


def test_damage_is_shown_and_is_an_error(root: Path) -> None:
    victim = shard_folder(root, 1, 2) / f"seg-{2:020d}.delta"
    content = bytearray(victim.read_bytes())
    content[-3] ^= 1
    victim.write_bytes(content)
    assert as_json(root)["logs"][1]["damage"] is None, "headers alone are read unless asked for more"
    with pytest.raises(DeltaLogBroken, match="the last good segment is 1"):
        run(root, "--verify")
    victim.unlink()
    with pytest.raises(DeltaLogBroken, match="has a gap"):
        run(root, "--verify")
    result = CliRunner().invoke(program.app, ["inspect", "delta", str(root), "--verify"])
    assert "damage: delta log" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--at", "soon"], "--at is .soon"),
        (["--at", "@x"], "--at is .@x"),
    ],
)
def test_an_invalid_moment_is_refused(root: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(root, *arguments)


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contains no delta log"):
        run(tmp_path)
    with pytest.raises(ConfigError, match="expected the folder of a delta log"):
        run(tmp_path / "none")
