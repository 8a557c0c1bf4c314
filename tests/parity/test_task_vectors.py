"""Vectors 22, 23, 24, 26, 48 of the original's tests of tasks, and the defaults of its task parameters."""

from __future__ import annotations

import pytest
import torch

from monolith import data
from monolith.compat.tasks import (
    BaseTask,
    accumulate,
    visible_gpu,
)
from monolith.compat.tasks.qr_hashing import quotient_remainder
from monolith.core.params import Params
from monolith.embedding import Ftrl, MultiTable
from monolith.features import Model, QuotientRemainder
from monolith.features.autograd import embed


@pytest.mark.parametrize(("rank", "per_gpu", "gpu"), [(2, 1, "2"), (1, 2, "0"), (2, 2, "1"), (3, 2, "1")])
def test_the_gpu_of_a_rank(rank: int, per_gpu: int, gpu: str) -> None:
    assert visible_gpu(rank, per_gpu) == gpu


def test_the_split_of_a_hundred_million_and_one_ids() -> None:
    split = QuotientRemainder(100_000_001, 4)
    assert (split.remainder_rows, split.quotient_rows) == (25_000_001, 5)
    assert [int(part) for part in quotient_remainder(100_000_000, 100_000_001, 4)] == [24_999_997, 3]


def test_the_vectors_of_a_slot_are_one_run_of_columns_and_come_back_apart() -> None:
    model = Model()
    model.embedding_feature("user", slot=1)
    model.embedding_slice("user", "bias", 1, optimizer=Ftrl(0.1))
    vectors = [model.embedding_slice("user", f"vec_{width}", width) for width in (2, 3, 4)]
    (spec,) = model.declaration.table_specs()
    assert [piece.dim for piece in spec.slices] == [1, 9]
    tables = MultiTable([spec])
    embedder = model.attach(tables)
    tables["user"].assign([7], torch.arange(12.0, 22.0).reshape(1, 10).numpy())
    batch = embed(embedder, embedder.pull(data.Batch.from_arrays(ids={"user": [[7]]}))).batch
    parts = [each(batch)[0].tolist() for each in vectors]
    assert parts == [[13, 14], [15, 16, 17], [18, 19, 20, 21]]


def test_accumulation_of_a_host_call() -> None:
    value = torch.zeros(10, dtype=torch.int32)
    found = []
    for offset in (1, 5, 6):
        value = accumulate(value, torch.ones(2, dtype=torch.int32), offset)
        found.append(value.tolist())
    assert found == [
        [0, 1, 1, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0, 1, 2, 1, 0, 0],
    ]


def test_a_reader_that_knows_the_end_sums_one_two_three() -> None:
    schema = data.Schema(dense={"x": 1}, labels=0)
    rows = data.frame({"x": [1.0, 2.0, 3.0]}, schema=schema).batch(1)
    assert sum(float(batch["x"][0, 0]) for batch in rows) == 6


def test_the_parameters_of_a_task() -> None:
    def tree(params: Params) -> dict[str, object]:
        return {name: tree(value) if isinstance(value, Params) else value for name, value in params.iter_params()}

    assert tree(BaseTask.params()) == {
        "cls": BaseTask,
        "name": "BaseTask",
        "accelerator": None,
        "input": {"eval_examples": None, "train_examples": None},
        "eval": {"per_replica_batch_size": None, "steps_per_eval": 10000, "steps": None},
        "train": {
            "steps": None,
            "max_steps": None,
            "per_replica_batch_size": None,
            "file_pattern": None,
            "repeat": False,
            "label_key": "label",
            "save_checkpoints_steps": None,
            "save_checkpoints_secs": None,
            "dense_only_save_checkpoints_secs": None,
            "dense_only_save_checkpoints_steps": None,
        },
    }
