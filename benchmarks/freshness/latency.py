"""The cases about time: from an update on the trainer to the first answer of the server that shows it."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from freshness.results import progress
from freshness.trainer import run_local_trainer, run_worker
from freshness.workload import Sizes, marker_record
from measure.results import Result
from monolith.core.errors import ModelNotReady
from monolith.serving import Client
from monolith.testing.processes.ps_processes import PsProcess
from monolith.training.cluster.model_folder import log_folder, newest_tables

__all__ = ["latency_cases"]

SERVERS = 2
"""Parameter servers of the cases that have any."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How a case is run."""

    interval_s: float
    """From one publish to the next."""
    servers: int
    """Parameter servers; 0 = the trainer has the tables itself."""


FORMS = {
    "update_to_predict_p99_s": _Form(1.0, SERVERS),
    "update_to_predict_p99_s_100ms": _Form(0.1, SERVERS),
    "local_update_to_predict_p99_s": _Form(1.0, 0),
    "local_update_to_predict_p99_s_100ms": _Form(0.1, 0),
}
_PAUSE_S = 0.005
"""Between two requests: what is measured is freshness, not how many requests a server can take."""


def latency_cases(cases: Sequence[str], sizes: Sizes) -> Iterator[Result]:
    """Train in one process, on tables in others, serve in another, and ask from this one."""
    for case in cases:
        progress(case)
        with tempfile.TemporaryDirectory() as folder:
            yield _measured(case, Path(folder), sizes)


def _measured(case: str, folder: Path, sizes: Sizes) -> Result:
    form = FORMS[case]
    ours, theirs = multiprocessing.Pipe()
    spawned = multiprocessing.get_context("spawn")
    run = run_worker if form.servers else run_local_trainer
    trainer = spawned.Process(target=run, args=(folder, sizes, form.interval_s, theirs))
    trainer.start()
    try:
        _expect(ours, trainer, "exported")
        with _parameter_servers(folder, form.servers) as addresses, _server(folder) as client:
            ours.send(addresses)
            _expect(ours, trainer, "training")
            seen, requests = _watch(client, sizes.seconds)
            ours.send("stop")
            made = ours.recv()
            trainer.join(60)
    finally:
        if trainer.is_alive():
            trainer.kill()
    return _result(case, made, seen, requests)


@contextmanager
def _parameter_servers(folder: Path, count: int) -> Iterator[list[str]]:
    """Run the servers of the job; their logs are written once a second by themselves, and at every publish."""
    run = folder / "run"
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                PsProcess(index, count, ["--recover-from", newest_tables(run), "--delta-log", log_folder(run, index)])
            )
            for index in range(count)
        ]
        yield [each.address for each in started]


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
    extra = {
        "p50_s": float(p50),
        "max_s": float(np.max(waits)),
        "publish_interval_s": FORMS[case].interval_s,
        "parameter_servers": FORMS[case].servers,
        "cuts": cuts,
        "requests": requests,
        "steps": len(made),
        "peer_name": "one second, so that the ratio is the figure itself",
    }
    return Result(case=case, ours=float(p99), peer=1.0, ratio=float(p99), unit="s", rounds=len(waits), extra=extra)
