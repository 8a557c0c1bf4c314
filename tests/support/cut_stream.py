"""A trainer, parameter servers and a model server as processes, asked without pause while one after the other dies."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import cut_stream_child as child
import monolith as mt
from commands import Command, Shell, wait_until
from job_processes import JobProcesses
from monolith.artifacts.delta_log import read_cut
from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import MonolithError
from monolith.export import export_model
from monolith.serving import Client
from monolith.testing.suites.cut_history import Answer, Applied, CutViolation, NotedCut, violations

__all__ = ["PROCESSES", "CutStream"]

PROCESSES = ("chief", "ps 0", "ps 1", "server")
SOON_S = 300.0
_ASKS_PER_METRIC = 20
_PAUSE_S = 0.002


class _Asker(threading.Thread):
    """Asks one process of the model server again and again, until it is told to stop or nobody answers."""

    def __init__(self, number: int, address: str, rest: str) -> None:
        super().__init__(daemon=True)
        self.answers: list[Answer] = []
        self.applied: list[Applied] = []
        self.error: BaseException | None = None
        self._number = number
        self._client = Client(address, model="together", timeout_s=SOON_S)
        self._rest = rest
        self._requests = child.requests()
        self._ended = threading.Event()

    def wait_until_served(self, command: Command) -> None:
        wait_until(lambda: any(each.state == "AVAILABLE" for each in self._client.status()), command)

    def run(self) -> None:
        try:
            while not self._ended.wait(_PAUSE_S):
                self._ask()
                if len(self.answers) % _ASKS_PER_METRIC == 1:
                    self.applied.append(self._read_applied())
        except (MonolithError, OSError) as error:
            self.error = error

    def close(self) -> None:
        self._ended.set()
        self.join()
        self._client.close()

    def _ask(self) -> None:
        sent_s = time.monotonic()
        found = self._client.score(self._requests, signature="state")["state"]
        state = tuple(found.reshape(-1).tolist())
        self.answers.append(Answer(server=self._number, state=state, sent_s=sent_s, received_s=time.monotonic()))

    def _read_applied(self) -> Applied:
        with urllib.request.urlopen(f"http://{self._rest}/metrics", timeout=SOON_S) as answer:
            lines = answer.read().decode().splitlines()
        (found,) = [line for line in lines if line.startswith("monolith_sync_cut{")]
        return Applied(server=self._number, number=int(float(found.rpartition(" ")[2])), received_s=time.monotonic())


class CutStream:
    """The processes, and what was published and answered so far. All are started when the ``with`` block begins.

    Args:
        folder: Where they run.
    """

    def __init__(self, folder: Path, *, limit_s: float) -> None:
        self._folder = folder
        self._notes, self._published = folder / "notes", folder / "published"
        for each in (self._notes, folder / "server"):
            each.mkdir()
        self._job = JobProcesses(folder, self._options(), num_ps=2, limit_s=limit_s)
        self._shell = Shell(folder / "server")
        self._server: Command | None = None
        self._askers: list[_Asker] = []

    def _options(self) -> list[object]:
        told = json.dumps({"notes": str(self._notes), "published": str(self._published)})
        return [
            "--task", f"{child.__file__}:Together", "--task-options", told, "--model-dir", self._folder / "run",
            "--dense-optimizer", "sgd", "--dense-learning-rate", 1.0, "--clip-type", "none", "--threads", 1,
            "--save-summary-steps", 0, "--log-step-count-steps", 0, "--save-checkpoints-steps", 150,
            "--checkpoints-max-to-keep", 2, "--publish-dir", self._published, "--publish-interval-s", 0.05,
            "--no-partial-recovery", "--discovery-type", "file", "--discovery-folder", self._folder / "cluster",
            "--connect-retries", 600, "--retry-backoff-ms", 100, "--retry-wait-in-secs", 0.1,
            "--discovery-cleanup-timeout-ms", 60_000,
        ]  # fmt: skip

    def __enter__(self) -> Self:
        made = mt.Estimator(child.Together)
        export_model(made.model, made.store, self._folder / "exports", name="together", step=0, version=1)
        self._job.__enter__()
        try:
            self._job.start_all()
            self._start_server()
            self._job.wait_for("chief", "checkpoint saved")  # a server that dies takes all back to one
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for asker in self._askers[-1:]:
            asker.close()
        if self._server is not None:
            _kill(self._server)
        self._job.__exit__(kind, error, trace)

    # --- processes ---

    def hurt(self, name: str) -> None:
        """Kill a process, start it again, and return when the server shows what was published after that."""
        if name == "server":
            assert self._server is not None
            _kill(self._server)
            asker = self._askers[-1]
            asker.join()
            asker.close()
            self._start_server()
        else:
            self._job.kill(name)
            self._job.start(name)
        self.go_on()

    def go_on(self, cuts: int = 3) -> None:
        """Wait until the server shows further cuts."""
        asker, goal = self._askers[-1], self._newest() + cuts
        limit = Deadline(SystemClock(), SOON_S)
        waiting = threading.Event()
        while not asker.applied or asker.applied[-1].number < goal:
            assert asker.is_alive(), f"nobody answers: {asker.error}\n{self._said()}"
            assert not limit.is_past, f"the server is at {asker.applied[-1:]} and not at cut {goal}\n{self._said()}"
            waiting.wait(0.02)

    def finish(self) -> None:
        """Let the trainer end well, and wait until the server has answered with its last cut."""
        self._job.signal("chief", signal.SIGTERM)
        status = self._job.end("chief")
        assert status == 0, self._said()
        self.go_on(0)
        asker = self._askers[-1]
        seen = len(asker.answers)
        while len(asker.answers) < seen + 2:  # the next one may have been asked for before
            assert asker.is_alive(), f"nobody answers: {asker.error}\n{self._said()}"
        asker.close()
        assert asker.error is None

    def _start_server(self) -> None:
        command = self._shell.start(
            *("serve", self._folder / "exports", "--name", "together", "--sync-from", self._published),
            *("--port", 0, "--rest-port", 0, "--sync-poll-s", 0.005, "--json"),
        )
        self._server = command
        wait_until(lambda: command.out.exists() and command.out.read_text().endswith("}\n"), command)
        said = json.loads(command.out.read_text())
        asker = _Asker(len(self._askers), said["address"], said["rest_address"])
        asker.wait_until_served(command)
        self._askers.append(asker)
        asker.start()

    def _said(self) -> str:
        assert self._server is not None
        return f"--- server\n{self._server.err.read_text()}\n{self._job.logs()}"

    # --- what happened ---

    @property
    def servers(self) -> int:
        """Processes that served, one after the other."""
        return len(self._askers)

    @property
    def answers(self) -> list[Answer]:
        """All that was answered so far."""
        return [answer for asker in self._askers for answer in asker.answers]

    def cuts(self) -> list[NotedCut]:
        """What was exported, and all that was published so far."""
        found = [NotedCut(number=0, run="exported", state=_state(0), taken_s=0.0)]
        for number in range(1, self._newest() + 1):
            path = self._notes / f"{number}.json"
            if path.exists():
                note: dict[str, Any] = json.loads(path.read_text())
                found.append(NotedCut(state=_state(note.pop("count")), **note))
        return found

    def violations(self) -> list[CutViolation]:
        """All that is wrong."""
        applied = [one for asker in self._askers for one in asker.applied]
        return violations(self.cuts(), self.answers, applied)

    def _newest(self) -> int:
        cut = read_cut(self._published)
        return 0 if cut is None else cut.number


def _state(count: float) -> tuple[float, ...]:
    return (float(count),) * child.NUMBERS


def _kill(command: Command) -> None:
    assert command.process.pid is not None
    if command.process.is_alive():
        os.kill(command.process.pid, signal.SIGKILL)
    command.process.join()
