"""Vectors of the original for model copies, memory, CPU and model sizes of agents."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from monolith.agent.environment import AgentEnvironment
from monolith.agent.model_copies import CopyTimes, ModelCopies
from monolith.agent.model_sizes import SubModelSize, measure_model
from monolith.agent.resources import ResourceReader
from monolith.artifacts.checkpoint_manifest import MANIFEST
from monolith.core.clock import Deadline, SystemClock
from monolith.core.durable_files import seal
from monolith.core.errors import ConfigError
from monolith.testing import FakeClock

GIB = 1 << 30
SOON = CopyTimes(start_limit_s=0.5, start_pause_s=0.02, round_pause_s=0.02)
PATIENT = CopyTimes(start_limit_s=60, start_pause_s=0.02, round_pause_s=0.02)
SUB_MODELS = ("ps_item_embedding_0", "ps_item_embedding_1")


def wait_until(is_true: Callable[[], object]) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, 60)
    while not is_true():
        assert not deadline.is_past, "the condition never became true"
        clock.sleep_s(0.01)


def offer(source: Path, version: int | str, model: str = "test_model", *, done: bool = True) -> None:
    for sub_model in SUB_MODELS:
        folder = source / f"{model}@{version}" / model / sub_model / str(version)
        (folder / "variables").mkdir(parents=True)
        (folder / "variables" / "data").write_text(f"{sub_model} {version}")
    if done:
        (source / f"{model}@{version}.write.done").touch()


class Copies:
    def __init__(self, folder: Path) -> None:
        self.source = folder / "p2p"
        self.receive = folder / "receive"
        self.source.mkdir()
        self.manager = ModelCopies("test_model", str(self.source), str(self.receive), times=PATIENT)

    def versions(self, sub_model: str = SUB_MODELS[0]) -> list[str]:
        folder = self.receive / "test_model" / sub_model
        return sorted(os.listdir(folder), key=lambda name: (len(name), name)) if folder.is_dir() else []


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


class TestModelCopies:
    # T46, T47
    def test_t46_t47_only_newer_versions_are_copied(self, copies: Copies) -> None:
        offer(copies.source, 1234567)
        copies.manager.start()
        try:
            for sub_model in SUB_MODELS:
                path = copies.receive / "test_model" / sub_model / "1234567" / "variables" / "data"
                assert path.read_text() == f"{sub_model} 1234567"
            offer(copies.source, 1234566)
            SystemClock().sleep_s(20 * PATIENT.round_pause_s)
            assert copies.versions() == ["1234567"]
            offer(copies.source, 1234568)
            wait_until(lambda: copies.manager.newest_version == "1234568")
            assert copies.versions() == ["1234567", "1234568"]
            assert copies.manager.version_delay_s is not None
            assert copies.manager.update_delay_s is not None
            wait_until(lambda: not list(copies.source.glob("*.read.lock")))
        finally:
            copies.manager.stop()

    # D51
    def test_d51_versions_compare_as_numbers(self, copies: Copies) -> None:
        offer(copies.source, 9)
        offer(copies.source, 10)
        copies.manager.start()
        copies.manager.stop()
        assert copies.versions() == ["10"]

    # D52, D57
    def test_d52_d57_a_marker_of_another_model_does_not_count(self, tmp_path: Path) -> None:
        copies = Copies(tmp_path)
        offer(copies.source, 1, "model2")
        manager = ModelCopies("model", str(copies.source), str(copies.receive), times=SOON)
        with pytest.raises(ConfigError, match=r"no complete version of 'model' for 0\.5 s"):
            manager.start()

    # D53
    def test_d53_a_marker_without_its_version_folder_is_not_enough(self, copies: Copies) -> None:
        (copies.source / "test_model@7" / "test_model" / SUB_MODELS[0]).mkdir(parents=True)
        (copies.source / "test_model@7.write.done").touch()
        (copies.source / "test_model@8.write.done").touch()
        manager = ModelCopies("test_model", str(copies.source), str(copies.receive), times=SOON)
        with pytest.raises(ConfigError, match="no complete version"):
            manager.start()

    def test_the_start_waits_for_the_marker(self, copies: Copies) -> None:
        offer(copies.source, 5, done=False)
        starting = threading.Thread(target=copies.manager.start)
        starting.start()
        try:
            wait_until(lambda: list(copies.source.glob("*")))
            assert copies.versions() == []
            (copies.source / "test_model@5.write.done").touch()
            starting.join(60)
            assert copies.versions() == ["5"]
        finally:
            copies.manager.stop()

    # D54
    def test_d54_a_left_over_temporary_is_copied_again(self, copies: Copies) -> None:
        offer(copies.source, 1)
        copies.manager.start()
        try:
            left_over = copies.receive / "test_model" / SUB_MODELS[0] / "2-temp"
            left_over.mkdir()
            (left_over / "half").touch()
            offer(copies.source, 2)
            wait_until(lambda: copies.manager.newest_version == "2")
            assert os.listdir(copies.receive / "test_model" / SUB_MODELS[0] / "2") == ["variables"]
            assert not left_over.exists()
        finally:
            copies.manager.stop()

    # D55
    def test_d55_the_five_newest_versions_stay(self, copies: Copies) -> None:
        offer(copies.source, 1)
        copies.manager.start()
        try:
            for version in range(2, 8):
                offer(copies.source, version)
                wait_until(lambda version=version: copies.manager.newest_version == str(version))
            wait_until(lambda: copies.versions() == ["3", "4", "5", "6", "7"])
            assert copies.versions(SUB_MODELS[1]) == ["3", "4", "5", "6", "7"]
        finally:
            copies.manager.stop()

    # D56
    def test_d56_a_young_lock_of_another_reader_stays(self, copies: Copies) -> None:
        offer(copies.source, 1)
        offer(copies.source, 2)
        young, old = copies.source / "test_model@1.read.lock", copies.source / "test_model@2.read.lock"
        other = copies.source / "other@2.read.lock"
        for lock in (young, old, other):
            lock.touch()
        for lock in (old, other):
            os.utime(lock, (1, 1))
        copies.manager.start()
        copies.manager.stop()
        assert young.exists()
        assert not old.exists()
        assert other.exists()

    def test_a_failed_copy_leaves_nothing_and_is_repeated(self, copies: Copies) -> None:
        offer(copies.source, 1)
        copies.manager.start()
        try:
            blocker = copies.receive / "test_model" / SUB_MODELS[1] / "2-temp"
            blocker.write_text("a file where a folder is expected")
            offer(copies.source, 2)
            wait_until(lambda: copies.manager.failed_rounds > 0)
            assert copies.versions() == ["1"]
            blocker.unlink()
            wait_until(lambda: copies.versions() == ["1", "2"])
        finally:
            copies.manager.stop()

    def test_a_lock_that_cannot_be_removed_does_not_end_the_copies(
        self, copies: Copies, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remove, failures = Path.unlink, [OSError(errno.EIO, "input/output error")]

        def fail_first(path: Path, *, missing_ok: bool = False) -> None:
            if path.name.endswith(".read.lock") and failures:
                raise failures.pop()
            remove(path, missing_ok=missing_ok)

        offer(copies.source, 1)
        copies.manager.start()
        try:
            monkeypatch.setattr(Path, "unlink", fail_first)
            wait_until(lambda: copies.manager.failed_rounds == 1)
            offer(copies.source, 2)
            wait_until(lambda: copies.versions() == ["1", "2"])
        finally:
            copies.manager.stop()

    def test_the_receive_folder_keeps_other_models(self, copies: Copies) -> None:
        (copies.receive / "other").mkdir(parents=True)
        (copies.receive / "test_model" / "stale").mkdir(parents=True)
        offer(copies.source, 1)
        copies.manager.start()
        copies.manager.stop()
        assert sorted(os.listdir(copies.receive)) == ["other", "test_model"]
        assert not (copies.receive / "test_model" / "stale").exists()

    def test_bad_settings_are_refused(self) -> None:
        ModelCopies(None, None, None).start()
        for model, source, receive, part in (
            ("m", "/p2p", "/", "rough_sort_model_local_path is '/'"),
            ("m", "/p2p", "", "rough_sort_model_local_path is ''"),
            ("m", None, "/r", "rough_sort_model_p2p_path is None"),
            ("../m", "/p", "/r", "rough_sort_model_name"),
        ):
            with pytest.raises(ConfigError, match=part):
                ModelCopies(model, source, receive)


def machine(folder: Path, files: dict[str, str]) -> ResourceReader:
    meminfo = f"MemTotal:       {16 * GIB // 1024} kB\nMemAvailable:   {10 * GIB // 1024} kB\n"
    for name, text in {"proc/meminfo": meminfo, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return ResourceReader(proc=folder / "proc", cgroup=folder / "cgroup", clock=FakeClock())


class TestResources:
    # T48, T49
    def test_t48_t49_this_machine(self) -> None:
        reader = ResourceReader()
        assert 0 < reader.available_memory() < reader.total_memory()
        assert 0 <= reader.machine_cpu_percent(pause_s=0.1) <= 100
        assert reader.cpu_count() >= 1

    # D70
    def test_d70_memory_of_cgroup_v1(self, tmp_path: Path) -> None:
        group = "cgroup/memory/docker/abc"
        reader = machine(
            tmp_path,
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n",
                f"{group}/memory.limit_in_bytes": f"{8 * GIB}\n",
                f"{group}/memory.usage_in_bytes": f"{3 * GIB}\n",
                f"{group}/memory.stat": f"cache 5\ntotal_inactive_file {GIB}\n",
                "cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "cgroup/memory/memory.usage_in_bytes": f"{9 * GIB}\n",
                "cgroup/cpu/docker/abc/cpu.cfs_quota_us": "250000\n",
                "cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
            },
        )
        assert (reader.total_memory(), reader.available_memory()) == (8 * GIB, 6 * GIB)
        assert reader.cpu_count() == 2

    # D70
    def test_d70_without_a_limit_the_memory_of_the_machine_counts(self, tmp_path: Path) -> None:
        files = {
            "proc/self/cgroup": "0::/pod/abc\n",
            "cgroup/cgroup.controllers": "cpu memory\n",
            "cgroup/pod/abc/memory.max": "max\n",
            "cgroup/pod/abc/memory.current": f"{3 * GIB}\n",
            "cgroup/pod/abc/cpu.max": "max 100000\n",
        }
        reader = machine(tmp_path, files)
        assert (reader.total_memory(), reader.available_memory()) == (16 * GIB, 10 * GIB)
        assert reader.cpu_count() == os.cpu_count()
        limited = ResourceReader(
            AgentEnvironment(memory_limit=GIB, cpu_limit=3), proc=tmp_path / "proc", cgroup=tmp_path / "cgroup"
        )
        assert (limited.total_memory(), limited.cpu_count()) == (GIB, 3)

    # D70
    def test_d70_quotas(self, tmp_path: Path) -> None:
        group = "cgroup/cpu/a"
        reader = machine(
            tmp_path,
            {
                "proc/self/cgroup": "5:cpu:/a\n",
                f"{group}/cpu.cfs_quota_us": "-1\n",
                f"{group}/cpu.cfs_period_us": "100000\n",
            },
        )
        assert reader.cpu_count() == os.cpu_count()

    # D70
    def test_a_limit_of_a_group_above_counts_too(self, tmp_path: Path) -> None:
        files = {
            "proc/self/cgroup": "0::/pod/abc\n",
            "cgroup/cgroup.controllers": "cpu memory\n",
            "cgroup/pod/abc/memory.max": f"{9 * GIB}\n",
            "cgroup/pod/abc/memory.current": f"{GIB}\n",
            "cgroup/pod/memory.max": f"{4 * GIB}\n",
            "cgroup/pod/memory.current": f"{3 * GIB}\n",
            "cgroup/pod/memory.stat": f"inactive_file {GIB // 2}\n",
            "cgroup/pod/abc/cpu.max": "250000 100000\n",
        }
        reader = machine(tmp_path, files)
        assert (reader.total_memory(), reader.available_memory()) == (4 * GIB, GIB + GIB // 2)
        assert reader.cpu_count() == 2

    def test_cpu_use_is_the_mean_of_readings(self, tmp_path: Path) -> None:
        reader = machine(
            tmp_path,
            {"proc/self/cgroup": "0::/\n", "cgroup/cgroup.controllers": "", "cgroup/cpu.stat": "usage_usec 7\n"},
        )
        assert reader.cpu_percent() == 0.0
        assert machine(tmp_path / "none", {}).available_memory() == 10 * GIB
        with pytest.raises(ConfigError, match="machine_cpu_percent"):
            machine(tmp_path / "none", {}).cpu_percent()


def fill(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


class TestModelSizes:
    # D71
    def test_d71_sizes_of_folders_and_assets(self, tmp_path: Path) -> None:
        base = tmp_path / "exported_models"
        fill(base / "entry" / "12" / "a", 4)
        fill(base / "entry" / "12" / "deep" / "b", 6)
        fill(base / "ps_0" / "12" / "c", 20)
        fill(base / ".hidden" / "12" / "d", 99)
        fill(tmp_path / "model.ckpt-7.assets" / "t_0-00000-of-00002", 5)
        fill(tmp_path / "model.ckpt-7.assets" / "t_9-00000-of-00002", 5)
        (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
        expected = {"entry": SubModelSize(10, f"{base}/entry/12"), "ps_0": SubModelSize(25, f"{base}/ps_0/12")}
        assert measure_model(str(base)) == expected
        assert measure_model(str(base), "model.ckpt-7", 12) == expected

    # D71
    def test_d71_the_largest_common_version(self, tmp_path: Path) -> None:
        for name, version in (("entry", 11), ("entry", 12), ("ps_0", 11)):
            fill(tmp_path / "e" / name / str(version) / "a", version)
        sizes = measure_model(str(tmp_path / "e"))
        assert {name: size.path.rpartition("/")[2] for name, size in sizes.items()} == {"entry": "11", "ps_0": "11"}
        with pytest.raises(ConfigError, match="version is 12, which sub-model 'ps_0'"):
            measure_model(str(tmp_path / "e"), version=12)

    # D71
    def test_the_export_state_chooses_the_version_of_a_checkpoint(self, tmp_path: Path) -> None:
        base = tmp_path / "e"
        for name in ("entry", "ps_0"):
            for version in (11, 12):
                fill(base / name / str(version) / "a", version)
            state = "".join(
                f'entries {{\n  export_dir: "{base}/{name}/{version}"\n  global_step: {version * 10}\n}}\n'
                for version in (11, 12)
            )
            (base / name / "ExportSaverListenerState").write_text(state)
        assert measure_model(str(base), "model.ckpt-110")["entry"].path.endswith("/11")
        assert measure_model(str(base), "model.ckpt-999")["entry"].path.endswith("/12")
        (base / "ps_0" / "ExportSaverListenerState").write_text("")
        assert measure_model(str(base), "model.ckpt-110")["entry"].path.endswith("/12")

    def test_the_manifest_of_our_exports_gives_the_size(self, tmp_path: Path) -> None:
        fill(tmp_path / "e" / "entry" / "3" / "a", 5)
        manifest = tmp_path / "e" / "entry" / "3" / MANIFEST
        manifest.write_bytes(seal({"files": [{"name": "a", "bytes": 1000}, {"name": "b", "bytes": 24}]}))
        assert measure_model(str(tmp_path / "e"))["entry"].bytes == 1024
        manifest.write_bytes(b"{}")
        assert measure_model(str(tmp_path / "e"))["entry"].bytes == 7

    def test_bad_folders_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="expected a folder that exists"):
            measure_model(str(tmp_path / "none"))
        with pytest.raises(ConfigError, match="no sub-model"):
            measure_model(str(tmp_path))
        fill(tmp_path / "entry" / "1" / "a", 1)
        fill(tmp_path / "ps_0" / "2" / "a", 1)
        with pytest.raises(ConfigError, match="no version in common"):
            measure_model(str(tmp_path))

    def test_urls_are_measured_too(self) -> None:
        fsspec = pytest.importorskip("fsspec")
        memory = fsspec.filesystem("memory")
        memory.pipe("/sizes/e/entry/4/a", b"abc")
        memory.pipe("/sizes/e/ps_0/4/b", b"abcd")
        sizes = measure_model("memory://sizes/e")
        assert {name: size.bytes for name, size in sizes.items()} == {"entry": 3, "ps_0": 4}
