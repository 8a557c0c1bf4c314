"""Hosted models: load, swap, fail, try again, unload; which version answers at every moment."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from monolith.core.errors import ConfigError, ManifestInvalid, ModelNotFound, ModelNotReady
from monolith.core.throttle import yield_gil
from monolith.rpc.status import Code
from monolith.serving import ModelConfig, VersionPolicy
from monolith.serving.versions import hosted_models
from monolith.serving.versions.hosted_models import HostedModels
from monolith.serving.versions.hosted_version import HostedVersion, State
from monolith.serving.versions.model_config import found_versions
from monolith.testing import FakeClock
from monolith.testing.eventually import eventually
from monolith.testing.fakes.linear_model import LinearModel, write_version


class Loads:
    """A loader whose loads a test can hold and fail."""

    def __init__(self) -> None:
        self.loaded: dict[str, LinearModel] = {}
        self.held: dict[str, threading.Event] = {}
        self.begun: dict[str, threading.Event] = {}
        self.failing: set[str] = set()
        self.attempts: list[str] = []

    def hold(self, version: int) -> threading.Event:
        self.begun[str(version)] = threading.Event()
        self.held[str(version)] = threading.Event()
        return self.held[str(version)]

    def __call__(self, folder: Path) -> LinearModel:
        self.attempts.append(folder.name)
        if folder.name in self.held:
            self.begun[folder.name].set()
            assert self.held[folder.name].wait(60)
        if folder.name in self.failing:
            raise ManifestInvalid(f"{folder.name} is broken")
        self.loaded[folder.name] = LinearModel(folder)
        return self.loaded[folder.name]


@pytest.fixture
def loads() -> Loads:
    return Loads()


@pytest.fixture
def hosted(loads: Loads) -> Iterator[Callable[..., HostedModels]]:
    made: list[HostedModels] = []

    def make(**settings: Any) -> HostedModels:
        made.append(HostedModels(loads, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def config(base: Path, **more: Any) -> ModelConfig:
    return ModelConfig(name="m", base_path=base, **more)


def settle(models: HostedModels) -> None:
    assert models.wait_until_settled(60)
    assert models.wait_until_unloaded(60)


def states(models: HostedModels) -> dict[int, str]:
    return {each.version: each.state.name for each in models.statuses("m")}


def served(models: HostedModels, **choice: Any) -> int:
    with models.acquire("m", **choice) as found:
        return found.version


def test_the_newest_version_answers_and_the_old_one_goes_when_its_successor_is_there(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    models = hosted()
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    held = loads.hold(2)
    write_version(tmp_path, 2)
    models.poll()
    assert loads.begun["2"].wait(60)
    assert states(models) == {1: "AVAILABLE", 2: "LOADING"}
    assert served(models) == 1
    models.poll()
    held.set()
    settle(models)
    assert states(models) == {1: "END", 2: "AVAILABLE"}
    assert served(models) == 2
    assert loads.attempts == ["1", "2"]
    assert loads.loaded["1"].is_closed


def test_an_older_scan_of_the_folder_never_brings_back_a_version(
    hosted: Callable[..., HostedModels], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = hosted()
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    scanned, resumed = threading.Event(), threading.Event()

    def scan_slowly(base: Path) -> dict[int, Path]:
        versions = found_versions(base)
        if threading.current_thread().name == "slow":
            scanned.set()
            assert resumed.wait(60)
        return versions

    monkeypatch.setattr("monolith.serving.versions.hosted_models.found_versions", scan_slowly)
    slow = threading.Thread(target=models.poll, name="slow")
    slow.start()
    assert scanned.wait(60)
    write_version(tmp_path, 2)
    newer = threading.Thread(target=models.poll)
    newer.start()
    newer.join(0.2)  # without turns, the newer scan ends before the older one
    resumed.set()
    for thread in (slow, newer):
        thread.join(60)
    settle(models)
    assert served(models) == 2


def test_a_version_is_closed_after_the_last_request_that_uses_it(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    models = hosted()
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    users = [models.acquire("m"), models.acquire("m")]
    write_version(tmp_path, 2)
    models.poll()
    assert models.wait_until_settled(60)
    assert served(models) == 2
    assert states(models)[1] == "UNLOADING"
    users.pop().leave()
    assert not loads.loaded["1"].is_closed
    users.pop().leave()
    settle(models)
    assert loads.loaded["1"].is_closed


def test_a_version_that_fails_is_reported_and_never_served(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    clock = FakeClock()
    models = hosted(clock=clock, load_retries=2, retry_interval_s=60.0)
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    loads.failing.add("2")
    write_version(tmp_path, 2)
    for _ in range(3):
        models.poll()
        settle(models)
    assert loads.attempts == ["1", "2"]
    found = models.status("m", 2)[0]
    assert (found.state, found.code, found.message) == (State.END, Code.DATA_LOSS, "2 is broken")
    assert [name for name, _ in models.failures()] == ["m"]
    assert served(models) == 1
    with pytest.raises(ModelNotFound, match=r"version 2 of model 'm' is not served; there are \[1\]"):
        models.acquire("m", 2)
    for _ in range(5):
        clock.advance_s(61)
        models.poll()
        settle(models)
    assert loads.attempts == ["1", "2", "2", "2"]  # two more times, and then no more
    loads.failing.clear()
    (tmp_path / "2" / "repaired").write_text("now it is good")
    models.poll()
    settle(models)
    assert states(models) == {1: "END", 2: "AVAILABLE"}


def test_a_version_that_cannot_be_warmed_up_is_not_served(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    warmed: list[int] = []

    def warm_up(version: HostedVersion) -> None:
        warmed.append(version.version)
        if version.version == 2:
            raise ValueError("not a number")

    models = hosted(warm_up=warm_up, load_retries=0)
    for number in (1, 2):
        write_version(tmp_path, number)
        models.configure([config(tmp_path)])
        settle(models)
    assert warmed == [1, 2]
    assert states(models) == {1: "AVAILABLE", 2: "END"}
    assert "ValueError: not a number" in models.status("m", 2)[0].message
    assert loads.loaded["2"].is_closed


def test_policies_and_labels_decide_who_answers(hosted: Callable[..., HostedModels], tmp_path: Path) -> None:
    models = hosted()
    for number in (1, 2, 3):
        write_version(tmp_path, number)
    models.configure([config(tmp_path, policy=VersionPolicy(kind="all"), labels={"stable": 1, "gone": 9})])
    settle(models)
    assert (served(models), served(models, version=2), served(models, label="stable")) == (3, 2, 1)
    for label, text in (("gone", "version 9"), ("other", "no label 'other'")):
        with pytest.raises(ModelNotFound, match=text):
            models.acquire("m", label=label)
    models.configure([config(tmp_path, policy=VersionPolicy(kind="specific", versions=(2,)))])
    settle(models)
    assert states(models) == {1: "END", 2: "AVAILABLE", 3: "END"}
    models.configure([config(tmp_path, policy=VersionPolicy(count=2))])
    settle(models)
    assert states(models) == {1: "END", 2: "AVAILABLE", 3: "AVAILABLE"}


def test_latest_once_stays_with_its_first_versions(hosted: Callable[..., HostedModels], tmp_path: Path) -> None:
    models = hosted()
    once = config(tmp_path, policy=VersionPolicy(kind="latest_once"))
    models.configure([once])
    settle(models)
    for number in (1, 2):
        write_version(tmp_path, number)
        models.poll()
        settle(models)
    assert served(models) == 1
    models.configure([once])
    settle(models)
    assert served(models) == 1  # the same config again changes nothing
    models.configure([config(tmp_path)])
    settle(models)
    assert served(models) == 2


def test_an_emptied_folder_leaves_the_served_versions(hosted: Callable[..., HostedModels], tmp_path: Path) -> None:
    models = hosted()
    folder = write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    folder.rename(tmp_path / "away")
    models.poll()
    settle(models)
    assert served(models) == 1


def test_another_base_path_is_loaded_before_the_old_one_goes(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    models = hosted()
    write_version(tmp_path / "a", 1, bias=1.0)
    write_version(tmp_path / "b", 1, bias=2.0)
    models.configure([config(tmp_path / "a")])
    settle(models)
    first = loads.loaded["1"]
    models.configure([config(tmp_path / "b")])
    settle(models)
    assert first.is_closed
    with models.acquire("m") as found:
        assert found.path == tmp_path / "b" / "1"


def test_a_url_without_a_driver_keeps_no_other_model_from_new_versions(
    hosted: Callable[..., HostedModels], tmp_path: Path
) -> None:
    pytest.importorskip("fsspec")
    models = hosted()
    write_version(tmp_path, 1)
    wrong = ModelConfig(name="wrong", url="nosuch://bucket/exports")
    with pytest.raises(ConfigError, match=r"nosuch://bucket/exports.*expected one that fsspec knows"):
        models.configure([wrong, config(tmp_path)])
    settle(models)
    assert served(models) == 1
    write_version(tmp_path, 2)
    with pytest.raises(ConfigError, match=r"nosuch"):
        models.poll()
    settle(models)
    assert served(models) == 2


def test_a_model_that_is_no_longer_configured_goes_with_all_its_versions(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    models = hosted()
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    held = loads.hold(2)
    write_version(tmp_path, 2)
    models.poll()
    assert loads.begun["2"].wait(60)
    models.configure([])
    assert models.names() == []
    with pytest.raises(ModelNotFound, match="expected a configured model"):
        models.acquire("m")
    held.set()
    settle(models)
    assert all(model.is_closed for model in loads.loaded.values())
    with pytest.raises(ModelNotFound, match="could not find any versions"):
        models.status("m")


def test_a_model_without_versions_is_not_ready(hosted: Callable[..., HostedModels], tmp_path: Path) -> None:
    models = hosted()
    assert models.is_ready
    models.configure([config(tmp_path / "none")])
    settle(models)
    assert not models.is_ready
    with pytest.raises(ModelNotReady, match="no version of model 'm'"):
        models.acquire("m")


def test_a_version_that_finishes_loading_during_the_close_is_closed(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    models = hosted()
    held = loads.hold(1)
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    assert loads.begun["1"].wait(60)
    closing = threading.Thread(target=models.close, daemon=True)
    closing.start()
    eventually(lambda: models.names() == [], timeout_s=60)
    held.set()
    closing.join(60)
    assert not closing.is_alive()
    assert loads.loaded["1"].is_closed
    assert models.statuses("m") == []


def test_a_slow_load_of_one_model_does_not_hold_up_another(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    models = hosted()
    write_version(tmp_path / "slow", 1)
    write_version(tmp_path / "quick", 2)
    held = loads.hold(1)
    models.configure(
        [ModelConfig(name="slow", base_path=tmp_path / "slow"), ModelConfig(name="quick", base_path=tmp_path / "quick")]
    )
    with models._changed:
        assert models._changed.wait_for(lambda: bool(models._models["quick"].serving), 60)
    held.set()
    settle(models)


def test_requests_during_many_swaps_always_find_an_open_version(
    hosted: Callable[..., HostedModels], tmp_path: Path
) -> None:
    models = hosted()
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    ended = threading.Event()
    errors: list[BaseException] = []
    seen: set[int] = set()

    def ask() -> None:
        while not ended.is_set():
            try:
                with models.acquire("m") as found:
                    model: Any = found.model
                    assert not model.is_closed
                    seen.add(found.version)
                    assert not model.is_closed
                ended.wait(0.0001)
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(2, 22):
        write_version(tmp_path, number)
        models.poll()
        assert models.wait_until_settled(60)
    ended.set()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert len(seen) > 1
    settle(models)
    assert states(models)[21] == "AVAILABLE"
    assert len(models.statuses("m")) <= 18


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_versions_load_behind_requests(tmp_path: Path) -> None:
    niceness = []

    def load(folder: Path) -> LinearModel:
        niceness.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return LinearModel(folder)

    write_version(tmp_path, 1)
    models = HostedModels(load)
    models.configure([config(tmp_path)])
    settle(models)
    models.close()
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert niceness == [min(19, own + 10)]


def test_a_version_loads_and_goes_without_hurry_while_another_answers(tmp_path: Path) -> None:
    clock = FakeClock()
    rested: dict[str, list[float]] = {}

    class Slow(LinearModel):
        def warm_up(self) -> int:
            self._work("warm-up")
            return super().warm_up()

        def close(self) -> None:
            self._work("close")
            super().close()

        def _work(self, step: str) -> None:
            clock.advance_s(0.001)
            begin_s = clock.monotonic_s()
            yield_gil()
            rested.setdefault(step, []).append(round(clock.monotonic_s() - begin_s, 6))

    models = HostedModels(Slow, clock=clock, load_threads=1, warm_up=lambda hosted: hosted.model.warm_up() and None)
    for version in (1, 2):
        write_version(tmp_path, version)
        models.configure([config(tmp_path)])
        settle(models)
    models.close()
    first, second = rested["warm-up"]
    assert (first, second >= 0.004) == (0.0, True)
    first, second = rested["close"]
    assert (first >= 0.004, second) == (True, 0.0)


def test_a_version_that_is_found_damaged_while_it_is_served_gives_way_to_the_one_before(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    checked: list[int] = []

    def verify(version: HostedVersion, is_wanted: Callable[[], bool]) -> None:
        assert is_wanted()
        checked.append(version.version)
        if version.version == 2 and not (version.path / "repaired").exists():
            raise ManifestInvalid("tables/user.table is corrupt")

    models = hosted(verify=verify)
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    write_version(tmp_path, 2)
    models.poll()
    end_s = time.monotonic() + 60
    while states(models) != {1: "AVAILABLE", 2: "END"} or not models.wait_until_unloaded(0):
        assert time.monotonic() < end_s, states(models)
        time.sleep(0.01)
    assert served(models) == 1
    (failure,) = [each for each in models.statuses("m") if each.version == 2]
    assert "user.table is corrupt" in failure.message
    models.poll()
    settle(models)
    assert served(models) == 1, "a damaged version is not loaded again"
    (tmp_path / "2" / "repaired").touch()
    models.poll()
    settle(models)
    assert served(models) == 2
    assert checked.count(2) >= 1


@pytest.mark.parametrize("shortage", [OSError(errno.EMFILE, "Too many open files"), MemoryError("out of memory")])
def test_a_version_that_cannot_be_verified_for_lack_of_descriptors_or_memory_stays(
    hosted: Callable[..., HostedModels], tmp_path: Path, shortage: Exception
) -> None:
    clock = FakeClock()
    verifications = threading.Semaphore(0)

    def verify(version: HostedVersion, is_wanted: Callable[[], bool]) -> None:
        verifications.release()
        raise ManifestInvalid("the tables cannot be read") from shortage

    models = hosted(verify=verify, clock=clock)
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    assert verifications.acquire(timeout=60)
    models.poll()
    assert states(models) == {1: "AVAILABLE"}
    assert served(models) == 1
    end_s = time.monotonic() + 60
    while not verifications.acquire(blocking=False):
        assert time.monotonic() < end_s, "the version is not verified again"
        clock.advance_s(6)
        models.poll()
        time.sleep(0.01)
    assert states(models) == {1: "AVAILABLE"}


@pytest.mark.parametrize("slow", ["files of a served version", "folder of a failed version"])
def test_a_slow_disk_holds_up_no_reader_of_the_state(
    hosted: Callable[..., HostedModels],
    loads: Loads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    slow: str,
) -> None:
    reading, is_read = threading.Event(), threading.Event()

    def read_slowly(*_: object) -> bool:
        reading.set()
        assert is_read.wait(60)
        return False

    models = hosted(verify=lambda version, is_wanted: None)
    write_version(tmp_path, 1)
    write_version(tmp_path, 2)
    loads.failing.add("2")
    models.configure([config(tmp_path, policy=VersionPolicy(count=2))])
    settle(models)
    if slow == "files of a served version":
        monkeypatch.setattr(LinearModel, "notice_file_changes", read_slowly, raising=False)
    else:
        monkeypatch.setattr(hosted_models, "_stamp", read_slowly)
    scan = threading.Thread(target=models.poll, daemon=True)
    scan.start()
    assert reading.wait(60)
    ready: list[bool] = []
    reader = threading.Thread(target=lambda: ready.append(models.is_ready), daemon=True)
    reader.start()
    reader.join(10)
    has_answer = not reader.is_alive()
    is_read.set()
    scan.join(60)
    reader.join(60)
    assert has_answer
    assert ready == [True]


def test_a_version_that_was_written_to_is_verified_again(
    hosted: Callable[..., HostedModels], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifications = threading.Semaphore(0)
    models = hosted(verify=lambda version, is_wanted: verifications.release())
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    assert verifications.acquire(timeout=60)
    monkeypatch.setattr(LinearModel, "notice_file_changes", lambda self: True, raising=False)
    models.poll()
    assert verifications.acquire(timeout=60)


def test_a_close_does_not_wait_for_a_download(
    hosted: Callable[..., HostedModels], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_verified, is_downloading, is_downloaded = threading.Event(), threading.Event(), threading.Event()

    def download(config: ModelConfig) -> None:
        is_downloading.set()
        assert is_downloaded.wait(60)

    models = hosted(verify=lambda version, is_wanted: assert_set(is_verified))
    write_version(tmp_path, 1)
    models.configure([config(tmp_path)])
    settle(models)
    monkeypatch.setattr(hosted_models, "pull_versions", download)
    scan = threading.Thread(target=models.poll, daemon=True)
    scan.start()
    assert is_downloading.wait(60)
    is_verified.set()
    closing = threading.Thread(target=models.close, daemon=True)
    closing.start()
    closing.join(30)
    is_closed = not closing.is_alive()
    is_downloaded.set()
    scan.join(60)
    closing.join(60)
    assert is_closed


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


@pytest.mark.parametrize("code", [errno.EACCES, errno.ESTALE, errno.EIO])
def test_a_folder_that_cannot_be_read_stops_no_scan_of_other_models(
    hosted: Callable[..., HostedModels], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write_version(tmp_path / "good", 1)
    write_version(tmp_path / "bad", 1)
    read_kind = Path.is_dir

    def is_dir(path: Path) -> bool:
        if path.parent.name == "bad":
            raise OSError(code, os.strerror(code), str(path))
        return read_kind(path)

    models = hosted()
    configs = [config(tmp_path / "good"), ModelConfig(name="other", base_path=tmp_path / "bad")]
    models.configure(configs)
    settle(models)
    assert served(models) == 1
    monkeypatch.setattr(Path, "is_dir", is_dir)
    write_version(tmp_path / "good", 2)
    models.poll()
    settle(models)
    assert served(models) == 2
    assert models.is_ready, "the model in the unreadable folder stays"


def test_an_old_version_stays_until_all_wanted_versions_are_loaded(
    hosted: Callable[..., HostedModels], loads: Loads, tmp_path: Path
) -> None:
    models = hosted()
    write_version(tmp_path, 1)
    models.configure([config(tmp_path, policy=VersionPolicy(count=2))])
    settle(models)
    held = loads.hold(2)
    write_version(tmp_path, 2)
    write_version(tmp_path, 3)
    models.poll()
    assert loads.begun["2"].wait(60)
    end_s = time.monotonic() + 60
    while states(models).get(3) != "AVAILABLE":
        assert time.monotonic() < end_s
        time.sleep(0.005)
    assert states(models) == {1: "AVAILABLE", 2: "LOADING", 3: "AVAILABLE"}
    assert served(models, version=1) == 1
    held.set()
    settle(models)
    assert states(models) == {1: "END", 2: "AVAILABLE", 3: "AVAILABLE"}
