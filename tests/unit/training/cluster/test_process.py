from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from monolith.core.errors import ClusterError, ConfigError
from monolith.demo.world import World
from monolith.demo.world.files import write_parquet
from monolith.discovery import TfConfigDiscovery
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.launch.local import Ended, LocalJob
from monolith.training.cluster.roles.process import _place, run_process, security_of
from monolith.training.runner import Job

DEEPFM = {"sparse": ["user_id", "item_id"], "dense": ["price"], "dim": 2, "hidden": [4]}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_ps": 2}, r"num_ps is 2 and discovery_type is None; .* --discovery-type file"),
        ({"num_ps": 2, "index": 1}, r"^distributed config requires index < num_workers for worker role \(index=1"),
        ({"num_ps": 2, "server_type": "ps", "index": 2}, r"requires index < num_ps for ps role \(index=2 num_ps=2\)$"),
        ({"num_ps": 1, "discovery_type": "file"}, "needs a folder that all processes of the job share"),
        ({"num_ps": 1, "discovery_service_type_ps": "a b"}, "discovery_service_type_ps without whitespace characters"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_with_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_process(ClusterJobConfig(**values), {})


def test_several_workers_evaluate_in_a_separate_process() -> None:
    with pytest.raises(ConfigError, match=r"steps_per_eval is 5 with 2 workers; .* server_type evaluator"):
        ClusterJobConfig(num_ps=1, num_workers=2, steps_per_eval=5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_extra_ps": 1}, r"num_extra_ps is 1, expected 0, because .* let the scheduler avoid slow"),
        ({"num_redundant_ps": 2}, r"num_redundant_ps is 2, expected 0, because .* launch --restart"),
        (
            {"enable_dynamic_sharding": True, "epochs": 3},
            r"epochs is 3 with enable_dynamic_sharding, .* run the job again",
        ),
        ({"enable_dynamic_sharding": True, "num_ps": 0}, "num_ps is 0, expected a job of several workers"),
        ({"ps_memory_action": "hold"}, r"controller_port is None, .* ps_memory_action stop"),
        ({"ps_memory_action": "swap"}, "ps_memory_action"),
        ({"only_feature_engineering": True}, r"only_feature_engineering is True with num_ps 2.*; omit num_ps"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_with_the_reason(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClusterJobConfig(**{"num_ps": 2, **values})


def test_an_evaluator_scores_the_checkpoints_that_are_there(tmp_path: Path) -> None:
    write_parquet(World(users=30, items=20, seed=6).clicks(200), tmp_path / "clicks.parquet")
    values: Any = {
        "task": "deepfm", "task_options": DEEPFM, "data": str(tmp_path / "clicks.parquet"), "batch_size": 50,
        "label_features": ("click",), "model_dir": str(tmp_path / "run"), "max_steps": 3, "threads": 1,
        "log_step_count_steps": 0, "save_summary_steps": 0,
    }  # fmt: skip
    Job(ClusterJobConfig(**values)).train()
    found = run_process(ClusterJobConfig(**values, num_ps=1, server_type="evaluator"), {})
    assert found is not None
    assert (found["global_step"], found["samples"]) == (3, 200)


def test_the_platform_knows_the_place_of_a_process() -> None:
    cluster = {"cluster": {"ps": ["10.0.0.1:70", "10.0.0.2:71"], "worker": ["10.0.0.3:72"]},
               "task": {"type": "ps", "index": 1}}  # fmt: skip
    placed = _place(ClusterJobConfig(num_ps=2), TfConfigDiscovery(json.dumps(cluster)))
    assert (placed.cluster.server_type, placed.run.runtime.index) == ("ps", 1)
    assert (placed.cluster.listen.advertised_host, placed.cluster.listen.bind_port) == ("10.0.0.2", 71)


def test_a_token_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    config = ClusterJobConfig(ps_token_file=tmp_path / "token", ps_tls_ca=tmp_path / "ca.pem")
    security = security_of(config.cluster.security)
    assert security.token == "secret"
    assert security.ca_file == tmp_path / "ca.pem"
    assert security_of(ClusterJobConfig().cluster.security).is_encrypted is False


@pytest.mark.parametrize(
    ("arguments", "counts", "message"),
    [
        (["evaluate"], (1, 1), "the command is 'evaluate', expected 'train'"),
        ([], (1, 1), "expected 'train'"),
        (["train"], (0, 1), "num_ps is 0 and num_workers is 1, expected at least one of each"),
    ],
)
def test_a_job_needs_a_command_and_processes(arguments: list[str], counts: tuple[int, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LocalJob(arguments, num_ps=counts[0], num_workers=counts[1], say=lambda *_: None)


def test_a_job_that_has_been_stopped_does_not_start() -> None:
    job = LocalJob(["train"], num_ps=1, num_workers=1, say=lambda *_: None)
    job.stop()
    job.stop()  # harmless
    with pytest.raises(ClusterError, match="job has been stopped, expected a new one"), job:
        raise AssertionError("the job has started")
    assert job.starts("chief") == 0


_STAND_IN = """
import os, sys, time
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
folder = options["--discovery-folder"]
begun = os.path.join(folder, "begun")
if options["--server-type"] == "ps":
    os.makedirs(os.path.join(folder, "ps"))
    with open(os.path.join(folder, "new"), "w") as file:
        file.write("127.0.0.1:1")
    os.replace(file.name, os.path.join(folder, "ps", options["--index"]))
    while not os.path.exists(begun):
        time.sleep(0.05)
else:
    os.mkdir(begun)
    time.sleep(60)
"""


def test_a_server_that_ends_before_the_workers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monolith.training.cluster.launch.local.PROGRAM", (sys.executable, "-c", _STAND_IN))
    job = LocalJob(["train"], num_ps=1, num_workers=1, say=lambda *_: None, max_restarts=2, grace_s=0.5)
    expected = "running processes: chief; ps 0 ended 0.5 s ago, and workers need it: start the job again"
    with job, pytest.raises(ClusterError, match=expected):
        job.wait(timeout_s=60)


def test_processes_of_one_machine_get_time_to_deregister_unless_the_user_sets_another() -> None:
    given = ["train", "--discovery-cleanup-timeout-ms", "7"]
    job = LocalJob(given, num_ps=1, num_workers=2, say=lambda *_: None)
    try:
        for process in job._processes:
            values = [value for name, value in pairwise(process.command) if name == "--discovery-cleanup-timeout-ms"]
            assert int(values[0]) > 1000
            assert values[1:] == ["7"], "the last one counts"
    finally:
        job.stop()


def test_the_reason_of_an_end_names_process_status_and_last_line() -> None:
    killed = Ended(name="ps 1", status=-9, last_lines=())
    assert (killed.reason, killed.error) == ("ps 1 was ended by SIGKILL; its last line: no output", "")
    ended = Ended(name="chief", status=1, last_lines=("a", "error: no data", "", "a line of a library"))
    assert ended.reason == "chief ended with 1: error: no data"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enable_dynamic_sharding", True),
        ("kafka_topics", ("clicks",)),
        ("slow_start_steps", 5),
        ("enable_variable_postpush", True),
    ],
)
def test_settings_that_do_not_fit_partial_sync_are_refused_by_both_names(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{field} is .* with enable_partial_sync_training: .*; omit one of them"):
        ClusterJobConfig(num_ps=1, num_workers=2, enable_partial_sync_training=True, **{field: value})


def test_workers_that_step_together_need_servers() -> None:
    with pytest.raises(ConfigError, match="num_ps is 0 with enable_partial_sync_training, whose tables are on servers"):
        ClusterJobConfig(num_workers=2, enable_partial_sync_training=True)
