from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from monolith.artifacts import (
    CheckpointFolder,
    CheckpointManifest,
    Retention,
    checkpoint_folder,
    read_manifest,
    verify_files,
)
from monolith.core.durable_files import seal, unseal
from monolith.core.errors import ArtifactError, CheckpointMissing, ConfigError, ManifestInvalid, VersionConflict

KEEP_ALL = Retention(max_to_keep=None, spare_every_s=None)


def header(step: int, saved_at_s: float = 0.0) -> CheckpointManifest:
    return CheckpointManifest(
        step=step, number=0, kind="full", saved_at_s=saved_at_s, reason="test", package_version="0"
    )


def fill(folder: Path) -> Mapping[str, int]:
    (folder / "a").write_bytes(b"abc")
    (folder / "tables").mkdir()
    (folder / "tables/b").write_bytes(os.urandom(100))
    return {"user": 7}


def add(folder: CheckpointFolder, *steps: int, retention: Retention = KEEP_ALL, saved_at_s: float = 0.0) -> None:
    for step in steps:
        folder.add(header(step, saved_at_s), fill, retention=retention, started_at_s=0.0)


def steps_of(folder: CheckpointFolder) -> list[int]:
    return [saved.step for saved in folder.saved()]


def test_an_empty_or_absent_folder_has_no_checkpoints(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        assert CheckpointFolder(root).saved() == []
        assert CheckpointFolder(root).newest() is None
        assert CheckpointFolder(root).last_number() == 0


def test_the_manifest_names_the_files_of_the_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    saved = folder.add(header(5), fill, retention=KEEP_ALL, started_at_s=0.0)
    assert saved.path == tmp_path / "step-000000005"
    assert read_manifest(saved.path) == saved.manifest
    assert saved.manifest.number == 1
    assert saved.manifest.bytes == 103
    assert dict(saved.manifest.tables) == {"user": 7}
    assert [file.name for file in saved.manifest.files] == ["a", "tables/b"]
    verify_files(saved.path, saved.manifest)


def test_a_save_that_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 1)

    def fails(folder: Path) -> Mapping[str, int]:
        fill(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        folder.add(header(2), fails, retention=KEEP_ALL, started_at_s=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]


def test_the_newest_is_the_one_saved_last_not_the_one_with_the_highest_step(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 30, 10)
    assert steps_of(folder) == [30, 10]
    newest = folder.newest()
    assert newest is not None
    assert newest.step == 10


def test_exempt_checkpoints_stay_and_do_not_count(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    keep_3 = Retention(max_to_keep=3)
    add(folder, 10, 20, retention=keep_3)
    folder.exempt("step-000000010")
    folder.exempt("20")
    add(folder, 30, 40, 50, retention=keep_3)
    assert steps_of(folder) == [10, 20, 30, 40, 50]
    add(folder, 60, retention=keep_3)
    assert steps_of(folder) == [10, 20, 40, 50, 60]
    folder.unexempt("10")
    add(folder, 70, retention=keep_3)
    assert steps_of(folder) == [20, 50, 60, 70]


def test_the_exempt_list_forgets_checkpoints_that_are_gone(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 1, 2)
    folder.exempt("1")
    (tmp_path / "step-000000001").rename(tmp_path / "elsewhere")
    folder.exempt("2")
    assert folder.exempted() == {"step-000000002"}
    with pytest.raises(CheckpointMissing, match="step-000000002"):
        folder.exempt("1")


@pytest.mark.parametrize("content", ["{", '{"a": 1}', "[1]"])
def test_a_broken_exempt_list_removes_nothing_and_loses_no_save(tmp_path: Path, content: str) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 1, 2)
    (tmp_path / "exempt.json").write_text(content)
    with pytest.raises(ManifestInvalid, match=r"exempt\.json"):
        folder.exempted()
    add(folder, 3, retention=Retention(max_to_keep=1))
    assert steps_of(folder) == [1, 2, 3]


@pytest.mark.parametrize("content", ["{", "[]", '{"step-000000001": 3}'])
def test_a_broken_list_of_shared_tables_removes_nothing_and_loses_no_save(tmp_path: Path, content: str) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 1, 2)
    (tmp_path / "shared.json").write_text(content)
    with pytest.raises(ManifestInvalid, match=r"shared\.json"):
        folder.pinned()
    add(folder, 3, retention=Retention(max_to_keep=1))
    assert steps_of(folder) == [1, 2, 3]


def test_one_checkpoint_per_period_is_spared(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    rule = Retention(max_to_keep=1, spare_every_s=3600.0)
    for step, hours in enumerate([0.5, 1.5, 1.6, 2.4, 2.6, 2.7, 9.0, 9.1], 1):
        add(folder, step, retention=rule, saved_at_s=3600 * hours)
    assert steps_of(folder) == [2, 5, 7, 8]


def test_sparing_continues_over_restarts() -> None:
    rule = Retention(spare_every_s=24 * 3600)
    _, due_s = rule.spare(None, saved_at_s=10, started_at_s=0)
    assert due_s == 86400
    last = header(1)
    last = CheckpointManifest(**{**{name: getattr(last, name) for name in last.__slots__}, "spare_after_s": due_s})
    assert rule.spare(last, saved_at_s=86401, started_at_s=86000) == (True, 86401 + 86400)
    assert rule.spare(last, saved_at_s=86399, started_at_s=86000) == (False, 86400)
    assert Retention(spare_every_s=None).spare(last, 10**9, 0) == (False, None)


@pytest.mark.parametrize("bad", [{"max_to_keep": -1}, {"spare_every_s": -1.0}, {"spare_every_s": float("nan")}])
def test_a_rule_that_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=r"keep|spare"):
        Retention(**bad)  # type: ignore[arg-type]


def test_leftovers_of_killed_saves_and_removals_go_with_the_next_save(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 1)
    for name in (".saving-dead", ".removed-step-000000000-dead"):
        (tmp_path / name / "tables").mkdir(parents=True)
        (tmp_path / name / "tables/x").write_bytes(b"x")
    assert steps_of(folder) == [1]
    add(folder, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000001", "step-000000002"]


def test_a_checkpoint_that_stood_aside_for_one_that_never_came_gets_its_name_back(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 1)
    (tmp_path / "step-000000001").rename(tmp_path / ".replaced-step-000000001-dead")
    assert steps_of(folder) == []
    folder.repair()
    assert steps_of(folder) == [1]


def test_a_name_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 1, 2)
    assert folder.find("2") == folder.find("step-000000002")
    with pytest.raises(CheckpointMissing, match="step-000000001, step-000000002"):
        folder.find("step-000000009")


def damage(manifest: Path, how: str) -> None:
    if how == "removed":
        manifest.unlink()
    elif how == "altered":
        manifest.write_bytes(manifest.read_bytes().replace(b'"step"', b'"stop"'))
    elif how == "of a later release":
        manifest.write_bytes(seal({**unseal(manifest.read_bytes()), "version": 99}))
    else:
        manifest.write_bytes(seal({"format": "something"}))


@pytest.mark.parametrize("how", ["removed", "altered", "of a later release", "of something else"])
def test_a_damaged_newest_manifest_is_never_passed_over(tmp_path: Path, how: str) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 1, 2)
    damage(tmp_path / "step-000000002/manifest.json", how)
    with pytest.raises(ArtifactError, match=r"step-000000002.*restore_ckpt='step-000000001'") as caught:
        folder.newest()
    assert isinstance(caught.value, VersionConflict) == (how == "of a later release")


def test_a_damaged_manifest_of_an_older_checkpoint_does_not_stop_a_run(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 1)
    damage(tmp_path / "step-000000001/manifest.json", "altered")
    os.utime(tmp_path / "step-000000001", (1, 1))
    add(folder, 2)
    newest = folder.newest()
    assert newest is not None
    assert newest.step == 2


def test_a_flipped_bit_anywhere_in_a_manifest_is_noticed(tmp_path: Path) -> None:
    add(CheckpointFolder(tmp_path), 1)
    manifest = tmp_path / "step-000000001/manifest.json"
    whole = manifest.read_bytes()
    for position in range(0, len(whole), 3):
        altered = bytearray(whole)
        altered[position] ^= 1 << (position % 8)
        manifest.write_bytes(altered)
        with pytest.raises(ManifestInvalid, match=r"manifest\.json"):
            read_manifest(manifest.parent)


def test_a_file_cut_grown_flipped_or_gone_is_named(tmp_path: Path) -> None:
    add(CheckpointFolder(tmp_path), 1)
    folder = tmp_path / "step-000000001"
    manifest = read_manifest(folder)
    for name in ("a", "tables/b"):
        whole = (folder / name).read_bytes()
        for altered in (whole[:-1], whole + b"x", bytes([whole[0] ^ 4]) + whole[1:], None):
            if altered is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(altered)
            with pytest.raises(ManifestInvalid, match=f"{name}'"):
                verify_files(folder, manifest)
        (folder / name).write_bytes(whole)
    verify_files(folder, manifest)


def test_the_manifest_is_plain_json_for_other_programs(tmp_path: Path) -> None:
    add(CheckpointFolder(tmp_path), 1)
    body = json.loads((tmp_path / "step-000000001/manifest.json").read_text())["body"]
    assert (body["format"], body["version"], body["step"]) == ("monolith.checkpoint", 1, 1)


@pytest.mark.parametrize("how", ["removed", "altered"])
def test_a_damaged_newest_checkpoint_of_a_lower_step_is_never_passed_over(tmp_path: Path, how: str) -> None:
    folder = CheckpointFolder(tmp_path)
    add(folder, 9)
    os.utime(tmp_path / "step-000000009", (1000, 1000))
    add(folder, 4)  # after a rollback to an earlier step
    damage(tmp_path / "step-000000004/manifest.json", how)
    with pytest.raises(ArtifactError, match=r"step-000000004.*restore_ckpt='step-000000009'"):
        folder.newest()


def test_a_shorter_period_of_sparing_counts_from_the_next_save() -> None:
    long, short = Retention(spare_every_s=24 * 3600), Retention(spare_every_s=3600)
    _, due_s = long.spare(None, saved_at_s=10, started_at_s=0)
    last = dataclasses.replace(header(1), spare_after_s=due_s)
    is_spared, due_s = short.spare(last, saved_at_s=20, started_at_s=0)
    assert (is_spared, due_s) == (False, 20 + 3600)
    last = dataclasses.replace(header(2), spare_after_s=due_s)
    assert short.spare(last, saved_at_s=20 + 3601, started_at_s=0)[0]


def test_every_folder_of_a_checkpoint_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    rename = Path.rename

    def note_rename(path: Path, target: Path) -> Path:
        events.append(("rename", Path(target).name))
        return rename(path, target)

    def note_sync(folder: Path) -> None:
        relative = folder.relative_to(tmp_path)
        events.append(("sync", "/".join(("saving", *relative.parts[1:])) if relative.parts else "."))

    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(checkpoint_folder, "sync_folder", note_sync)
    add(CheckpointFolder(tmp_path), 5)
    at = events.index(("rename", "step-000000005"))
    assert {("sync", "saving"), ("sync", "saving/tables")} <= set(events[:at])
    assert events[at + 1] == ("sync", "."), "the name must be synced too"
