"""A job on a real Ray cluster, in this process: it ends well, and a server that is killed comes back."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import counting_model
from monolith.artifacts import CheckpointFolder
from monolith.core.errors import ClusterError, ConfigError
from monolith.testing.eventually import eventually
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.launch.ray import RayJob, RaySettings

SETTINGS = RaySettings(address="local", cpus_per_ps=0, cpus_per_worker=0, max_restarts=1)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="pip install 'monolith[ray]'")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def settings(folder: Path, rows: list[int], **values: Any) -> ClusterJobConfig:
    fixed = {"task": f"{counting_model.__file__}:Counter", "data": counting_model.write_files(folder, rows),
             "batch_size": 5, "threads": 1, "save_summary_steps": 0, "num_ps": 2, "num_workers": 2,
             "enable_dynamic_sharding": True, "restore_sync_poll_interval_ms": 50, "retry_wait_in_secs": 0.5,
             "model_dir": str(folder / "run")}  # fmt: skip
    return ClusterJobConfig(**{**fixed, **values})


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_job_on_ray_survives_the_kill_of_a_server(ray: Any, tmp_path: Path) -> None:
    rows = [200] * 10
    job = RayJob(settings(tmp_path, rows, save_checkpoints_steps=20), SETTINGS)
    saved = CheckpointFolder(tmp_path / "run" / "checkpoints")
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(job.run)
        eventually(lambda: not (not saved.saved() and not end.done()))
        assert not end.done()
        os.kill(ray.get(job._actors["ps 0"].__ray_call__.remote(lambda self: os.getpid())), signal.SIGKILL)
        metrics = end.result(240)
    assert metrics
    seen = counting_model.counts(tmp_path / "run", sum(rows))
    assert seen.sum() > 0.5 * sum(rows), "what the server had learnt since its last checkpoint may be lost, no more"


@pytest.mark.filterwarnings("ignore")
def test_a_job_on_ray_saves_at_a_url(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLITH_STAGING_DIR", str(tmp_path / "staging"))
    url, remote = f"file://{tmp_path}/remote/run", tmp_path / "remote" / "run"
    rows = [20, 20]
    assert RayJob(settings(tmp_path, rows, model_dir=url), SETTINGS).run()
    assert counting_model.counts(remote, sum(rows)).tolist() == [1] * sum(rows)


@pytest.mark.filterwarnings("ignore")
def test_a_role_that_fails_ends_the_job_and_says_which_and_why(ray: Any, tmp_path: Path) -> None:
    config = settings(tmp_path, [20], task=f"{counting_model.__file__}:Nobody", num_workers=1, num_ps=1,
                      enable_dynamic_sharding=False)  # fmt: skip
    with pytest.raises(ClusterError, match=r"chief failed: .*Nobody"):
        RayJob(config, SETTINGS).run()


def test_a_job_on_ray_needs_a_folder_and_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONOLITH_STAGING_DIR", raising=False)
    with pytest.raises(ConfigError, match="num_ps is 0, expected at least 1 server"):
        RayJob(ClusterJobConfig(), SETTINGS)
    with pytest.raises(ConfigError, match="model_dir is empty; give a folder that all machines"):
        RayJob(ClusterJobConfig(num_ps=1), SETTINGS)
    with pytest.raises(
        ConfigError, match=r"model_dir is 's3://runs/a' and MONOLITH_STAGING_DIR is not set.*; set MONOLITH_STAGING_DIR"
    ):
        RayJob(ClusterJobConfig(num_ps=1, model_dir="s3://runs/a"), RaySettings(address="head:6379"))
    with pytest.raises(ConfigError, match="max_restarts is -2"):
        RaySettings(max_restarts=-2)


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'monolith\[ray\]'"):
        RayJob(ClusterJobConfig(num_ps=1, model_dir="run"), SETTINGS)
