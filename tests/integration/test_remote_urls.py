"""Jobs and servers whose folders are URLs of a real S3 server; each machine has its own staging folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import monolith as mt
import training_child as child
from monolith.artifacts.delta_log import read_cut
from monolith.artifacts.remote_folder import RemoteFolder, local_path, open_folder, push_folder
from monolith.cli.main import app
from monolith.core import storage
from monolith.core.clock import SystemClock
from monolith.core.errors import ArtifactError
from monolith.demo.world import World
from monolith.demo.world.files import write_parquet
from monolith.embedding import Fp32, MultiTable
from monolith.ps import Security, ServerConfig
from monolith.serving import ModelConfig, ModelServer, ServingConfig, servable_loader
from monolith.serving.follow.following import FeedSource, Following
from monolith.sync import Follower
from monolith.sync.remote_feed import FeedDownload
from monolith.testing.eventually import eventually
from monolith.testing.fakes.published import FollowedTables
from monolith.testing.processes.ps_servers import PsServers
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.roles.process import server_settings
from monolith.training.cluster.worker_job import connect
from monolith.training.config.job import JobConfig
from monolith.training.runner import Job
from monolith.training.staging import stage_model_folder
from s3_server import BUCKET, s3_server, why_no_s3
from small_export import make_export

Use = Callable[[str], None]


@pytest.fixture(scope="module")
def s3() -> Iterator[Mapping[str, str]]:
    if why := why_no_s3():
        pytest.skip(why)
    with s3_server() as environment:
        yield environment


@pytest.fixture
def use_machine(tmp_path: Path, s3: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Use:
    """Returns a function that gives this process the staging folder of a machine."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)

    def use(name: str) -> None:
        monkeypatch.setenv("MONOLITH_STAGING_DIR", str(tmp_path / f"staging-{name}"))

    use("one")
    return use


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}/run"


def settings(folder: Path, url: str, **values: Any) -> dict[str, Any]:
    data = folder / "data"
    data.mkdir(exist_ok=True)
    fixed = {"task": f"{child.__file__}:Ranker", "data": child.write_data(data), "batch_size": 40, "threads": 1,
             "log_step_count_steps": 0, "save_summary_steps": 0, "epochs": 0, "model_dir": url}  # fmt: skip
    return {**fixed, **values}


def ids_of(tables: MultiTable, name: str) -> set[int]:
    return {int(each) for ids, _ in tables[name].items() for each in ids}


def saved_steps(url: str) -> list[int]:
    names = storage.walk_files(f"{url}/checkpoints")
    return [int(name[5:14]) for name in names if name[14:] == "/manifest.json"]


def test_a_run_moves_between_machines_and_its_retention_with_it(use_machine: Use, tmp_path: Path, url: str) -> None:
    Job(JobConfig(**settings(tmp_path, url, max_steps=4, save_checkpoints_steps=2))).train()
    assert saved_steps(url) == [2, 4]
    use_machine("two")
    resumed = Job(JobConfig(**settings(tmp_path, url, max_steps=6, checkpoints_max_to_keep=1)))
    assert resumed.estimator.step == 4
    resumed.train()
    assert saved_steps(url) == [6]
    use_machine("three")
    started = Job(JobConfig(**settings(tmp_path, f"{url}-copy", restore_dir=url)))
    assert started.estimator.step == 6


def test_a_server_loads_each_new_version_at_the_url(use_machine: Use, tmp_path: Path, url: str) -> None:
    exports = open_folder(url)
    make_export(exports / "1")
    push_folder(exports)
    use_machine("server")
    config = ServingConfig(models=[ModelConfig(name="small", url=url)], port=None, rest_port=0, version_poll_s=0.1)
    with ModelServer(config, servable_loader()) as server:
        assert server.models.wait_until_settled(60)
        assert [each.version for each in server.models.statuses("small")] == [1]
        make_export(exports / "2")
        RemoteFolder(url, exports).push()
        eventually(lambda: 2 in [each.version for each in server.models.statuses("small")], 60)


def test_servers_and_worker_resume_on_another_machine_and_publish_to_a_url(
    use_machine: Use, tmp_path: Path, url: str
) -> None:
    published = f"{url}-published"
    options = {"num_ps": 2, "publish_dir": published, "publish_interval_s": 0.05, "save_checkpoints_steps": 3}

    def run(max_steps: int) -> None:
        config = ClusterJobConfig(**settings(tmp_path, url, max_steps=max_steps, **options))
        staged = stage_model_folder(config, config.run.model_dir)
        recovery = server_settings(staged, Security()).recovery
        servers = ServerConfig(delta_log=Path(staged.run.model_dir) / "delta_log", recover_from=recovery.recover_from)
        with PsServers(2, servers) as started:
            connect(started.addresses, config, Security()).train()

    run(3)
    use_machine("two")
    run(6)
    assert saved_steps(url) == [3, 6]
    cache = tmp_path / "cache"
    feed = FeedDownload(published, cache)
    assert feed.step()
    assert not feed.step()
    shown = FollowedTables(MultiTable(child.Ranker().declaration.table_specs()).to_serving())
    assert Follower(cache, shown, clock=SystemClock()).step()
    use_machine("three")
    evaluated = Job(JobConfig(**settings(tmp_path, url, epochs=1)))
    evaluated.evaluate()
    tables = evaluated.estimator.store
    assert isinstance(tables, MultiTable)
    for name in tables:
        ids = ids_of(tables, name)
        assert ids
        assert ids_of(shown.tables, name) == ids


class Biases(mt.Model):
    """The sum of two numbers per example."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user_id", slot=1)
        self.embedding_feature("item_id", slot=2)
        self.bias = self.embedding_slice(["user_id", "item_id"], "bias", 1, out="add_n", compressor=Fp32())
        self.offset = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.bias(batch).squeeze(1) + self.offset, label=batch.label[:, 0])


def test_a_server_follows_the_cuts_at_a_url_also_of_a_publisher_that_starts_again(
    use_machine: Use, tmp_path: Path, url: str
) -> None:
    published = f"{url}-published"
    config = mt.RunConfig(model_dir=url, publish_dir=published, publish_interval_s=0.05, log_step_count_steps=0,
                          save_summary_steps=0, threads=1)  # fmt: skip
    clicks = World(users=40, items=30, seed=4).clicks(200).dataset().batch(50)
    trained = mt.Estimator(Biases, config)
    trained.train(clicks, max_steps=2)
    version = trained.export(f"{url}-served")
    assert storage.is_file(f"{url}-served/{version.name}/manifest.json")
    following = Following(servable_loader(), {"": FeedSource(published)})
    servable = following(version)
    try:
        (status,) = following.statuses().values()
        assert status.applied is not None
        use_machine("two")
        mt.Estimator(Biases, config).train(clicks, max_steps=4, resume_data=False)
        newest = read_cut(local_path(published))
        assert newest is not None

        def is_newest() -> bool:
            (status,) = following.statuses().values()
            return status.applied is not None and status.applied.published_at_s == newest.published_at_s

        eventually(is_newest, 60)
    finally:
        servable.close()
        following.close()


def test_a_url_that_cannot_be_written_ends_a_run_before_its_first_step(use_machine: Use, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"could not write to 's3://no-such-bucket/run'.*check the URL"):
        Job(JobConfig(**settings(tmp_path, "s3://no-such-bucket/run", max_steps=2))).train()


def test_the_command_line_takes_urls(use_machine: Use, tmp_path: Path, url: str) -> None:
    write_parquet(World(users=40, items=30, seed=4).clicks(200), tmp_path / "clicks.parquet")

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(each) for each in arguments])

    data = ["--data", tmp_path / "clicks.parquet"]
    trained = run("train", "--task", f"{__file__}:Biases", *data, "--label-features", "click", "--max-steps", 2,
                  "--batch-size", 50, "--model-dir", url, "--threads", 1)  # fmt: skip
    assert trained.exit_code == 0, trained.output
    use_machine("two")
    evaluated = run("evaluate", "--model-dir", url, *data, "--checkpoint", f"{url}/checkpoints/step-000000002")
    assert evaluated.exit_code == 0, evaluated.output
    use_machine("three")
    exported = run("export", f"{url}/checkpoints/step-000000002", f"{url}/served")
    assert exported.exit_code == 0, exported.output
    assert f"{url}/served/" in exported.output
    assert [name for name in storage.walk_files(f"{url}/served") if name.endswith("/manifest.json")]
    refused = run("evaluate", "--model-dir", "gs://bucket/run", *data)
    assert "pip install gcsfs" in str(refused.exception)
