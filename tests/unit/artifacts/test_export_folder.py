from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from monolith.artifacts import export_folder
from monolith.artifacts.export_folder import STATE_FILE, ExportFolder
from monolith.artifacts.export_manifest import ExportManifest, read_export_manifest
from monolith.core import durable_files
from monolith.core.errors import ConfigError, ManifestInvalid, VersionConflict

NOW = 1_700_000_000.25


def header(version: int, step: int = 1) -> ExportManifest:
    return ExportManifest(
        name="ctr",
        version=version,
        sub_model="standalone",
        global_step=step,
        exported_at_s=NOW,
        package_version="0.1.0",
        signatures={},
    )


def add(folder: ExportFolder, version: int | None = None, *, subs: tuple[str, ...] = ("",), text: str = "x", **options):
    step, tables_version = options.pop("step", 1), options.pop("tables_version", None)

    def fill(staging: Path, chosen: int) -> dict[str, ExportManifest]:
        for sub in subs:
            (staging / sub / "data").write_text(text)
        return {sub: dataclasses.replace(header(chosen, step), tables_version=tables_version) for sub in subs}

    return folder.add(version, subs, fill, now_s=NOW, **options)


def names(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_a_version_is_unix_seconds_and_the_next_one_higher(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path / "base")
    assert add(folder)[""] == tmp_path / "base" / "1700000000"
    assert add(folder)[""].name == "1700000001"
    assert folder.versions() == [1_700_000_000, 1_700_000_001]
    assert folder.newest() == tmp_path / "base" / "1700000001"
    assert read_export_manifest(folder.path_of(1_700_000_001)).version == 1_700_000_001


@pytest.mark.parametrize("version", [0, -1, 2**63, 1.5, "7", True])
def test_an_invalid_version_is_refused(tmp_path: Path, version: object) -> None:
    with pytest.raises(ConfigError, match="version is"):
        add(ExportFolder(tmp_path), version)  # type: ignore[arg-type]


def test_a_version_that_is_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    add(folder, 3, text="old")

    def fill(staging: Path, chosen: int) -> dict[str, ExportManifest]:
        raise AssertionError("not reached")

    with pytest.raises(VersionConflict, match="--overwrite"):
        folder.add(3, [""], fill, now_s=NOW)
    assert (folder.path_of(3) / "data").read_text() == "old"


def test_overwriting_replaces_a_version(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    add(folder, 3, text="old")
    add(folder, 3, text="new", overwrite=True)
    assert (folder.path_of(3) / "data").read_text() == "new"
    assert names(tmp_path) == ["3", STATE_FILE]


def test_a_file_system_that_cannot_exchange_names_is_served_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "_RENAME_EXCHANGE", 1 << 20)  # no such flag: EINVAL
    folder = ExportFolder(tmp_path)
    add(folder, 3, text="old")
    add(folder, 3, text="new", overwrite=True)
    assert (folder.path_of(3) / "data").read_text() == "new"
    assert names(tmp_path) == ["3", STATE_FILE]


def test_a_failure_leaves_the_target_untouched_and_nothing_behind(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    add(folder, 3, text="old")

    def fill(staging: Path, chosen: int) -> dict[str, ExportManifest]:
        (staging / "data").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        folder.add(3, [""], fill, now_s=NOW, overwrite=True)
    assert (folder.path_of(3) / "data").read_text() == "old"
    assert names(tmp_path) == ["3", STATE_FILE]


def test_sub_models_come_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ExportFolder(tmp_path)
    subs = ("entry", "ps_0", "ps_1")
    add(folder, 1, subs=subs, text="old")
    assert folder.sub_models() == ["entry", "ps_0", "ps_1"]
    put = export_folder.replace_folder

    def failing(source: Path, target: Path) -> None:
        if target.parent.name == "entry":
            raise OSError("no")
        put(source, target)

    monkeypatch.setattr(export_folder, "replace_folder", failing)
    with pytest.raises(OSError, match="no"):
        add(folder, 2, subs=subs)
    with pytest.raises(OSError, match="no"):
        add(folder, 1, subs=subs, text="new", overwrite=True)
    monkeypatch.setattr(export_folder, "replace_folder", put)
    for sub in subs:
        assert folder.versions(sub) == [1]
        assert (folder.path_of(1, sub) / "data").read_text() == "old"


def test_the_parts_are_there_before_the_entry_that_asks_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    put = export_folder.replace_folder
    monkeypatch.setattr(
        export_folder, "replace_folder", lambda source, target: (order.append(target.parent.name), put(source, target))
    )
    add(ExportFolder(tmp_path), 1, subs=("entry", "dense_0", "ps_0"))
    assert order == ["dense_0", "ps_0", "entry"]


def test_exports_go_with_their_checkpoints(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    for version, step in ((1, 10), (2, 20), (3, 30)):
        add(folder, version, step=step)
    assert folder.recorded() == {1: 10, 2: 20, 3: 30}
    add(folder, 4, step=45, follows_step=40, keep_steps={20, 40})
    assert folder.versions() == [2, 4]
    assert folder.recorded() == {2: 20, 4: 40}
    text = (tmp_path / STATE_FILE).read_text()
    assert text.startswith(f'entries {{\n  export_dir: "{tmp_path}/2"\n  global_step: 20\n}}\n')


def test_tables_stay_as_long_as_an_entry_without_tables_reads_them(tmp_path: Path) -> None:
    folder, parts = ExportFolder(tmp_path), ("entry", "ps_0")
    add(folder, 1, step=10, subs=parts)
    add(folder, 2, step=20, subs=parts)
    add(folder, 3, step=30, subs=("entry",), tables_version=2)
    add(folder, 4, step=40, subs=parts, keep_steps={30, 40})
    assert (folder.versions("entry"), folder.versions("ps_0")) == ([3, 4], [2, 4])
    (folder.path_of(3, "entry") / "manifest.json").write_text("damaged")
    add(folder, 5, step=50, subs=parts, keep_steps={30, 50})
    assert (folder.versions("entry"), folder.versions("ps_0")) == ([3, 5], [5])


def test_versions_that_were_not_recorded_are_never_removed(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    add(folder, 1, step=10)
    (tmp_path / STATE_FILE).unlink()
    add(folder, 2, step=20, keep_steps={20})
    assert folder.versions() == [1, 2]


def test_an_invalid_state_file_is_logged_and_the_export_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = ExportFolder(tmp_path)
    (tmp_path / STATE_FILE).write_text("something else")
    with pytest.raises(ManifestInvalid, match="expected a list of exports"):
        folder.recorded()
    assert add(folder, 5)[""].is_dir()
    assert "not recorded" in caplog.text


CHILD = """
import dataclasses, sys
from pathlib import Path
from monolith import _native
from monolith.artifacts.export_folder import ExportFolder
from monolith.artifacts.export_manifest import ExportManifest
root, point = sys.argv[1:]
folder = ExportFolder(root)
def fill(text):
    def write(staging, version):
        (staging / "data").write_text(text)
        return {"": ExportManifest(name="m", version=version, sub_model="standalone", global_step=1, exported_at_s=0.0,
                                   package_version="0", signatures={})}
    return write
folder.add(1, [""], fill("old"), now_s=1.0)
_native.set_failpoint(point)
folder.add(1, [""], fill("new"), now_s=1.0, overwrite=True)
"""


@pytest.mark.parametrize(
    ("point", "text"),
    [
        ("export.before_manifest", "old"),
        ("export.before_rename", "old"),
        ("export.sub_model_there", "new"),
        ("export.after_rename", "new"),
    ],
)
def test_a_killed_export_leaves_the_old_version_or_the_new_one_whole(tmp_path: Path, point: str, text: str) -> None:
    ended = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), point], timeout=120, check=False)
    assert ended.returncode == -9
    folder = ExportFolder(tmp_path)
    assert folder.versions() == [1]
    assert (folder.path_of(1) / "data").read_text() == text
    assert read_export_manifest(folder.path_of(1)).version == 1
    add(folder, 2)
    assert names(tmp_path) == ["1", "2", STATE_FILE]


def test_an_unfinished_export_is_not_listed_as_a_version(tmp_path: Path) -> None:
    (tmp_path / "temp-5-abc").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    assert ExportFolder(tmp_path).versions() == []


def test_an_export_of_a_step_without_a_checkpoint_stays_when_it_is_written(tmp_path: Path) -> None:
    folder = ExportFolder(tmp_path)
    add(folder, 1, step=10)
    add(folder, 2, step=20, keep_steps={10})
    assert folder.versions() == [1, 2]
    assert folder.recorded() == {1: 10, 2: 20}
    add(folder, 3, step=30, keep_steps={10})
    assert folder.versions() == [1, 3], "the one before goes with the next export"


def test_records_of_tensorflow_with_bytes_beyond_ascii_are_read(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text('entries {\n  export_dir: "/mod\\303\\250le/12"\n  global_step: 3\n}\n')
    assert ExportFolder(tmp_path).recorded() == {12: 3}
