"""A fleet of real agents on one machine: processes of ``monolith agent run``, and a client under steady load."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import monolith as mt
from monolith import models
from monolith.core import fid
from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import ClusterError, MonolithError
from monolith.data.records import messages
from monolith.export import ExportOptions

PATIENCE_S = 180.0
USERS = [3, 5, 3, 9]


def wait_until(
    is_true: Callable[[], object], what: str, patience_s: float = PATIENCE_S, *, pause_s: float = 0.1
) -> float:
    """Wait until a condition holds; return the seconds that it took.

    A look that starts a process deserves a longer pause after it.
    """
    clock = SystemClock()
    begin_s = clock.monotonic_s()
    deadline = Deadline(clock, patience_s)
    while True:
        try:
            if is_true():
                return clock.monotonic_s() - begin_s
        except ClusterError:
            pass  # ZooKeeper or a server is away
        assert not deadline.is_past, f"never became true: {what}"
        clock.sleep_s(pause_s)


def batch() -> mt.Batch:
    return mt.Batch.from_arrays(
        ids={"slot_1": [[fid.make_v2(1, user)] for user in USERS]}, label=np.arange(len(USERS))[:, None] % 2
    )


def as_example_batch() -> bytes:
    message = messages.ExampleBatch(batch_size=len(USERS))
    column = message.named_feature_list.add(name="slot_1")
    for user in USERS:
        column.feature.add().fid_v2_list.value.append(fid.make_v2(1, user))
    return message.SerializeToString()


class Trainer:
    """Trains a small model and exports versions of it: entry and shards."""

    def __init__(self, folder: Path, *, shards: int = 2) -> None:
        self.folder = folder / "exported_models"
        self._shards = shards
        model = models.build("deepfm", {"sparse": ["slot_1"], "dim": 4, "vec_compressor": mt.Fp32()})
        self._estimator = mt.Estimator(model)

    def export(self, version: int) -> np.ndarray:
        """Train some steps, export a version, and return the scores that it must give."""
        self._estimator.train([batch()] * 5)
        options = ExportOptions(layout="distributed", shards=self._shards)
        self._estimator.export(self.folder, version=version, options=options)
        scores = next(iter(self._estimator.predict([batch()])))
        return np.asarray(next(iter(scores.values()))).reshape(-1)


class AgentProcess:
    """One ``monolith agent run``."""

    def __init__(self, folder: Path, name: str, conf: str, variables: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self._conf = self.folder / "agent.conf"
        self._conf.write_text(conf)
        self._variables = {"MY_HOST_IP": "127.0.0.1", "MY_POD_NAME": name, **variables}
        self._process: subprocess.Popen[bytes] | None = None
        self.ports: dict[str, Any] = {}

    def start(self) -> None:
        """Start the agent and wait until it printed its ports."""
        self._close_output()
        command = [sys.executable, "-m", "monolith", "agent", "run", "--json", "--conf", str(self._conf)]
        command += ["--tfs-log", str(self.folder / "server.log"), "--metrics-port", "0"]
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("MY_", "PORT"))}
        with (self.folder / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, env={**environment, **self._variables}, stdout=subprocess.PIPE, stderr=log
            )

    def wait_started(self) -> None:
        """Wait for the ports that the agent prints."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"agent {self.name} ended:\n{self.log()}"
        self.ports = json.loads(line)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def server_pids(self) -> list[int]:
        """Return the ids of the running servers of this agent."""
        return [pid for pid in child_pids(self.pid) if is_running(pid)]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 60.0) -> int:
        assert self._process is not None
        return self._process.wait(timeout_s)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        texts = [(self.folder / name) for name in ("agent.log", "server.log")]
        return "\n".join(f"--- {path}\n{path.read_text()[-3000:]}" for path in texts if path.exists())

    def close(self) -> None:
        if self._process is not None:
            if self.is_running:
                self.send(signal.SIGCONT)
                self.send(signal.SIGTERM)
                try:
                    self.wait(30)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._close_output()

    def _close_output(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()


def child_pids(pid: int) -> list[int]:
    """Return the ids of the children of a process."""
    found = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(each) for each in tasks.read_text().split()]
    return found


def is_running(pid: int) -> bool:
    """Return True if a process runs; a process that ended and was not waited for does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@dataclass
class Load:
    """Clients that send requests with a short pause between them, and count them."""

    address: str
    model: str
    threads: int = 2
    pause_s: float = 0.008
    sent: int = 0
    failures: list[str] = field(default_factory=list)
    answers: list[tuple[np.ndarray, int]] = field(default_factory=list)
    """Different answers, each with its count."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(self.threads)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self) -> None:
        request = as_example_batch()
        with mt.serving.Client(self.address, model=self.model, timeout_s=30) as client:
            while not self._ended.wait(self.pause_s):
                try:
                    scores = next(iter(client.score(request, "example_batch").values())).reshape(-1)
                except MonolithError as error:
                    with self._lock:
                        self.sent += 1
                        self.failures.append(str(error))
                    continue
                with self._lock:
                    self.sent += 1
                    self._count(scores)

    def _count(self, scores: np.ndarray) -> None:
        for place, (known, count) in enumerate(self.answers):
            if is_same(known, scores):
                self.answers[place] = (known, count + 1)
                return
        self.answers.append((scores.copy(), 1))

    def count_of(self, scores: np.ndarray) -> int:
        """Return the number of answers with these scores."""
        with self._lock:
            return sum(count for known, count in self.answers if is_same(known, scores))


def is_same(left: np.ndarray, right: np.ndarray) -> bool:
    """Return True if two answers are equal up to rounding."""
    return bool(np.allclose(left, right, atol=1e-6, rtol=0))


class Fleet:
    """The agents of one test; also a context manager."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentProcess] = {}
        self._stack = ExitStack()

    def add(self, agent: AgentProcess) -> AgentProcess:
        self.agents[agent.name] = agent
        self._stack.callback(agent.close)
        return agent

    def logs(self) -> str:
        return "\n".join(agent.log() for agent in self.agents.values())

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
