from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from monolith.compat.tasks import BaseEmbeddingTask
from monolith.core import fid
from monolith.core.errors import ConfigError
from monolith.core.params import InstantiableParams
from monolith.core.registry import SingleTaskModelParams, register_single_task_model
from monolith.data import Batch, Schema, SparseFeature
from monolith.data.records.messages import TfExample
from monolith.data.records.tfrecord import TfRecordWriter
from monolith.embedding import MultiTable
from monolith.features import HostEmbedder, Model, Output
from monolith.training import Estimator, RunConfig
from monolith.training.config.job import JobConfig
from monolith.training.runner import Job


class Task(BaseEmbeddingTask):
    def schema(self) -> Schema:
        return Schema(sparse=[SparseFeature("user", slot=1), SparseFeature("item", slot=2)])


def write(path: Path, users: list[list[int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TfRecordWriter(path) as writer:
        for ids in users:
            example = TfExample()
            example.features.feature["user"].int64_list.value.extend(ids)
            example.features.feature["item"].int64_list.value.extend([100 + each for each in ids])
            example.features.feature["label"].float_list.value.append(1.0)
            writer.write(example.SerializeToString())


@pytest.fixture(name="params")
def _params(tmp_path: Path) -> InstantiableParams:
    """A task on three days of two files with two rows each; user ids are <day><file><row>."""
    for day, file in itertools.product((1, 2, 3), (0, 1)):
        rows = [[day * 100 + file * 10 + row] for row in (0, 1)]
        write(tmp_path / "in" / f"2020050{day}" / "00" / f"part-{file}", rows)
    (tmp_path / "vocabulary.tsv").write_text("slot\tcount\n1\t1000\n2\t20\n")
    p = Task.params()
    p.vocab_file_path = str(tmp_path / "vocabulary.tsv")
    p.train.file_folder = str(tmp_path / "in")
    p.train.per_replica_batch_size = 2
    return p


def signatures(batch: Batch, name: str) -> list[int]:
    return [fid.signature_v2(int(each)) for each in batch.ids[name].values]


def users(batches: Any) -> list[int]:
    return sorted(each for batch in batches for each in signatures(batch, "user"))


def test_params_have_the_defaults_of_the_original() -> None:
    p = Task.params()
    assert (p.qr_hashing_threshold, p.qr_collision_rate, p.qr_multi_hashing) == (100_000_000, 4, False)
    assert (p.files_interleave_cycle_length, p.gradient_multiplier, p.top_k_sampling_num_per_core) == (4, 1.0, 6)
    assert p.train.date_and_file_name_format == "*/*/part*"


def test_days_between_the_dates_are_read_both_included(params: InstantiableParams) -> None:
    params.train.set(start_date="20200502", end_date="20200502")
    assert users(params.instantiate().create_input_fn()()) == [200, 201, 210, 211]
    params.train.set(start_date=None, end_date="20200502")
    assert len(users(params.instantiate().create_input_fn()())) == 8


def test_workers_share_the_files(params: InstantiableParams) -> None:
    read = params.instantiate().create_input_fn()
    parts = [users(read(shard=(worker, 2))) for worker in (0, 1)]
    assert sorted(parts[0] + parts[1]) == users(read())
    assert len(parts[0]) == len(parts[1]) == 6


def test_a_file_pattern_goes_before_the_folder(params: InstantiableParams) -> None:
    params.train.file_pattern = params.train.file_folder + "/20200501/00/part-1"
    assert users(params.instantiate().create_input_fn()()) == [110, 111]


def test_files_are_read_again_and_again_when_asked(params: InstantiableParams) -> None:
    params.train.set(repeat=True, end_date="20200501")
    batches = itertools.islice(iter(params.instantiate().create_input_fn()()), 5)
    assert len(users(batches)) == 10


def test_evaluation_reads_its_own_files_once_with_the_last_rows(params: InstantiableParams) -> None:
    params.train.repeat = True
    params.eval.per_replica_batch_size = 5
    task = params.instantiate()
    assert users(task.create_input_fn("eval")()) == users(task.create_input_fn("predict")())
    assert len(users(task.create_input_fn("eval")())) == 12
    params.eval.file_pattern = params.train.file_folder + "/20200502/00/part-1"
    assert users(params.instantiate().create_input_fn("eval")()) == [210, 211]


def rows_of(task: BaseEmbeddingTask, *signatures: int) -> dict[str, list[int]]:
    """Return the rows that the feature ``user`` of a model of the task looks up, by table."""
    model = Model()
    group = task.declare_feature(model, "user", slot=1)
    model.embedding_slice([group], "vec", dim=2, out="concat")
    model.declaration.freeze()
    ids = [fid.make_v2(1, each % (1 << 48)) for each in signatures]
    plan = HostEmbedder(model.declaration, MultiTable(model.declaration.table_specs())).plan(
        Batch.from_arrays(ids={"user": [ids]})
    )
    assert all(fid.slot_v2(int(each)) == 1 for each in plan.ids(0))
    return {model.declaration.tables[0]: [fid.signature_v2(int(each)) for each in plan.ids(0)]}


def test_places_below_zero_become_zero_and_others_stay(params: InstantiableParams) -> None:
    assert rows_of(params.instantiate(), 5, -1, 10**9) == {"user": [5, 0, 10**9]}


def test_with_one_size_for_all_slots_ids_are_taken_modulo_it(params: InstantiableParams) -> None:
    params.vocab_size_per_slot = 7
    hashed = (1 << 47) + 12345
    assert rows_of(params.instantiate(), 5, 8, hashed) == {"user": list(dict.fromkeys([5, 1, hashed % 7]))}


def test_large_vocabularies_are_split_and_small_ones_not(params: InstantiableParams) -> None:
    params.set(qr_multi_hashing=True, qr_hashing_threshold=999)
    task = params.instantiate()
    assert rows_of(task, 999) == {"user_0": [999 % 251, 251 + 999 // 251]}
    params.qr_hashing_threshold = 1000
    assert rows_of(params.instantiate(), 999) == {"user": [999]}
    assert task.split_of(2) is None
    assert task.split_of(None) is None


class SplitTask(Task):
    """Adds the rows of remainder and quotient, which share a table."""

    def create_model_fn(self) -> Any:
        task = self

        class Ranker(Model):
            def __init__(self) -> None:
                super().__init__()
                groups = [task.declare_feature(self, "user", slot=1), task.declare_feature(self, "item", slot=2)]
                self.vec = self.embedding_slice(groups, "vec", dim=2, out="add_n")

            def forward(self, batch: Any) -> Output:
                return Output(logits=self.vec(batch).sum(1), label=batch.label[:, 0])

        return Ranker


def test_a_model_adds_the_rows_of_a_split_id(params: InstantiableParams) -> None:
    params.set(cls=SplitTask, qr_multi_hashing=True, qr_hashing_threshold=999)
    model = params.instantiate().create_model_fn()()
    tables = MultiTable(model.declaration.table_specs())
    model.attach(tables)
    slot = fid.make_v2(1, 0)
    tables["user_0"].assign([slot + 999 % 251, slot + 251 + 3], np.array([[1.0, 2.0], [10.0, 20.0]], np.float32))
    batch = Batch.from_arrays(ids={"user": [[slot + 999]], "item": [[]]})
    assert model(batch).logits.tolist() == [33.0]


def test_a_job_of_several_workers_reads_each_record_once(params: InstantiableParams, tmp_path: Path) -> None:
    params.set(cls=SplitTask, vocab_size_per_slot=50)

    class OneTask(SingleTaskModelParams):
        def task(self) -> InstantiableParams:
            return params

    register_single_task_model(OneTask)
    seen: list[list[int]] = []
    for index in (0, 1):
        job = Job(JobConfig(task="OneTask", index=index, num_workers=2, model_dir=str(tmp_path / f"run{index}")))
        job.train()
        store = job.estimator.store
        assert isinstance(store, MultiTable)
        assert all(fid.signature_v2(int(each)) < 50 for ids, _ in store["user"].items() for each in ids)
        seen.append(users(job.own_batches("train")))
    assert sorted(seen[0] + seen[1]) == users(params.instantiate().create_input_fn()())
    assert len(seen[0]) == len(seen[1]) == 6
    assert job.evaluate()["samples"] == 12


def read_scalars(folder: Path) -> list[tuple[int, dict[str, float]]]:
    events = EventAccumulator(str(folder)).Reload()
    steps: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["scalars"]:
        for event in events.Scalars(tag):
            steps.setdefault(event.step, {})[tag] = event.value
    return sorted(steps.items())


def test_a_job_writes_metrics_of_sampled_users_over_windows(params: InstantiableParams, tmp_path: Path) -> None:
    params.set(
        cls=SplitTask,
        enable_deepinsight=True,
        enable_host_call_scalar_metrics=True,
        enable_caching_with_tpu_var_mode=True,
        host_call_every_n_steps=2,
    )
    task = params.instantiate()
    (hook,) = task.training_hooks()
    batches = [
        Batch.from_arrays(ids={"user": [[1], [2]], "item": [[3], [4]]}, label=[0, 1], uid=[1001, uid])
        for uid in (1002, 1999, 1003, 1004)
    ]
    Estimator(task.create_model_fn(), RunConfig(model_dir=str(tmp_path / "run"))).train(batches, hooks=[hook])
    scalars = read_scalars(tmp_path / "run" / "host_call")
    assert [step for step, _ in scalars] == [2, 4]
    assert [values["ctr/window_rows"] for _, values in scalars] == [3, 4]  # the user of bucket 999 is not sampled
    assert [values["ctr/window_label"] for _, values in scalars] == [pytest.approx(1 / 3), 0.5]
    assert scalars[1][1]["ctr/window_auc"] == 1.0
    assert scalars[1][1]["loss"] > 0
    params.set(enable_deepinsight=False, enable_host_call_scalar_metrics=False)
    assert params.instantiate().training_hooks() == []


def test_sizes_come_from_the_file_with_overrides(params: InstantiableParams) -> None:
    assert params.instantiate().vocabulary_sizes == {1: 1000, 2: 20}
    params.set(custom_vocab_size_mapping={2: 50}, vocab_size_offset=1)
    assert params.instantiate().vocabulary_sizes == {1: 1001, 2: 51}


def test_the_vocabulary_of_the_end_date_is_taken_when_there_is_one(params: InstantiableParams, tmp_path: Path) -> None:
    params.train.set(end_date="20200502", vocab_file_folder_prefix=str(tmp_path / "vocab_"))
    assert params.instantiate().vocabulary_sizes == {1: 1000, 2: 20}
    (tmp_path / "vocab_20200502").mkdir()
    (tmp_path / "vocab_20200502" / "part-0.csv").write_text("1\t5\n")
    assert params.instantiate().vocabulary_sizes == {1: 5}
    (tmp_path / "vocab_20200502" / "part-1.csv").write_text("1\t6\n")
    params.vocab_file_path = str(tmp_path / "vocabulary.tsv")
    assert params.instantiate().vocabulary_sizes == {1: 1000, 2: 20}


def test_embeddings_get_noise_and_scaled_gradients_when_asked(params: InstantiableParams) -> None:
    rows = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    assert params.instantiate().prepare_embedding(rows, 1.0, 2.0) is rows
    params.set(use_random_init_embedding_for_oov=True, gradient_multiplier=0.5)
    task = params.instantiate()
    assert torch.equal(task.prepare_embedding(rows), rows)
    out = task.prepare_embedding(rows, 1.0, 2.0)
    assert (out[0] >= 1).all()
    assert out[1].tolist() == [1.0, 2.0]
    out.sum().backward()
    assert rows.grad is not None
    assert rows.grad.tolist() == [[0.0, 0.0], [0.5, 0.5]]
    rows.grad = None
    (rows * 2).sum().backward()
    assert rows.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train.per_replica_batch_size": None}, "train.per_replica_batch_size is None"),
        ({"train.file_folder": None}, "train.file_pattern and train.file_folder are None"),
        ({"train.start_date": "20210101"}, "none of 6 files in .* is from 20210101 to None"),
        ({"train.date_and_file_name_format": "nothing*"}, "no file matches"),
        ({"vocab_file_path": None}, "vocab_file_path is None"),
    ],
)
def test_a_missing_parameter_is_named(params: InstantiableParams, change: dict[str, Any], message: str) -> None:
    params.set(**change)
    with pytest.raises(ConfigError, match=message):
        next(iter(params.instantiate().create_input_fn()()))


def test_a_task_without_a_schema_reads_the_inputs_of_its_model(params: InstantiableParams) -> None:
    task = params.set(cls=BaseEmbeddingTask).instantiate()
    assert task.schema() is None
    assert task.create_input_fn()().schema is None
