"""``monolith train``, ``evaluate`` and ``predict`` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import monolith as mt
import training_child as child
from commands import Shell, wait_until
from monolith.demo.world import World
from monolith.demo.world.files import write_parquet

CLICKS = World(users=40, items=30, seed=4).clicks(600)
FEATURES = "{sparse: [user_id, item_id, category], dense: [price], dim: 4, hidden: [8]}"
TRAIN = [
    "train", "--task", "deepfm", "--task-options", FEATURES, "--data", "clicks.parquet", "--label-features", "click",
    "--batch-size", 50, "--model-dir", "run",
]  # fmt: skip

OWN_MODEL = """
import monolith as mt
from monolith.core.params import InstantiableParams
from monolith.core.registry import SingleTaskModelParams, register_single_task_model
from monolith.embedding import Adagrad


class Biases(mt.Model):
    def __init__(self, *, rate=0.1):
        super().__init__()
        self.embedding_feature("user_id", slot=1)
        self.embedding_feature("item_id", slot=2)
        self.bias = self.embedding_slice(["user_id", "item_id"], "bias", 1, optimizer=Adagrad(rate), out="add_n")

    def forward(self, batch):
        logits = self.bias(batch).squeeze(1)
        return mt.Output(head="own", logits=logits, label=batch.label[:, 0], extra={"both": self.bias(batch)})


class NotAModel:
    pass
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    write_parquet(CLICKS, tmp_path / "clicks.parquet")
    (tmp_path / "own.py").write_text(OWN_MODEL)
    return Shell(tmp_path)


def test_a_ready_made_model_is_trained_evaluated_and_asked(shell: Shell) -> None:
    first = shell.json(*TRAIN, "--max-steps", 5)
    assert {"loss", "ctr/auc", "ctr/log_loss", "ctr/calibration"} <= set(first)
    shell.run(*TRAIN, "--epochs", 0, "--max-steps", 30)
    # The folder knows the model; the data is all there is to say.
    found = shell.json("evaluate", "--model-dir", "run", "--data", "clicks.parquet")
    assert (found["global_step"], found["samples"]) == (30, 600)
    assert found["ctr/auc"] > 0.55
    shell.run("predict", "--model-dir", "run", "--data", "clicks.parquet", "--out", "scores.jsonl")
    scores = [json.loads(line)["ctr"] for line in (shell.folder / "scores.jsonl").read_text().splitlines()]
    assert found["ctr/auc"] == pytest.approx(CLICKS.auc(scores), abs=1e-9)
    older = shell.json("evaluate", "--model-dir", "run", "--data", "clicks.parquet", "--eval-steps", 2,
                       "--checkpoint", "run/checkpoints/step-000000005")  # fmt: skip
    assert older["global_step"] == 5
    table = shell.run("evaluate", "--model-dir", "run", "--data", "clicks.parquet")
    assert "ctr/auc" in table
    assert "600" in table


def test_a_command_that_a_shell_starts_works_the_same(shell: Shell) -> None:
    installed = Path(sys.executable).with_name("monolith")
    arguments = [*map(str, TRAIN), "--max-steps", "2", "--json"]
    done = subprocess.run([installed, *arguments], cwd=shell.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ctr/auc" in json.loads(done.stdout)


def test_an_own_model_in_a_file_is_trained_from_records_and_found_again_from_elsewhere(shell: Shell) -> None:
    pattern = child.write_data(shell.folder)
    own = ["train", "--task", "own.py:Biases", "--task-options", "{rate: 0.2}", "--data", pattern]
    shell.run(*own, "--model-dir", "run", "--max-steps", 3, "--eval-data", pattern, "--steps-per-eval", 2)
    elsewhere = Shell(shell.folder / "elsewhere")
    elsewhere.folder.mkdir()
    lines = elsewhere.run("predict", "--model-dir", "../run", "--data", pattern).splitlines()
    assert len(lines) == child.ROWS
    said = json.loads(lines[0])
    assert set(said) == {"own", "both"}
    assert said["own"] == pytest.approx(1 / (1 + np.exp(-said["both"][0])), rel=1e-5)


def test_a_registered_task_is_trained_by_its_name(shell: Shell) -> None:
    (shell.folder / "own.py").write_text(
        OWN_MODEL
        + """

@register_single_task_model
class BiasTask(SingleTaskModelParams):
    def task(self):
        return BiasModel.params()


class BiasModel(Biases):
    @classmethod
    def params(cls):
        params = InstantiableParams(cls)
        params.define("rate", 0.1, "Learning rate.")
        return params

    def __init__(self, params):
        super().__init__(rate=params.rate)
"""
    )
    pattern = child.write_data(shell.folder)
    registered = ["train", "--task", "own.py:BiasTask", "--data", pattern, "--max-steps", 2]
    shell.run(*registered, "--model-dir", "run", "--task-options", "{rate: 0.5}")
    assert json.loads((shell.folder / "run" / "job.json").read_text())["task_options"] == {"rate": 0.5}
    wrong = shell.fail(*registered, "--model-dir", "other", "--task-options", "{rat: 0.5}")
    assert "rat" in wrong


def test_the_features_alone_can_be_written(shell: Shell) -> None:
    own = ["train", "--task", "own.py:Biases", "--data", "clicks.parquet", "--only-feature-engineering"]
    assert "give --model-dir" in shell.fail(*own)
    printed = shell.run(*own, "--model-dir", "run", "--label-features", "click").split()
    assert [Path(path).parent.name for path in printed] == ["features"]
    schema = mt.data.Schema(sparse=["user_id", "item_id"], labels=1)
    written = mt.data.files(str(shell.folder / "run/features/*.pb"), record="example_batch", schema=schema).batch(600)
    batch = next(iter(written))
    assert batch.size == 600
    assert np.array_equal(batch.label[:, 0], CLICKS.click)
    assert not (shell.folder / "run" / "checkpoints").exists()


def test_settings_come_from_flags_before_environment_before_file_before_defaults(shell: Shell) -> None:
    (shell.folder / "job.yaml").write_text("seed: 1\nbatch_size: 100\nthreads: 1\nmodel_dir: from_file\n")
    out = shell.run("train", "--config", "job.yaml", "--seed", 3, "--print-config", "--json",
                    env={"MONOLITH_SEED": "2", "MONOLITH_BATCH_SIZE": "200"})  # fmt: skip
    report = json.loads(out)
    found = {
        name: (report[name]["value"], report[name]["from"]) for name in ("seed", "batch_size", "threads", "epochs")
    }
    assert found == {
        "seed": (3, "command line"),
        "batch_size": (200, "environment"),
        "threads": (1, "file"),
        "epochs": (None, "default"),
    }
    assert [lost["value"] for lost in report["seed"]["overrode"]] == [2, 1]
    assert not (shell.folder / "from_file").exists(), "nothing was trained"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "job.yaml"], "batch_sise"),
        (["--task", "deepfn", "--data", "clicks.parquet"], "did you mean 'deepfm'?"),
        (["--task", "own.py:Bias", "--data", "clicks.parquet"], "did you mean Biases?"),
        (
            ["--task", "own.py:NotAModel", "--data", "clicks.parquet"],
            "is a NotAModel; give a subclass of monolith.Model",
        ),
        (["--task", "own.py:Biases", "--task-options", "{speed: 1}", "--data", "clicks.parquet"], "expected (*, rate"),
        (["--task", "deepfm"], "give --data FILES"),
        (["--task", "deepfm", "--data", "-", "--record", "example"], "a stream gives rows only once"),
        (["--task", "deepfm", "--data", "nothing-*.parquet"], "nothing-*.parquet"),
        ([], "give --task, or a --model-dir that was trained"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_setting_is_one_line_that_says_what_to_do(arguments: list[str], message: str, shell: Shell) -> None:
    (shell.folder / "job.yaml").write_text("batch_sise: 100\n")
    line = shell.fail("train", *arguments)
    assert line.startswith("error: ")
    assert message in line


def test_evaluation_follows_a_training_to_its_end(shell: Shell) -> None:
    training = shell.start(*TRAIN, "--max-steps", 6, "--save-checkpoints-steps", 2)
    wait_until((shell.folder / "run" / "job.json").is_file, training)
    following = shell.start("evaluate", "--model-dir", "run", "--data", "clicks.parquet", "--follow",
                            "--max-steps", 6, "--json")  # fmt: skip
    assert training.end() == 0, training.err.read_text()
    assert following.end() == 0, following.err.read_text()
    steps = [json.loads(line)["global_step"] for line in following.out.read_text().splitlines()]
    assert steps[-1] == 6
    assert steps == sorted(set(steps))
    assert len(list((shell.folder / "run" / "eval").iterdir())) == len(steps)


@pytest.mark.parametrize("name", ["train", "evaluate", "predict"])
def test_help_has_an_example(name: str, shell: Shell) -> None:
    out = shell.run(name, "--help")
    assert f"Example: monolith {name} " in " ".join(out.split())
