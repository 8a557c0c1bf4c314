"""``monolith forget``: the rows of an id leave tables, deltas, checkpoints and servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import monolith as mt
import small_export
from monolith.artifacts import CheckpointFolder
from monolith.artifacts.delta_log import read_cut, segment_numbers, segment_path, written_ids
from monolith.artifacts.forget_receipts import ForgetLedger
from monolith.artifacts.remote_folder import local_path
from monolith.cli import main as program
from monolith.core.clock import SystemClock
from monolith.core.errors import ConfigError
from monolith.data.sources.event_log.topic import Topic, TopicSettings
from monolith.data.sources.event_log.writer import LogWriter
from monolith.embedding import Adagrad, Fp32, MultiTable
from monolith.serving import Servable
from monolith.serving.config import ServingConfig
from monolith.serving.follow.following import Following
from monolith.serving.server import ModelServer
from monolith.serving.versions.model_config import ModelConfig
from monolith.sync import Follower
from monolith.testing.eventually import eventually
from monolith.testing.fakes.published import FollowedTables
from monolith.training.cluster.stop_event import StopEventHook
from monolith.training.control.client import ControllerClient
from monolith.training.hooks import Hook

BATCH = 4
USER, OTHER = (small_export.fid_of(1, user) for user in (7, 8))


class Clicker(mt.Model):
    """The model of ``small_export``: its hand-made export needs no tracing."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.embedding_feature("item", slot=2)
        self.dense_feature("price")
        rule: dict[str, Any] = {"optimizer": Adagrad(0.1), "compressor": Fp32()}
        self.vec = self.embedding_slice(["user", "item"], "vec", 1, out="concat", **rule)
        self.w = torch.nn.Parameter(torch.ones(2, 1))

    def forward(self, batch: Any) -> mt.Output:
        logits = (self.vec(batch) @ self.w + batch.dense["price"]).squeeze(1)
        return mt.Output(logits=logits, label=batch.label[:, 0])


class Steps(Hook):
    """Counts the steps of a run."""

    def __init__(self) -> None:
        self.count = 0

    def after_step(self, run: Any, result: Any) -> None:
        self.count += 1


class Trainer:
    """A training on a live topic, in a thread of the test."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        root = folder / "log"
        self.topic = (
            Topic.open(root, "rows")
            if (root / "rows").exists()
            else Topic.create(root, "rows", TopicSettings(retain_s=3600))
        )
        fixed = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1, "controller_port": 0,
                 "model_dir": str(folder / "run"), "publish_dir": folder / "published", "publish_interval_s": 0.05,
                 "embedding_prefetch_capacity": 0, "batch_prefetch_capacity": 0}  # fmt: skip
        self.estimator = mt.Estimator(Clicker, mt.RunConfig(**{**fixed, **settings}))
        self.steps = Steps()
        self.end = threading.Event()
        self.sent = 0

    def run(self) -> Any:
        rows = mt.data.event_log(self.folder / "log", "rows", record="example")
        return self.estimator.train(rows.batch(BATCH), hooks=[self.steps, StopEventHook(self.end, "test ends")])

    def send(self, user: int) -> None:
        """Append one batch of events of a user, and wait until it is trained."""
        self._append(user, BATCH)
        self.sent += 1
        eventually(lambda: self.steps.count >= self.sent or self.ended.done())
        assert not self.ended.done(), self.ended.exception()

    def _append(self, user: int, rows: int) -> None:
        with LogWriter(self.topic) as writer:
            for index in range(rows):
                event = small_export.example([user], [index], 1.0)
                event.label.append(index % 2)
                writer.write(event.SerializeToString(), key=b"k")

    ended: Future[Any]


@contextmanager
def training(folder: Path, **settings: Any) -> Iterator[Trainer]:
    trainer = Trainer(folder, **settings)
    with ThreadPoolExecutor(1) as pool:
        trainer.ended = pool.submit(trainer.run)
        try:
            address = local_path(settings.get("model_dir", folder / "run")) / "controller_server_addr.txt"
            eventually(lambda: address.exists() or trainer.ended.done())
            assert not trainer.ended.done(), trainer.ended.exception()
            yield trainer
        finally:
            trainer.end.set()  # also while it waits for events
        trainer.ended.result(60)


def run_command(*arguments: object, status: int = 0) -> Any:
    result = CliRunner().invoke(program.app, ["forget", *map(str, arguments)])
    assert (result.exit_code == 0) == (status == 0), (result.output, result.exception)
    return result.exception if status else result.stdout


def ask(folder: Path, *arguments: object) -> dict[str, Any]:
    """Run the command; the training waits for events meanwhile."""
    return json.loads(run_command(folder / "run", "--json", "--timeout-s", 60, *arguments))


def save(trainer: Trainer) -> None:
    with ControllerClient(trainer.folder / "run", save_timeout_s=60) as client:
        client.save_checkpoint()


def saved_users(folder: Path) -> set[int]:
    newest = CheckpointFolder(folder / "run" / "checkpoints").newest()
    assert newest is not None
    return users_of(MultiTable.load(newest.path / "tables"))


def users_of(tables: MultiTable) -> set[int]:
    return {int(fid) for ids, _ in tables["user"].items() for fid in ids}


def followed(folder: Path) -> FollowedTables:
    model = FollowedTables(MultiTable(Clicker().declaration.table_specs()).to_serving())
    assert Follower(folder / "published", model, clock=SystemClock()).step()
    return model


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, Following]]:
    small_export.make_export(folder / "exports" / "1")
    following = Following(Servable.load, {"": folder / "published"}, poll_s=0.02)
    config = ModelConfig(name="prices", base_path=folder / "exports")
    settings = ServingConfig(models=[config], port=0, rest_port=0, version_poll_s=0.0)
    server = ModelServer(settings, following, samples=following.samples)
    server.start()
    try:
        assert server.models.wait_until_settled(60)
        yield server.rest_address, following
    finally:
        server.stop(0.0)
        following.close()


def test_a_forgotten_user_leaves_table_deltas_checkpoint_and_server(tmp_path: Path) -> None:
    with training(tmp_path) as trainer:
        trainer.send(7)
        trainer.send(8)
        save(trainer)
        assert USER in saved_users(tmp_path)
        trainer.send(8)  # a checkpoint of the same step would replace the first one
        with serving(tmp_path) as (rest, following):
            (servable,) = following._followers
            eventually(lambda: USER in users_of(servable.tables))
            receipt = ask(
                tmp_path, "--feature", "user", 7, "--server", rest, "--log", trainer.topic.url,
                "--receipt", tmp_path / "receipt.json",
            )  # fmt: skip
            assert users_of(servable.tables) == {OTHER}
            assert receipt["servers"][0]["cut"] >= receipt["cut"]
        assert users_of(trainer.estimator.store) == {OTHER}
        assert saved_users(tmp_path) == {OTHER}
        assert users_of(followed(tmp_path).tables) == {OTHER}
        cut = read_cut(tmp_path / "published")
        assert cut is not None
        log = tmp_path / "published" / cut.folders[0]
        held = [number for number in segment_numbers(log) if USER in written_ids(segment_path(log, number))["user"]]
        assert held == [], "segments before the checkpoint are removed"
    assert [(row["table"], row["id"], row["had_row"]) for row in receipt["rows"]] == [("user", USER, True)]
    assert json.loads((tmp_path / "receipt.json").read_text()) == receipt
    kinds = [each["kind"] for each in receipt["remaining"]]
    assert kinds == ["checkpoint", "event log"], receipt["remaining"]
    assert "retain_s=3600" in receipt["remaining"][1]["removed_by"]


def test_a_later_event_brings_an_id_back_as_new_unless_it_is_blocked(tmp_path: Path) -> None:
    with training(tmp_path, publish_dir=None) as trainer:
        for _ in range(4):
            trainer.send(7)
        trainer.send(9)
        store = trainer.estimator.store
        assert isinstance(store, MultiTable)
        learned = store["user"].lookup([USER])
        with ControllerClient(tmp_path / "run") as client:
            first = client.forget(["7"], features=["user"], checkpoint_wait_s=0)
            assert (first.cut, first.checkpoint, first.is_complete) == (None, None, False), "the next step saves"
            assert not store["user"].contains([USER]).any()
            blocked = client.forget(["9"], features=["user"], block=True, checkpoint_wait_s=0)
        trainer.send(7)
        trainer.send(9)
        assert store["user"].contains([USER]).all()
        assert abs(store["user"].lookup([USER])).sum() < abs(learned).sum(), "one step from its first value, not five"
        assert not store["user"].contains([small_export.fid_of(1, 9)]).any()
        assert blocked.is_blocked
        eventually(lambda: all(each.is_complete for each in ForgetLedger(tmp_path / "run").all()))
    with training(tmp_path, publish_dir=None) as trainer:  # the block outlives the run
        trainer.sent, trainer.steps.count = 0, 0
        trainer.send(9)
        assert not trainer.estimator.store["user"].contains([small_export.fid_of(1, 9)]).any()


def test_a_run_that_restores_an_earlier_checkpoint_forgets_again(tmp_path: Path) -> None:
    with training(tmp_path, publish_dir=None) as trainer:
        trainer.send(7)
        trainer.send(8)
        save(trainer)
        before = CheckpointFolder(tmp_path / "run" / "checkpoints").newest()
        assert before is not None
        trainer.send(8)
        receipt = ask(tmp_path, "--feature", "user", 7)
    assert receipt["checkpoint_number"] > before.manifest.number
    config = mt.RunConfig(model_dir=str(tmp_path / "run"), log_step_count_steps=0, save_summary_steps=0, threads=1)
    older = mt.Estimator(Clicker, config)
    with pytest.raises(ConfigError, match="forgotten rows of receipt 1"):
        older.export(tmp_path / "exports", checkpoint=before.path)
    older._load(before.path)
    assert not older.store["user"].contains([USER]).any()
    assert older.store["user"].contains([OTHER]).all()
    heir = mt.RunConfig(
        model_dir=str(tmp_path / "heir"), restore_dir=str(tmp_path / "run"), restore_ckpt=before.name,
        log_step_count_steps=0, save_summary_steps=0, threads=1,
    )  # fmt: skip
    started = mt.Estimator(Clicker, heir)
    assert started.step == before.step
    assert users_of(started.store) == {OTHER}, "the receipts of the restored run count"


def test_older_checkpoints_are_dropped_on_request(tmp_path: Path) -> None:
    with training(tmp_path, publish_dir=None) as trainer:
        trainer.send(7)
        save(trainer)
        receipt = ask(tmp_path, "--feature", "user", 7, "--drop-checkpoints")
        assert receipt["remaining"] == []
        saved = CheckpointFolder(tmp_path / "run" / "checkpoints").saved()
        assert min(each.manifest.number for each in saved) >= receipt["checkpoint_number"]


def test_the_best_checkpoint_is_listed_and_dropped_on_request(tmp_path: Path) -> None:
    best = {"early_stopping_metric": "loss", "early_stopping_steps": 1, "keep_best_checkpoint": True}
    with training(tmp_path, publish_dir=None, early_stopping_patience=100, **best) as trainer:
        trainer.send(7)
        eventually((tmp_path / "run" / "best").is_dir)
        listed = ask(tmp_path, "--feature", "user", 7)
        assert str(tmp_path / "run" / "best") in [each["path"] for each in listed["remaining"]]
        dropped = ask(tmp_path, "--feature", "user", 7, "--drop-checkpoints")
        assert dropped["remaining"] == []
    assert not (tmp_path / "run" / "best").exists()


def test_ids_leave_a_model_folder_at_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLITH_STAGING_DIR", str(tmp_path / "staging"))
    url, remote = f"file://{tmp_path}/remote/run", tmp_path / "remote" / "run"
    with training(tmp_path, model_dir=url, publish_dir=None) as trainer:
        trainer.send(7)
        trainer.send(8)
        with ControllerClient(url, save_timeout_s=60) as client:
            client.save_checkpoint()
        (before,) = CheckpointFolder(remote / "checkpoints").saved()
        assert USER in users_of(MultiTable.load(before.path / "tables"))
        trainer.send(8)
        receipt = json.loads(run_command(url, "--json", "--timeout-s", 60, "--feature", "user", 7))
        assert [each["path"] for each in receipt["remaining"]] == [f"{url}/checkpoints/{before.name}"]
        dropped = json.loads(run_command(url, "--json", "--feature", "item", 3, "--drop-checkpoints"))
        assert dropped["remaining"] == []
        saved = CheckpointFolder(remote / "checkpoints").saved()
        assert [each.manifest.number for each in saved] == [dropped["checkpoint_number"]], "the URL has the newest only"
        assert users_of(MultiTable.load(saved[0].path / "tables")) == {OTHER}
        assert [each.is_complete for each in ForgetLedger(remote).all()] == [True, True]
        monkeypatch.setenv("MONOLITH_STAGING_DIR", str(tmp_path / "another machine"))
        error = run_command(url, "--feature", "user", 7, status=1)
        assert "no training with a controller runs at 'file://" in str(error)
        assert "give host:port" in str(error)
        monkeypatch.setenv("MONOLITH_STAGING_DIR", str(tmp_path / "staging"))
    assert not (remote / "controller_server_addr.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["7"], "features and tables are empty"),
        (["7", "--feature", "nobody"], "feature is 'nobody', expected one of user, item"),
        (["x1", "--table", "user"], "id in table 'user' is 'x1', expected an integer"),
        (["7", "--table", "users"], "table is 'users', expected one of"),
        (["7", "--feature", "user", "--log", "log:///none/there"], "there"),
        (["7", "--feature", "user", "--receipt", "/none/there/r.json"], "receipt is '/none/there/r.json'"),
    ],
)
def test_an_invalid_request_removes_nothing(tmp_path: Path, idle: Trainer, arguments: list[str], text: str) -> None:
    error = run_command(idle.folder / "run", *arguments, status=1)
    assert text in str(error)
    assert ForgetLedger(idle.folder / "run").all() == []


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainer]:
    with training(tmp_path_factory.mktemp("idle"), publish_dir=None) as trainer:
        trainer.send(7)
        yield trainer
