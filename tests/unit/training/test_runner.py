from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import monolith as mt
from monolith.core.errors import CheckpointMissing, ConfigError, DataError
from monolith.core.params import InstantiableParams
from monolith.core.registry import SingleTaskModelParams, register_single_task_model
from monolith.data import RecordWriter
from monolith.data.records.messages import Example
from monolith.data.sources.event_log.topic import Topic
from monolith.data.sources.event_log.writer import LogWriter
from monolith.demo.world import World
from monolith.demo.world.files import write_parquet, write_records
from monolith.training.config.job import JobConfig
from monolith.training.runner import Job

CLICKS = World(users=30, items=20, seed=6).clicks(300)
DEEPFM = {"sparse": ["user_id", "item_id"], "dense": ["price"], "dim": 2, "hidden": [4]}


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    write_parquet(CLICKS, tmp_path / "clicks.parquet")
    return str(tmp_path / "clicks.parquet")


def job(folder: Path | None = None, **options: Any) -> Job:
    fixed = {"batch_size": 50, "threads": 1, "log_step_count_steps": 0, "save_summary_steps": 0}
    return Job(JobConfig(model_dir="" if folder is None else str(folder / "run"), **{**fixed, **options}))


def deepfm(folder: Path, data: str, **options: Any) -> Job:
    return job(folder, task="deepfm", task_options=DEEPFM, data=data, label_features=("click",), **options)


def test_a_trained_folder_remembers_its_model_options_labels_and_features(tmp_path: Path, parquet: str) -> None:
    deepfm(tmp_path, parquet).train()
    later = job(tmp_path, data=parquet)
    assert type(later.estimator.model) is mt.models.DeepFM
    assert later.schema.label_features == ("click",)
    found = later.evaluate()
    assert (found["global_step"], found["samples"]) == (6, 300)
    predictions = [row for batch in later.predict() for row in batch["ctr"].tolist()]
    assert CLICKS.auc(predictions) == pytest.approx(found["ctr/auc"], abs=1e-9)


def test_training_goes_on_when_the_number_of_epochs_changes(tmp_path: Path, parquet: str) -> None:
    deepfm(tmp_path, parquet, max_steps=4).train()
    more = deepfm(tmp_path, parquet, epochs=2)
    more.train()
    assert more.estimator.step == 12, "the rest of the first epoch, and the second"


def test_other_steps_of_the_data_need_a_word(tmp_path: Path, parquet: str) -> None:
    deepfm(tmp_path, parquet, max_steps=2).train()
    with pytest.raises(DataError, match=r"To start at the beginning of the data: resume_data=False"):
        deepfm(tmp_path, parquet, max_steps=4, shuffle_buffer=100).train()
    anew = deepfm(tmp_path, parquet, max_steps=4, shuffle_buffer=100, resume_data=False)
    anew.train()
    assert anew.estimator.step == 4


@pytest.mark.parametrize(
    ("limits", "steps"), [({"max_steps": 5}, 5), ({"steps": 5}, 7), ({}, 8)], ids=["max_steps", "steps", "all"]
)
def test_evaluations_on_the_way_end_where_the_training_ends(
    limits: dict[str, int], steps: int, tmp_path: Path, parquet: str
) -> None:
    deepfm(tmp_path, parquet, max_steps=2).train()
    # Two steps of six were taken; without a limit the rest of this epoch and nothing more is read.
    expected = 6 if not limits else min(steps, 6)
    found = deepfm(tmp_path, parquet, eval_data=parquet, steps_per_eval=2, eval_steps=1, **limits).train()
    assert found["global_step"] == expected
    assert found["samples"] == 50


def test_one_evaluation_at_the_end_is_the_default(tmp_path: Path, parquet: str) -> None:
    found = deepfm(tmp_path, parquet, eval_data=parquet).train()
    assert (found["global_step"], found["samples"]) == (6, 300)


def test_records_are_recognised(tmp_path: Path) -> None:
    for record in ("example_batch", "example", "instance"):
        path = tmp_path / f"{record}.pb"
        with RecordWriter(path) as writer:
            write_records(CLICKS, writer, record)  # type: ignore[arg-type]
        made = job(None, task="deepfm", task_options={"dim": 2, "hidden": [4]}, data=str(path))
        assert {"ctr/auc"} <= set(made.train())


class Own(mt.Model):
    """Brings its own data."""

    asked: ClassVar[list[str]] = []

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user_id", slot=1)
        self.bias = self.embedding_slice("user_id", "bias", 1)

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.bias(batch).squeeze(1), label=batch.label[:, 0])

    def input_fn(self, mode: str) -> mt.data.Dataset:
        self.asked.append(mode)
        return CLICKS.dataset().batch(50)


class OfParams(Own):
    def __init__(self, params: Any) -> None:
        super().__init__()
        self.note = params.note

    @classmethod
    def params(cls) -> InstantiableParams:
        params = InstantiableParams(cls)
        params.define("note", "", "Anything.")
        return params


def test_a_model_may_bring_its_data(tmp_path: Path) -> None:
    Own.asked.clear()
    made = job(tmp_path, task=f"{__file__}:Own")
    made.train()
    assert made.estimator.step == 6
    assert made.evaluate()["samples"] == 300
    assert type(made.estimator.model).asked == ["train", "eval"]


def test_a_registered_task_is_known_by_its_name_and_takes_options(tmp_path: Path) -> None:
    @register_single_task_model
    class RunnerTestTask(SingleTaskModelParams):
        def task(self) -> InstantiableParams:
            return OfParams.params()

    made = job(tmp_path, task="RunnerTestTask", task_options={"note": "hello"})
    assert made.estimator.model.note == "hello"
    made.train()
    assert json.loads((tmp_path / "run" / "job.json").read_text())["task_options"] == {"note": "hello"}
    with pytest.raises(ConfigError, match="nota"):
        job(tmp_path, task="RunnerTestTask", task_options={"nota": "hello"})
    with pytest.raises(ConfigError, match=r"did you mean RunnerTestTask\?"):
        job(tmp_path, task="RunnerTestTusk")


def test_a_file_is_remembered_by_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    job(tmp_path, task="test_runner.py:Own").train()
    assert json.loads((tmp_path / "run" / "job.json").read_text())["task"] == f"{Path(__file__).resolve()}:Own"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "deepfn", "data": "x.parquet"}, r"no ready-made model 'deepfn'; did you mean 'deepfm'\?"),
        (
            {"task": f"{__file__}:Own", "task_options": {"dim": 3}},
            r"task_options is \{'dim': 3\}, expected \(\)",
        ),
        ({"task": "deepfm", "data": "-", "record": "example"}, "a stream gives rows only once; train on a file first"),
        ({"task": "deepfm"}, "data is None and kafka_topics is empty; give --data FILES"),
        ({}, r"task is None .*; give --task, or a --model-dir that was trained"),
        ({"task": f"{__file__}:CLICKS"}, "CLICKS"),
    ],
)
def test_what_cannot_be_a_job_is_refused_with_the_remedy(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        job(tmp_path, **options)


def test_a_damaged_memory_is_named(tmp_path: Path, parquet: str) -> None:
    deepfm(tmp_path, parquet, max_steps=1).train()
    (tmp_path / "run" / "job.json").write_text("{")
    with pytest.raises(ConfigError, match=r"job\.json is corrupt .*; give --task and --task-options instead"):
        job(tmp_path, data=parquet)


def test_features_are_written_only_into_a_folder(tmp_path: Path, parquet: str) -> None:
    with pytest.raises(ConfigError, match=r"model_dir is empty, .*; give --model-dir"):
        job(None, task="deepfm", task_options=DEEPFM, data=parquet).write_features()
    written = deepfm(tmp_path, parquet).write_features()
    assert (written.batches, written.rows) == (6, 300)


def test_nothing_to_evaluate_yet_is_said(tmp_path: Path, parquet: str) -> None:
    with pytest.raises(CheckpointMissing, match="train first"):
        deepfm(tmp_path, parquet).evaluate()


def test_following_ends_with_max_steps_and_leaves_summaries(tmp_path: Path, parquet: str) -> None:
    deepfm(tmp_path, parquet, max_steps=4).train()
    found = list(job(tmp_path, data=parquet, max_steps=4).evaluate_new_checkpoints())
    assert [one["global_step"] for one in found] == [4]
    assert len(list((tmp_path / "run" / "eval").iterdir())) == 1


class EventTime(mt.Model):
    """Shows the event time that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user")
        self.vector = self.embedding_slice("user", "vec", 1)

    def forward(self, batch: mt.Batch) -> mt.Output:
        times: Any = batch.event_time_s
        return mt.Output(
            head="click", logits=self.vector(batch).squeeze(1), label=batch.label[:, 0], extra={"time": times.double()}
        )


def test_files_are_read_with_the_time_column_of_the_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = {"user": list(range(40)), "click": [0, 1] * 20, "at": [1_700_000_000 + row for row in range(40)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    pq.write_table(pa.table(table).drop(["at"]), tmp_path / "untimed.parquet")
    timed: dict[str, Any] = {"label_features": ("click",), "batch_size": 20, "data": str(tmp_path / "a.parquet")}
    task = f"{EventTime.__module__}.EventTime"
    job(tmp_path, task=task, time_column="at", **timed).train()

    def times(**options: Any) -> list[float]:
        return [time for part in job(tmp_path, **{**timed, **options}).predict() for time in part["time"].tolist()]

    assert times() == table["at"]
    assert times(keys=("at",)) == table["at"]
    assert times(data=str(tmp_path / "untimed.parquet")) == [0.0] * 40
    assert "columns missing" in caplog.text

    again = job(tmp_path, task=task, more=True, **timed)  # the folder knows the time column
    again.train()
    assert again.estimator.store["user"].max_time_s == table["at"][-1]
    assert [batch.event_time_s.min() for batch in again.read_training_data()] == [table["at"][0], table["at"][20]]


def test_a_stream_that_fills_no_batch_is_trained_after_the_wait(tmp_path: Path) -> None:
    with LogWriter(Topic.create(tmp_path, "rows")) as writer:
        for number in range(5):
            example = Example(label=[number % 2])
            example.named_feature.add(name="user").feature.int64_list.value.append(number)
            writer.write(example.SerializeToString())
    options: dict[str, Any] = {"record": "example", "batch_size": 512, "batch_wait_s": 0.2, "max_steps": 1}
    made = job(tmp_path, task=f"{EventTime.__module__}.EventTime", data=f"log://{tmp_path}/rows", **options)
    made.train()
    assert made.estimator.step == 1
    assert 1 <= len(made.estimator.store["user"]) <= 5
