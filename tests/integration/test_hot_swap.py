"""Versions of a model are swapped while clients ask: nobody fails, and old versions leave answers and memory."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith import models
from monolith.core import fid
from monolith.data.records.messages import ExampleBatch
from monolith.testing.eventually import eventually
from monolith.testing.suites.growth import usage_of

COMMAND = [sys.executable, "-c", "from monolith.cli.main import main; main()", "serve"]
USERS = list(range(8))
VERSIONS = 6
# What a version holds must stand out of what a process breathes: 40,000 rows of 64 numbers are 10 MB and more.
ROWS, DIM = 40_000, 64
Scores = tuple[float, ...]


def batch(users: range | list[int]) -> mt.Batch:
    return mt.Batch.from_arrays(
        ids={"slot_1": [[fid.make_v2(1, user)] for user in users]},
        dense={"price": np.ones((len(users), 1), np.float32)},
        label=(np.arange(len(users))[:, None] % 2).astype(np.float32),
    )


def records() -> bytes:
    made = ExampleBatch(batch_size=len(USERS))
    columns = {name: made.named_feature_list.add(name=name) for name in ("slot_1", "price")}
    for user in USERS:
        columns["slot_1"].feature.add().fid_v2_list.value.append(fid.make_v2(1, user))
        columns["price"].feature.add().float_list.value.append(1.0)
    content: bytes = made.SerializeToString()
    return content


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two versions of a model that goes on to learn; they score the same rows differently."""
    folder: Path = tmp_path_factory.mktemp("versions")
    options = {"sparse": ["slot_1"], "dense": ["price"], "dim": DIM, "vec_compressor": mt.Fp32()}
    estimator = mt.Estimator(models.build("deepfm", options))
    estimator.train([batch(range(start, start + 20_000)) for start in range(0, ROWS, 20_000)])
    for version in (1, 2):
        estimator.train([batch(USERS)])
        estimator.export(folder, version=version)
    return folder


def until(is_done: Callable[[], bool], failures: list[BaseException]) -> None:
    eventually(lambda: bool(failures) or is_done())
    assert not failures


class Asking(threading.Thread):
    """Asks for the same rows again and again, and notes who answered what."""

    def __init__(self, address: str, failures: list[BaseException]) -> None:
        super().__init__(daemon=True)
        self.seen: Counter[Scores] = Counter()
        self._client = mt.serving.Client(address, model="m", timeout_s=120)
        self._failures = failures
        self._ended = threading.Event()

    def run(self) -> None:
        content = records()
        try:
            with self._client as client:
                while not self._ended.is_set():
                    self.seen[scores_of(client, content)] += 1
        except BaseException as error:
            self._failures.append(error)

    def end(self) -> None:
        self._ended.set()
        self.join(120)


def scores_of(client: mt.serving.Client, content: bytes) -> Scores:
    (scores,) = client.score(content, "example_batch").values()
    return tuple(float(each) for each in scores.reshape(-1))


def test_versions_are_swapped_under_load_without_a_failed_or_a_mixed_answer(versions: Path, tmp_path: Path) -> None:
    served, content = tmp_path / "m", records()
    served.mkdir()

    def bring(version: int) -> None:  # the two take turns
        shutil.copytree(versions / str(2 - version % 2), tmp_path / "coming")
        (tmp_path / "coming").rename(served / str(version))

    bring(1)
    arguments = [str(served), "--name=m", "--port=0", "--rest-port=0", "--json", "--version-poll-s=0.05"]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            said: dict[str, Any] = json.loads(process.stdout.readline())
            failures: list[BaseException] = []
            with mt.serving.Client(said["address"], model="m", timeout_s=120) as client:

                def states() -> dict[int, str]:
                    found = client.status()
                    assert [each.error for each in found if each.error] == []
                    return {each.version: each.state for each in found}

                until(lambda: states() == {1: "AVAILABLE"}, failures)
                expected = {1: scores_of(client, content)}
                asking = [Asking(said["address"], failures), Asking(f"http://{said['rest_address']}", failures)]
                for thread in asking:
                    thread.start()
                rss = []
                for version in range(2, VERSIONS + 1):
                    bring(version)
                    # The newest answers, the others have ended, and both clients have heard of it.
                    until(lambda: states().get(version) == "AVAILABLE", failures)  # noqa: B023
                    until(lambda: set(states().values()) <= {"AVAILABLE", "END"}, failures)
                    until(lambda: list(states().values()).count("AVAILABLE") == 1, failures)
                    expected[version] = scores_of(client, content)
                    before = [thread.seen[expected[version]] for thread in asking]
                    until(
                        lambda: all(
                            thread.seen[expected[version]] > count  # noqa: B023
                            for thread, count in zip(asking, before, strict=True)  # noqa: B023
                        ),
                        failures,
                    )
                    usage = usage_of(process.pid)
                    assert usage is not None
                    rss.append(usage.rss_bytes)
                for thread in asking:
                    thread.end()
            assert not failures
            assert len(set(expected.values())) == 2
            for thread in asking:
                assert set(thread.seen) == set(expected.values())
            # Five versions have come and four have gone meanwhile: less than one of them stays behind.
            size = sum(file.stat().st_size for file in (versions / "1").rglob("*") if file.is_file())
            assert size > ROWS * DIM * 4
            assert rss[-1] - rss[0] < size
        finally:
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert b"Traceback" not in errors
