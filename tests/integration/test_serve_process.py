"""A model is trained, exported and served by a process of its own, which scores as training does; and ends well."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith import models
from monolith.core import fid
from monolith.core.errors import InvalidRequest, ModelNotReady
from monolith.data.records import messages
from monolith.export import ExportOptions
from monolith.testing.eventually import eventually

COMMAND = [sys.executable, "-c", "from monolith.cli.main import main; main()", "serve"]
USERS, ITEMS, PRICES = [3, 5, 3, 9], [[4], [6, 7], [], [4, 4]], [1.5, 0.0, -2.0, 100.0]


class Process:
    """``monolith serve``; there once it has said where."""

    def __init__(self, *arguments: str) -> None:
        self.child = subprocess.Popen(
            [*COMMAND, "--json", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(self.child.communicate()[1])
        self.said: dict[str, Any] = json.loads(line)

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.child.send_signal(number)
        _, errors = self.child.communicate(timeout=120)
        return self.child.returncode, errors

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        if self.child.returncode is None:
            self.child.kill()
            self.child.communicate()


def batch(users: list[int], items: list[list[int]], prices: list[float]) -> mt.Batch:
    return mt.Batch.from_arrays(
        ids={
            "slot_1": [[fid.make_v2(1, user)] for user in users],
            "slot_2": [[fid.make_v2(2, item) for item in row] for row in items],
        },
        dense={"price": np.array(prices, np.float32)[:, None]},
        label=np.arange(len(users))[:, None] % 2,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Where the model's versions are, in ``whole`` and in ``parts``, and the scores of the four rows."""
    folder = tmp_path_factory.mktemp("exported")
    model = models.build(
        "deepfm", {"sparse": ["slot_1", "slot_2"], "dense": ["price"], "dim": 4, "vec_compressor": mt.Fp32()}
    )
    estimator = mt.Estimator(model)
    estimator.train([batch(USERS, ITEMS, PRICES)] * 5)
    estimator.export(folder / "whole", version=1)
    estimator.export(folder / "parts", version=1, options=ExportOptions(layout="distributed", shards=2))
    return folder, next(iter(estimator.predict([batch(USERS, ITEMS, PRICES)])))


def as_examples() -> list[bytes]:
    found = []
    for user, items, price in zip(USERS, ITEMS, PRICES, strict=True):
        row = messages.Example()
        row.named_feature.add(name="slot_1").feature.fid_v2_list.value.append(fid.make_v2(1, user))
        row.named_feature.add(name="slot_2").feature.fid_v2_list.value.extend(fid.make_v2(2, item) for item in items)
        row.named_feature.add(name="price").feature.float_list.value.append(price)
        found.append(row.SerializeToString())
    return found


def as_instances() -> list[bytes]:
    found = []
    for user, items, price in zip(USERS, ITEMS, PRICES, strict=True):
        row = messages.Instance()
        row.fid.extend(
            [fid.as_unsigned(fid.make_v1(1, user)), *(fid.as_unsigned(fid.make_v1(2, each)) for each in items)]
        )
        row.feature.add(name="price").float_value.append(price)
        found.append(row.SerializeToString())
    return found


def as_example_batch() -> bytes:
    made = messages.ExampleBatch(batch_size=len(USERS))
    columns = {name: made.named_feature_list.add(name=name) for name in ("slot_1", "slot_2", "price")}
    for user, items, price in zip(USERS, ITEMS, PRICES, strict=True):
        columns["slot_1"].feature.add().fid_v2_list.value.append(fid.make_v2(1, user))
        columns["slot_2"].feature.add().fid_v2_list.value.extend(fid.make_v2(2, item) for item in items)
        columns["price"].feature.add().float_list.value.append(price)
    return made.SerializeToString()


def wait_until_available(client: mt.serving.Client) -> None:
    eventually(lambda: client.status()[0].state == "AVAILABLE")


def test_a_served_model_scores_as_in_training_over_both_apis_and_in_every_form(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, expected = trained
    # Started as an agent starts tensorflow_model_server.
    with Process(
        "--port=0",
        "--rest_port=0",
        "--model_name=clicks",
        f"--model_base_path={folder / 'whole'}",
        "--file_system_poll_wait_seconds=1",
        "--enable_batching=true",
        "--tensorflow_session_parallelism=2",
    ) as process:
        by_name = {"slot_1": USERS, "slot_2": ITEMS, "price": PRICES}
        with mt.serving.Client(process.said["address"], model="clicks", timeout_s=60) as client:
            wait_until_available(client)
        for address in (process.said["address"], f"http://{process.said['rest_address']}"):
            with mt.serving.Client(address, model="clicks", timeout_s=60) as client:
                answers = [
                    client.score(as_examples(), "examples"),
                    client.score(as_instances(), "instances"),
                    client.score(as_example_batch(), "example_batch"),
                ]
                if client.transport == "rest":  # rows of different lengths are no tensor
                    answers.append(client.predict({"slot_1": [[user] for user in USERS], "price": PRICES}))
                for answer in answers[:3]:
                    for name in client.metadata()["serving_default"]["outputs"]:
                        np.testing.assert_allclose(
                            answer[name].reshape(-1), np.asarray(expected[name]).reshape(-1), atol=1e-6, rtol=0
                        )
                with pytest.raises(InvalidRequest):
                    client.score([b"\xff"], "examples")
        body = json.dumps({"inputs": by_name}).encode()
        found = _post(f"http://{process.said['rest_address']}/v1/models/clicks:predict", body)["outputs"]
        (only,) = [found] if isinstance(found, list) else found.values()
        np.testing.assert_allclose(
            np.reshape(only, -1), np.asarray(next(iter(expected.values()))).reshape(-1), atol=1e-6, rtol=0
        )
        status, errors = process.end(signal.SIGTERM)
    assert status == 0, errors
    assert "--tensorflow_session_parallelism" in errors
    assert "Traceback" not in errors
    assert "model server stopped" in errors


def test_an_entry_finds_the_servers_of_its_tables_and_survives_one_that_is_killed(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, expected = trained
    found = ("--port=0", "--rest-port=-1", "--discovery=file", f"--discovery-folder={tmp_path}")
    with ExitStack() as stack:

        def start(part: str, *more: str) -> Process:
            arguments = (str(folder / "parts" / part), f"--name={part}", *found, *more)
            return stack.enter_context(Process(*arguments))

        start("ps_0", "--replica=0")
        replicas = [start("ps_1", f"--replica={index}") for index in range(2)]
        entry = start("entry", "--remote-timeout-ms=60000")
        client = stack.enter_context(mt.serving.Client(entry.said["address"], model="entry", timeout_s=60))
        wait_until_available(client)

        def check() -> None:
            for name, scores in client.score(as_example_batch(), "example_batch").items():
                np.testing.assert_allclose(
                    scores.reshape(-1), np.asarray(expected[name]).reshape(-1), atol=1e-6, rtol=0
                )

        check()
        replicas[0].end(signal.SIGKILL)  # its registration stays behind
        for _ in range(4):
            check()
        status, errors = replicas[1].end(signal.SIGTERM)
        assert status == 0, errors
        with pytest.raises(ModelNotReady, match="ps_1"):
            client.score(as_example_batch(), "example_batch")
        status, errors = entry.end(signal.SIGTERM)
    assert status == 0, errors
    assert "Traceback" not in errors


def _post(url: str, body: bytes) -> Any:
    with urllib.request.urlopen(url, body, timeout=60) as answer:
        return json.loads(answer.read())
