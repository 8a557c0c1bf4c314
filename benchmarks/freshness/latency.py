"""The cases about time: from an update on the trainer to the first answer of the server that shows it."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from freshness.results import progress
from freshness.trainer import run_trainer
from freshness.workload import Sizes, marker_record
from measure.results import Result
from monolith.core.errors import ModelNotReady
from monolith.serving import Client

__all__ = ["latency_cases"]

INTERVALS_S = {"update_to_predict_p99_s": 1.0, "update_to_predict_p99_s_100ms": 0.1}
_PAUSE_S = 0.005
"""Between two requests: what is measured is freshness, not how many requests a server can take."""


def latency_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Train and publish in one process, serve in a second, ask from this one."""
    for case in cases:
        progress(case)
        with tempfile.TemporaryDirectory() as folder:
            yield _measured(case, Path(folder), sizes)


def _measured(case: str, folder: Path, sizes: Sizes) -> Result:
    ours, theirs = multiprocessing.Pipe()
    spawned = multiprocessing.get_context("spawn")
    trainer = spawned.Process(target=run_trainer, args=(folder, sizes, INTERVALS_S[case], theirs))
    trainer.start()
    try:
        _expect(ours, trainer, "exported")
        with _server(folder) as client:
            ours.send("go")
            _expect(ours, trainer, "training")
            seen, requests = _watch(client, sizes.seconds)
            ours.send("stop")
            made = ours.recv()
    finally:
        trainer.join(60)
        if trainer.is_alive():
            trainer.kill()
    return _result(case, made, seen, requests)


def _expect(pipe: Any, trainer: Any, word: str) -> None:
    while not pipe.poll(1.0):
        if not trainer.is_alive():
            raise RuntimeError(f"the trainer ended with {trainer.exitcode} before it was {word}")
    said = pipe.recv()
    if said != word:
        raise RuntimeError(f"the trainer says {said!r} instead of {word!r}")


@contextmanager
def _server(folder: Path) -> Iterator[Client]:
    program = "from monolith.cli.main import main; main()"
    arguments = ["serve", str(folder / "exports"), "--name", "ranker", "--sync-from", str(folder / "published")]
    ports = ["--port", "0", "--rest-port", "-1", "--json"]
    server = subprocess.Popen(
        [sys.executable, "-c", program, "--log-level", "WARNING", *arguments, *ports], stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        said = json.loads(server.stdout.readline())
        with Client(said["address"], model="ranker") as client:
            while True:
                try:
                    client.score(marker_record())
                    break
                except ModelNotReady:
                    time.sleep(0.05)
            yield client
    finally:
        server.terminate()
        server.wait(30)


def _watch(client: Client, seconds: float) -> tuple[list[tuple[float, int]], int]:
    """Ask for the marker again and again; return when each new count was first seen, and how often it was asked."""
    record = marker_record()
    seen: list[tuple[float, int]] = []
    requests = count = 0
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        found = round(float(client.score(record, signature="marker")["marker"][0]))
        now = time.monotonic()
        requests += 1
        if found > count:
            count = found
            seen.append((now, count))
        time.sleep(_PAUSE_S)
    return seen, requests


def _result(case: str, made: Any, seen: list[tuple[float, int]], requests: int) -> Result:
    """How long each update took: update k is visible when the marker shows k or more."""
    waits: list[float] = []
    before = seen[0][1]  # what came with the first cut had to wait for the server, too
    for at, count in seen[1:]:
        waits += (at - made[before:count]).tolist()
        before = count
    p50, p99 = np.percentile(waits, [50, 99])
    cuts = len(seen) - 1
    interval_s = INTERVALS_S[case]
    extra = {
        "p50_s": float(p50),
        "max_s": float(np.max(waits)),
        "publish_interval_s": interval_s,
        "cuts": cuts,
        "requests": requests,
        "steps": len(made),
        "peer_name": "one second, so that the ratio is the figure itself",
    }
    return Result(case=case, ours=float(p99), peer=1.0, ratio=float(p99), unit="s", rounds=len(waits), extra=extra)
