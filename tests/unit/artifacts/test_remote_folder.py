from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from monolith.artifacts import CheckpointFolder, CheckpointManifest, Retention, remote_folder, verify_files
from monolith.artifacts.checkpoint_manifest import read_manifest
from monolith.artifacts.remote_folder import (
    RemoteFolder,
    artifact_url,
    fetch_bundle,
    local_path,
    open_folder,
    push_folder,
    stage_folder,
)
from monolith.core import storage
from monolith.core.errors import ArtifactError, ConfigError, ManifestInvalid, VersionConflict
from monolith.core.retry import RetryPolicy
from s3_server import BUCKET, s3_server, why_no_s3

TWO = Retention(max_to_keep=2, spare_every_s=None)
ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def s3() -> Iterator[Mapping[str, str]]:
    if why := why_no_s3():
        pytest.skip(why)
    with s3_server() as environment:
        yield environment


@pytest.fixture(params=["memory", "file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("MONOLITH_STAGING_DIR", str(tmp_path / "staging"))
    if request.param == "s3":
        for name, value in request.getfixturevalue("s3").items():
            monkeypatch.setenv(name, value)
        return f"s3://{BUCKET}/{tmp_path.name}/run"
    return f"memory://{tmp_path.name}/run" if request.param == "memory" else f"file://{tmp_path}/remote/run"


def machine(url: str, tmp_path: Path, name: str) -> RemoteFolder:
    return RemoteFolder(url, tmp_path / "staging" / name / "run", policy=ONCE)


def save(folder: RemoteFolder, step: int, content: bytes = b"") -> None:
    def fill(place: Path) -> Mapping[str, int]:
        (place / "tables").mkdir()
        (place / "tables/rows").write_bytes(content or os.urandom(1000))
        (place / "dense").write_bytes(b"weights")
        return {"user": 1}

    header = CheckpointManifest(step=step, number=0, kind="full", saved_at_s=0.0, reason="test", package_version="0")
    checkpoints(folder).add(header, fill, retention=TWO, started_at_s=0.0)


def checkpoints(folder: RemoteFolder) -> CheckpointFolder:
    return CheckpointFolder(folder.path / "checkpoints")


def remote_steps(url: str) -> list[int]:
    names = storage.walk_files(url)
    return [int(name.split("-")[1].split("/")[0]) for name in names if name.endswith("/manifest.json")]


def test_a_checkpoint_travels_to_another_machine_by_its_url(url: str, tmp_path: Path) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    one.pull()
    save(one, 10, b"rows of ten")
    (one.path / "job.json").write_text("{}")
    one.push()
    other.pull()
    newest = checkpoints(other).newest()
    assert newest is not None
    verify_files(newest.path, newest.manifest)
    assert (newest.path / "tables/rows").read_bytes() == b"rows of ten"
    assert (other.path / "job.json").read_text() == "{}"


def test_only_the_opened_checkpoint_is_downloaded(url: str, tmp_path: Path) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    for step in (10, 20):
        save(one, step)
    one.push()
    other.pull()
    folder = checkpoints(other)
    assert [saved.step for saved in folder.saved()] == [10, 20]
    assert not (folder.path_of(20) / "tables").exists()
    folder.newest()
    assert (folder.path_of(20) / "tables/rows").exists()
    assert not (folder.path_of(10) / "tables").exists()


def test_retention_removes_remote_checkpoints_also_those_of_an_earlier_machine(url: str, tmp_path: Path) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    for step in (10, 20):
        save(one, step)
    one.push()
    other.pull()
    save(other, 30)
    other.push()
    assert remote_steps(url) == [20, 30]
    assert not [name for name in storage.walk_files(url) if "step-000000010" in name]


def test_an_interrupted_upload_is_never_read_and_the_next_push_completes_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    save(one, 10)
    one.push()
    save(one, 20)
    upload = storage.upload_file

    def fail_on_rows(source: Path, target: str) -> None:
        if target.endswith("rows"):
            raise OSError("connection reset")
        upload(source, target)

    monkeypatch.setattr(storage, "upload_file", fail_on_rows)
    with pytest.raises(ArtifactError, match=r"could not upload to .*run'.*connection reset.*local copy"):
        one.push()
    monkeypatch.undo()
    monkeypatch.setenv("MONOLITH_STAGING_DIR", str(tmp_path / "staging"))
    assert any("step-000000020" in name for name in storage.walk_files(url))
    other.pull()
    assert [saved.step for saved in checkpoints(other).saved()] == [10]
    one.pull()  # a restart of the first machine keeps its checkpoint
    assert [saved.step for saved in checkpoints(one).saved()] == [10, 20]
    one.push()
    other.pull()
    newest = checkpoints(other).newest()
    assert newest is not None
    assert newest.step == 20


def test_a_killed_replacement_of_a_checkpoint_is_repeated(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    save(one, 10, b"first")
    one.push()
    save(one, 10, b"second")

    class Killed(BaseException):
        pass

    def kill(source: Path, target: str) -> None:
        raise Killed

    monkeypatch.setattr(storage, "upload_file", kill)
    with pytest.raises(Killed):
        one.push()
    monkeypatch.undo()
    monkeypatch.setenv("MONOLITH_STAGING_DIR", str(tmp_path / "staging"))
    one.pull()
    one.push()
    other.pull()
    newest = checkpoints(other).newest()
    assert newest is not None
    assert (newest.path / "tables/rows").read_bytes() == b"second"


def test_a_replacement_that_the_network_interrupts_is_uploaded_by_the_next_push(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    save(one, 10, b"first")
    one.push()
    save(one, 10, b"second")

    def refuse(path: str) -> None:
        raise OSError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "remove_file", refuse)
        with pytest.raises(ArtifactError, match="connection reset"):
            one.push()
    one.push()
    other.pull()
    newest = checkpoints(other).newest()
    assert newest is not None
    assert (newest.path / "tables/rows").read_bytes() == b"second"


def test_a_partial_upload_leaves_the_url_when_its_checkpoint_was_removed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine(url, tmp_path, "one")
    save(one, 10)
    upload = storage.upload_file

    def fail_on_rows(source: Path, target: str) -> None:
        if target.endswith("rows"):
            raise OSError("connection reset")
        upload(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(storage, "upload_file", fail_on_rows)
        with pytest.raises(ArtifactError, match="connection reset"):
            one.push()
    assert any("step-000000010" in name for name in storage.walk_files(url))
    one.pull()  # a restart
    for step in (20, 30):
        save(one, step)
    one.push()
    assert remote_steps(url) == [20, 30]
    assert not [name for name in storage.walk_files(url) if "step-000000010" in name]


@pytest.mark.parametrize("when", ["before its turn", "during its upload"])
def test_a_checkpoint_that_is_removed_during_a_push_does_not_fail_it(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    one = machine(url, tmp_path, "one")
    for step in (10, 20):
        save(one, step)
    upload, removed = storage.upload_file, "step-000000020" if when == "before its turn" else "step-000000010"

    def remove_and_upload(source: Path, target: str) -> None:
        remote_folder.shutil.rmtree(one.path / "checkpoints" / removed, ignore_errors=True)
        upload(source, target)

    monkeypatch.setattr(storage, "upload_file", remove_and_upload)
    one.push()
    assert [f"step-{step:09d}" for step in remote_steps(url)] == (
        ["step-000000010"] if when == "before its turn" else ["step-000000020"]
    )
    one.push()
    assert not [name for name in storage.walk_files(url) if removed in name]


def test_a_checkpoint_that_is_replaced_during_its_upload_is_never_read_half(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    save(one, 10, b"first")
    upload, uploaded = storage.upload_file, list[str]()

    def replace_after_the_first(source: Path, target: str) -> None:
        upload(source, target)
        uploaded.append(target)
        if len(uploaded) == 1:
            save(one, 10, b"second")

    monkeypatch.setattr(storage, "upload_file", replace_after_the_first)
    one.push()
    other.pull()
    newest = checkpoints(other).newest()
    assert newest is None or (newest.path / "tables/rows").read_bytes() == b"second"
    one.push()
    other.pull()
    newest = checkpoints(other).newest()
    assert newest is not None
    assert (newest.path / "tables/rows").read_bytes() == b"second"


def test_a_checkpoint_outside_of_a_run_is_downloaded_again_after_its_replacement(url: str, tmp_path: Path) -> None:
    one = machine(url, tmp_path, "one")
    for content in (b"one", b"two"):  # of one size
        save(one, 10, content)
        best = one.path / "best"
        remote_folder.shutil.rmtree(best, ignore_errors=True)
        remote_folder.shutil.copytree(checkpoints(one).path_of(10), best)
        one.push()
        opened = open_folder(f"{url}/best")
        verify_files(opened, read_manifest(opened))
        assert (opened / "tables/rows").read_bytes() == content


def test_an_interrupted_download_of_one_checkpoint_continues(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = machine(url, tmp_path, "one")
    save(one, 10, b"rows")
    checkpoints(one).path_of(10).rename(one.path / "best")
    one.push()
    download, downloaded = storage.download_file, list[str]()

    def fail_on_rows(source: str, target: Path) -> None:
        if source.endswith("rows") and "rows" not in downloaded:
            downloaded.append("rows")
            raise FileNotFoundError("not now")
        downloaded.append(source.rpartition("/")[2])
        download(source, target)

    monkeypatch.setattr(storage, "download_file", fail_on_rows)
    with pytest.raises(ArtifactError, match="not now"):
        open_folder(f"{url}/best")
    opened = open_folder(f"{url}/best")
    verify_files(opened, read_manifest(opened))
    assert sorted(downloaded) == ["dense", "rows", "rows"]


def test_a_full_local_disk_is_an_error_of_the_upload(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine(url, tmp_path, "one")
    save(one, 10)

    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(remote_folder, "replace_file", refuse)
        with pytest.raises(ArtifactError, match=r"could not synchronize .*No space left"):
            one.push()
    one.push()
    assert remote_steps(url) == [10]


def test_a_downloaded_checkpoint_is_on_disk_before_it_gets_its_name(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    save(one, 10)
    one.push()
    fsync, synced = os.fsync, set[int]()

    def note(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    other.pull()
    path = checkpoints(other).path_of(10)
    assert (path / "manifest.json").stat().st_ino in synced
    other.fetch("checkpoints/step-000000010")
    assert {file.name for file in path.rglob("*") if file.is_file() and file.stat().st_ino not in synced} == set()


def test_two_runs_at_one_url_are_refused(url: str, tmp_path: Path) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    one.pull()
    other.pull()
    save(one, 10)
    one.push()
    save(other, 15)
    with pytest.raises(VersionConflict, match=r"has 'checkpoints/step-000000010', which this run has not written"):
        other.push()
    assert remote_steps(url) == [10]


def test_a_checkpoint_that_was_never_uploaded_gives_way_to_a_newer_run_and_is_kept_aside(
    url: str, tmp_path: Path
) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    save(one, 10)
    one.push()
    save(one, 20)  # killed before its upload
    other.pull()
    save(other, 30)
    other.push()
    one.pull()
    assert [saved.step for saved in checkpoints(one).saved()] == [10, 30]
    assert list((one.path / "checkpoints").glob(".superseded-step-000000020-*/tables/rows"))


def test_a_corrupt_remote_file_is_refused(url: str, tmp_path: Path) -> None:
    one, other = machine(url, tmp_path, "one"), machine(url, tmp_path, "other")
    save(one, 10, b"rows")
    one.push()
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"rowz")
    storage.upload_file(damaged, f"{url}/checkpoints/step-000000010/tables/rows")
    other.pull()
    with pytest.raises(ManifestInvalid, match=r"step-000000010/tables/rows' is corrupt"):
        checkpoints(other).newest()
    assert not (checkpoints(other).path_of(10) / "tables").exists()


def test_a_staged_path_leads_back_to_its_url(url: str, tmp_path: Path) -> None:
    folder = stage_folder(url)
    assert open_folder(url) == folder.path == local_path(url)
    save(folder, 10, b"rows")
    push_folder(folder.path / "checkpoints")
    checkpoint = open_folder(f"{url}/checkpoints/step-000000010")
    assert artifact_url(checkpoint) == f"{url}/checkpoints/step-000000010"
    fetch_bundle(checkpoint)
    assert (checkpoint / "tables/rows").read_bytes() == b"rows"
    assert artifact_url(tmp_path) == str(tmp_path)


def test_wanted_versions_are_downloaded_and_removed_ones_disappear(url: str, tmp_path: Path) -> None:
    exports = machine(f"{url}/exports", tmp_path, "trainer")
    server = machine(f"{url}/exports", tmp_path, "server")
    for version in ("1", "2"):
        checkpoint = checkpoints(exports)
        save(exports, int(version), version.encode())
        checkpoint.path_of(int(version)).rename(exports.path / version)
    exports.push()
    server.pull_versions(lambda versions: sorted(versions)[-1:])
    assert [path.name for path in server.path.iterdir() if path.name.isdigit()] == ["2"]
    assert (server.path / "2/tables/rows").read_bytes() == b"2"
    remote_folder.shutil.rmtree(exports.path / "2")
    exports.push()
    server.pull_versions(lambda versions: sorted(versions)[-1:])
    assert [path.name for path in server.path.iterdir() if path.name.isdigit()] == ["1"]


def save_version(exports: RemoteFolder, number: int, name: str) -> None:
    save(exports, number, name.encode())
    checkpoints(exports).path_of(number).rename(exports.path / name)


def versions_of(folder: RemoteFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir() if not path.name.startswith(".") and path.name.isdigit())


def test_a_corrupt_version_keeps_no_other_version_from_its_download(url: str, tmp_path: Path) -> None:
    exports = machine(f"{url}/exports", tmp_path, "trainer")
    server = machine(f"{url}/exports", tmp_path, "server")
    for number in (9, 10, 11):
        save_version(exports, number, str(number))
    exports.push()
    (tmp_path / "wrong").write_bytes(b"wrong")
    storage.upload_file(tmp_path / "wrong", f"{exports.url}/10/tables/rows")
    with pytest.raises(ManifestInvalid, match=r"/10/tables/rows' is corrupt"):
        server.pull_versions(list)
    assert versions_of(server) == ["11", "9"]


def test_versions_are_downloaded_by_the_names_of_their_folders(url: str, tmp_path: Path) -> None:
    exports = machine(f"{url}/exports", tmp_path, "trainer")
    server = machine(f"{url}/exports", tmp_path, "server")
    for number, name in enumerate(["7", "008", "\u0663\u0664", str(1 << 63)]):
        save_version(exports, number + 1, name)
    exports.push()
    asked: list[int] = []
    server.pull_versions(lambda versions: asked.extend(versions) or versions)
    assert sorted(asked) == [7, 8]
    assert versions_of(server) == ["008", "7"]


def test_a_missing_driver_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("MONOLITH_STAGING_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=r"'gs://bucket/run.*driver is missing.*pip install gcsfs"):
        open_folder("gs://bucket/run")
    with pytest.raises(ConfigError, match=r"scheme 'nosuch', expected one that fsspec knows"):
        open_folder("nosuch://bucket/run")
