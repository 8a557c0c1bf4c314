"""Tasks of the original's API as jobs: trained, evaluated, exported and served by the commands."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from commands import Shell
from monolith.core.free_ports import free_port
from monolith.data.records.messages import TfExample
from monolith.data.records.tfrecord import TfRecordWriter
from monolith.serving import Servable

RANKER = """
import torch
from monolith import data
from monolith.compat.tasks import EstimatorSpec, MonolithBaseModel
from monolith.data import Schema, SparseFeature
from monolith.layers.losses import sigmoid_loss_and_pred


class Ranker(MonolithBaseModel):
    def __init__(self, params=None):
        super().__init__(params)
        self.tower = torch.nn.Linear(9, 1)
        self.modes = set()

    def input_fn(self, mode, shard=(0, 1)):
        dataset = data.files("day/part-*", record="tf_example", schema=self.serving_input_receiver_fn(), shard=shard)
        return (dataset.repeat() if mode == "train" and self.p.train.repeat else dataset).batch(16)

    def serving_input_receiver_fn(self):
        return Schema(sparse=[SparseFeature("user", slot=1), SparseFeature("item", slot=2)], dense=["price"])

    def model_fn(self, features, mode):
        self.modes.add(mode)
        for name in ("user", "item"):
            self.create_embedding_feature_column(name)
        bias = self.lookup_embedding_slice(["user", "item"], "bias", 1, out_type="add_n").squeeze(1)
        vectors = self.lookup_embedding_slice(["user", "item"], "vec", 4, out_type="concat")
        logits = bias + self.tower(torch.cat([vectors, features["price"]], 1)).squeeze(1)
        self.add_extra_output("logit", logits)
        if mode == "predict":
            return EstimatorSpec(pred=torch.sigmoid(logits), head_name="click")
        loss, pred = sigmoid_loss_and_pred(logits, features["label"], features["sample_rate"])
        return EstimatorSpec(label=features["label"], pred=pred, loss=loss, head_name="click")
"""


def write(path: Path, rows: range) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TfRecordWriter(path) as writer:
        for row in rows:
            example = TfExample()
            example.features.feature["user"].int64_list.value.append(row % 7)
            example.features.feature["item"].int64_list.value.append(row % 5)
            example.features.feature["price"].float_list.value.append(row % 3)
            example.features.feature["label"].float_list.value.append(float(row % 7 > 3))
            writer.write(example.SerializeToString())


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    for part in range(4):
        write(tmp_path / "day" / f"part-{part}", range(part * 64, (part + 1) * 64))
    (tmp_path / "ranker.py").write_text(RANKER)
    return Shell(tmp_path)


def test_a_model_of_three_methods_is_trained_evaluated_exported_and_served(shell: Shell, tmp_path: Path) -> None:
    train = ["train", "--task", "ranker.py:Ranker", "--task-options", "{train.repeat: true}", "--model-dir", "run"]
    trained = shell.json(*train, "--max-steps", 120)
    assert trained["click/auc"] > 0.7
    scored = shell.json("evaluate", "--model-dir", "run")
    assert scored["samples"] == 256
    assert scored["global_step"] == 120
    assert scored["click/auc"] > 0.9

    (tmp_path / "day").rename(tmp_path / "moved")  # an export needs no data
    shell.run("export", "run", "exported")
    (version,) = (tmp_path / "exported").glob("[0-9]*")
    servable = Servable.load(version)
    requests = [{"user": [row % 7], "item": [row % 5], "price": row % 3} for row in range(32)]
    served = servable.predict_features(requests)
    labels = np.array([row % 7 > 3 for row in range(32)])
    assert served["click"][labels].min() > served["click"][~labels].max()
    logits = servable.predict_features(requests, "logit")["logit"]  # an extra output is a signature
    np.testing.assert_allclose(served["click"], 1 / (1 + np.exp(-logits)), rtol=1e-4)
    assert json.loads((tmp_path / "run" / "job.json").read_text())["task"].endswith("ranker.py:Ranker")


def test_ranks_read_each_record_of_a_task_once(shell: Shell) -> None:
    port = free_port()
    command = ["train", "--task", "ranker.py:Ranker", "--model-dir", "run", "--enable-sync-training", "--json"]
    ranks = [
        shell.start(
            *command,
            env={
                "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            },
        )
        for rank in (0, 1)
    ]  # fmt: skip
    assert [rank.end() for rank in ranks] == [0, 0], [rank.err.read_text() for rank in ranks]
    # Two of the four files each: 128 rows in batches of 16. Ranks that read all files would take 16 steps.
    assert shell.json("evaluate", "--model-dir", "run")["global_step"] == 8
