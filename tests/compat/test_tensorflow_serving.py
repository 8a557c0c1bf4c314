"""The stock client of TensorFlow Serving asks our server, from a process that has TensorFlow and Monolith loaded.

``RECORD=1 make test-compat`` writes what both say to each other into ``tests/parity/stock_client.json``.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith import models
from monolith.core import fid
from monolith.core.clock import Deadline, SystemClock
from monolith.data.records import messages
from monolith.testing.eventually import eventually

RECORDED = Path(__file__).parents[1] / "parity" / "stock_client.json"
USERS, ITEMS, PRICES = [3, 5, 3, 9], [[4], [6, 7], [], [4, 4]], [1.5, 0.0, -2.0, 100.0]
Ask = Callable[..., Any]
Scores = dict[str, list[float]]


@pytest.fixture(scope="module")
def stock(conversation: Callable[..., Any], beside: dict[str, str]) -> Iterator[Ask]:
    """Lets the stock client do something."""
    with conversation("tensorflow_serving_side.py", beside) as ask:
        yield ask


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scores]:
    """Where a model's versions are, and its scores of the four rows."""
    folder = tmp_path_factory.mktemp("exported")
    batch = mt.Batch.from_arrays(
        ids={
            "slot_1": [[fid.make_v2(1, user)] for user in USERS],
            "slot_2": [[fid.make_v2(2, item) for item in row] for row in ITEMS],
        },
        dense={"price": np.array(PRICES, np.float32)[:, None]},
        label=np.arange(len(USERS))[:, None] % 2,
    )
    options = {"sparse": ["slot_1", "slot_2"], "dense": ["price"], "dim": 4, "vec_compressor": mt.Fp32()}
    estimator = mt.Estimator(models.build("deepfm", options))
    estimator.train([batch] * 5)
    estimator.export(folder, version=3)
    scores = next(iter(estimator.predict([batch])))
    return folder, {name: np.asarray(each).reshape(-1).tolist() for name, each in scores.items()}


@pytest.fixture(scope="module", params=["off", "on"], ids=lambda native: f"native-{native}")
def address(trained: tuple[Path, Scores], request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a process of ``monolith serve`` with the model ``clicks``, without and with the native path."""
    command = [sys.executable, "-c", "from monolith.cli.main import main; main()", "serve", str(trained[0])]
    arguments = ["--name=clicks", "--port=0", "--rest-port=-1", "--json", "--allow-reload", f"--native={request.param}"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["address"]
            with mt.serving.Client(address, model="clicks", timeout_s=60) as client:
                eventually(lambda: client.status()[0].state == "AVAILABLE")
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0


def records() -> dict[str, list[str]]:
    """The four rows in every form, as base64."""
    instances, examples = [], []
    batch = messages.ExampleBatch(batch_size=len(USERS))
    columns = {name: batch.named_feature_list.add(name=name) for name in ("slot_1", "slot_2", "price")}
    for user, items, price in zip(USERS, ITEMS, PRICES, strict=True):
        instance, example = messages.Instance(), messages.Example()
        old = [fid.make_v1(1, user), *(fid.make_v1(2, each) for each in items)]
        instance.fid.extend(fid.as_unsigned(each) for each in old)
        instance.feature.add(name="price").float_value.append(price)
        for feature in (example.named_feature.add(name="slot_1").feature, columns["slot_1"].feature.add()):
            feature.fid_v2_list.value.append(fid.make_v2(1, user))
        for feature in (example.named_feature.add(name="slot_2").feature, columns["slot_2"].feature.add()):
            feature.fid_v2_list.value.extend(fid.make_v2(2, item) for item in items)
        for feature in (example.named_feature.add(name="price").feature, columns["price"].feature.add()):
            feature.float_list.value.append(price)
        instances.append(instance)
        examples.append(example)
    forms = {"instances": instances, "examples": examples, "example_batch": [batch]}
    return {
        name: [base64.b64encode(each.SerializeToString()).decode() for each in rows] for name, rows in forms.items()
    }


def check(found: dict[str, Scores], expected: Scores) -> None:
    assert set(found) == {"instances", "examples", "example_batch"}
    for scores in found.values():
        assert set(scores) <= set(expected)
        for name, each in scores.items():
            np.testing.assert_allclose(each, expected[name], atol=1e-6, rtol=0)


def test_the_recorded_conversation_is_that_of_the_stock_client(stock: Ask) -> None:
    found = stock("record")
    if os.environ.get("RECORD"):
        RECORDED.write_text("[\n" + ",\n".join(json.dumps(each, sort_keys=True) for each in found) + "\n]\n")
    assert found == json.loads(RECORDED.read_text())


def test_the_stock_client_gets_the_scores_of_training_in_every_form(
    stock: Ask, address: str, trained: tuple[Path, Scores]
) -> None:
    check(stock("score", address=address, model="clicks", records=records()), trained[1])


def test_a_server_beside_tensorflow_in_one_process_gives_the_same_scores(
    stock: Ask, trained: tuple[Path, Scores]
) -> None:
    check(stock("score_here", folder=str(trained[0]), model="clicks", records=records()), trained[1])


def test_the_stock_client_learns_what_is_served_and_why_the_rest_is_not(stock: Ask, address: str) -> None:
    found = stock("describe", address=address, model="clicks")
    assert found["GetModelStatus"]["answer"] == {
        "model_version_status": [{"version": "3", "state": "AVAILABLE", "status": {}}]
    }
    metadata = found["GetModelMetadata"]["answer"]
    assert metadata["model_spec"] == {"name": "clicks", "version": "3"}
    inputs = metadata["signature_def"]["serving_default"]["inputs"]
    assert {inputs[name]["dtype"] for name in ("instances", "examples", "example_batch")} == {"DT_STRING"}
    for method in ("Classify", "Regress", "MultiInference"):
        assert found[method]["code"] == "UNIMPLEMENTED"
        assert "Predict" in found[method]["says"]


def test_the_stock_client_changes_the_models(stock: Ask, address: str, trained: tuple[Path, Scores]) -> None:
    config = 'model_config_list {{ {} config {{ name: "clicks" base_path: "{}" }} }}'
    second = f'config {{ name: "again" base_path: "{trained[0]}" }}'
    assert stock("reload", address=address, text=config.format(second, trained[0]))["code"] == "OK"
    check(stock("score", address=address, model="again", records=records()), trained[1])
    assert stock("reload", address=address, text=config.format("", trained[0]))["code"] == "OK"
    deadline = Deadline(SystemClock(), 60)
    while (status := stock("describe", address=address, model="again")["GetModelStatus"])["code"] == "OK":
        assert not deadline.is_past  # its version is leaving
    assert status["code"] == "NOT_FOUND"
    refused = stock("reload", address=address, text='model_config_list { config { name: "x" } }')
    assert refused["code"] == "INVALID_ARGUMENT"
    assert "base_path" in refused["says"]
    check(stock("score", address=address, model="clicks", records=records()), trained[1])


def test_it_does_not_matter_who_is_imported_first(tensorflow_python: str, beside: dict[str, str]) -> None:
    code = """
from monolith.data.records import messages as ours
from monolith.serving.api import messages
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2

theirs = predict_pb2.PredictRequest()
theirs.inputs["x"].CopyFrom(tf.make_tensor_proto([1.0, 2.0]))
read = messages.PredictRequest.FromString(theirs.SerializeToString())
assert read.inputs["x"].tensor_shape.dim[0].size == 2
assert type(read) is not type(theirs)
row = tf.train.Example(features=tf.train.Features(feature={"a": tf.train.Feature()}))
assert ours.TfExample.FromString(row.SerializeToString()).features.feature.keys() == {"a"}
"""
    done = subprocess.run([tensorflow_python, "-c", code], env=beside, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
