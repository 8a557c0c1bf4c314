"""``Loop``: the real-time loop on one machine, as processes: event log, joiner, trainer, parameter servers, servers.

Requests go to the live server. It logs the scored impressions, the joiner pairs them with actions, the trainer learns
from the rows and publishes, and the live server follows. A second server, ``batch``, looks for a publish only once per
batch interval. Every process is a ``monolith`` command; ports are chosen once, so a restarted process has its address.

One thread uses a loop.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from monolith.core.clock import Clock, Deadline, SystemClock
from monolith.core.errors import ClusterError, ConfigError, ServingError
from monolith.core.free_ports import free_ports
from monolith.core.stop_signals import held_signals
from monolith.data.sources.urls import open_sink
from monolith.demo.pages import Page, read_page
from monolith.demo.process import DemoProcess
from monolith.serving import Client

__all__ = ["MODEL", "Loop", "LoopSettings", "Progress"]

Progress = Callable[[str], None]
"""Receives one line for the user."""

MODEL = "clicks"
"""Name of the served model."""

IMPRESSIONS, ACTIONS, EXAMPLES = "impressions", "actions", "examples"
"""Topics of the loop."""

_SERVERS = 2  # parameter servers
_START_TIMEOUT_S = 180.0
_POLL_S = 0.05
_WINDOW_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Settings of a loop."""

    folder: Path
    """Folder of one run: event log, join state, model, publishes and logs of processes."""
    models: Path | None = None
    """Folder that keeps the first export for later runs; None = in ``folder``."""
    publish_s: float = 1.0
    """Seconds between publishes."""
    batch_s: float = 20.0
    """Seconds between the updates of the batch server."""
    commit_ms: int = 50
    """Longest time between an event and its commit in the joiner."""
    batch_rows: int = 128
    """Rows of a training step."""
    checkpoint_s: float = 30.0
    """Seconds between checkpoints."""
    task: str = "monolith.demo.ranker.Ranker"
    """The model that is trained."""
    export: Path | None = None
    """Export of that model that the servers begin with; None = an export of an untrained ``Ranker``."""
    kafka: str | None = None
    """Brokers as ``host:port,...`` in place of the event log."""
    zookeeper: str | None = None
    """ZooKeeper servers as ``host:port,...`` for the discovery of the training job, in place of files."""
    prefix: str = ""
    """Prefix of topic and job names, unique per run on shared Kafka or ZooKeeper."""

    def __post_init__(self) -> None:
        for name in ("publish_s", "batch_s", "checkpoint_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}, expected seconds above 0")

    def url(self, topic: str) -> str:
        """Return the URL of a topic."""
        if self.kafka is not None:
            return f"kafka://{self.kafka}/{self.prefix}{topic}"
        return f"log://{self.folder.resolve()}/events/{self.prefix}{topic}"


@dataclass(frozen=True, slots=True)
class _Ports:
    """Ports of the processes, all on this machine."""

    trainer: int
    joiner: int
    live: int
    live_rest: int
    batch: int
    batch_rest: int
    dashboard: int
    ps: tuple[int, ...]
    ps_metrics: tuple[int, ...]

    @classmethod
    def choose(cls) -> _Ports:
        """Return free ports."""
        trainer, joiner, live, live_rest, batch, batch_rest, dashboard, *rest = free_ports(7 + 2 * _SERVERS)
        ps, ps_metrics = tuple(rest[:_SERVERS]), tuple(rest[_SERVERS:])
        return cls(trainer, joiner, live, live_rest, batch, batch_rest, dashboard, ps, ps_metrics)


class Loop:
    """All processes of the loop; entering the block starts them, leaving it ends them.

    Args:
        settings: The settings.
        progress: Receives a line for each step of the start.
        clock: Measures timeouts.
    """

    def __init__(
        self, settings: LoopSettings, progress: Progress = lambda line: None, clock: Clock | None = None
    ) -> None:
        self.settings = settings
        self.processes: dict[str, DemoProcess] = {}
        """Running processes by name."""
        self._progress = progress
        self._clock = clock or SystemClock()
        self._ports = _Ports.choose()
        self._logs = settings.folder / "logs"

    # --- addresses ----------------------------------------------------------------------------------------------------

    @property
    def live_address(self) -> str:
        """Address of the server that follows every publish, for gRPC."""
        return _local(self._ports.live)

    @property
    def live_rest_address(self) -> str:
        """Address of the same server, for REST."""
        return _local(self._ports.live_rest)

    @property
    def batch_address(self) -> str:
        """Address of the server that updates once per batch interval, for gRPC."""
        return _local(self._ports.batch)

    @property
    def dashboard_url(self) -> str:
        """Address of the dashboard, if it runs."""
        return f"http://{_local(self._ports.dashboard)}/"

    def page(self, name: str) -> Page | None:
        """Return the metrics page of a process by its name in ``targets``; None if the process does not answer."""
        return read_page(self.targets[name])

    @property
    def targets(self) -> dict[str, str]:
        """Metrics pages by the name of their process."""
        ports = self._ports
        pages = {"live": ports.live_rest, "batch": ports.batch_rest, "trainer": ports.trainer, "joiner": ports.joiner}
        pages |= {f"ps-{index}": port for index, port in enumerate(ports.ps_metrics)}
        return {name: _local(port) for name, port in pages.items()}

    # --- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes: the trainer first, since it needs the parameter servers for its last checkpoint."""
        with ExitStack() as ends:  # ends every process, also after an error or a second Ctrl-C
            for process in self.processes.values():
                ends.callback(process.end)
            if (trainer := self.processes.get("trainer")) is not None:
                trainer.end()
            for process in self.processes.values():
                process.terminate()

    def check(self) -> None:
        """Check that every process runs.

        Raises:
            ClusterError: A process has ended; the text has its last lines.
        """
        for process in self.processes.values():
            process.check()

    def start_dashboard(self, extra_targets: dict[str, str] | None = None) -> None:
        """Start the dashboard of all processes, before or after them."""
        targets = ",".join(f"{name}={address}" for name, address in ({**self.targets, **(extra_targets or {})}).items())
        servers = ",".join(_local(port) for port in self._ports.ps)
        options = ["--targets", targets, "--server", self.live_rest_address, "--ps", servers]
        self._start_process("dashboard", ["dashboard", *options, "--port", self._ports.dashboard])

    def _start(self) -> None:
        for topic in (IMPRESSIONS, ACTIONS, EXAMPLES, f"{EXAMPLES}.dead"):
            self._create_topic(topic)
        for index in range(_SERVERS):
            self._start_process(f"ps-{index}", self._train_command("ps", index))
        self._start_process("trainer", self._train_command("worker", 0))
        self._start_process("joiner", self._join_command())
        self._progress("waiting for the first export of the model")
        export = self._first_export()
        live = [*self._serve_command(export, self._ports.live, self._ports.live_rest), "--sync-poll-s", 0.02]
        self._start_process("live", [*live, "--log-requests", self.settings.url(IMPRESSIONS)])
        batch = self._serve_command(export, self._ports.batch, self._ports.batch_rest)
        self._start_process("batch", [*batch, "--sync-poll-s", self.settings.batch_s])
        for index in range(_SERVERS):
            self.wait_for(f"parameter server {index}", partial(self.page, f"ps-{index}"))
        self.wait_for("the joiner", lambda: self.page("joiner"))
        self.wait_for("the trainer to publish its first cut", self._has_published)
        for name, address in (("live", self.live_address), ("batch", self.batch_address)):
            self.wait_for(f"the {name} server", partial(_is_served, address))
        self.wait_for("the live server to apply a cut", lambda: self._metric("live", "monolith_sync_cut"))

    def wait_for(self, event: str, is_done: Callable[[], Any], timeout_s: float = _START_TIMEOUT_S) -> Any:
        """Wait for a true value and return it; report the event that the loop waits for.

        Raises:
            ClusterError: A process has ended, or the timeout has passed.
        """
        value = is_done()
        if not value:
            self._progress(f"waiting for {event}")
        deadline = Deadline(self._clock, timeout_s)
        while not value:
            self.check()
            if deadline.is_past:
                raise ClusterError(f"waited {timeout_s:.0f} s for {event}; see the logs in '{self._logs}'")
            self._clock.sleep_s(_POLL_S)
            value = is_done()
        return value

    def _metric(self, process: str, name: str) -> float:
        page = self.page(process)
        return 0.0 if page is None else page.newest(name) or 0.0

    def _has_published(self) -> bool:
        return (self.settings.folder / "published" / "cut.json").exists()

    # --- commands -----------------------------------------------------------------------------------------------------

    def _start_process(self, name: str, arguments: Sequence[object]) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        with held_signals():  # a signal now would lose the process before ``close`` knows it
            self.processes[name] = DemoProcess(name, arguments, self._logs)

    def _create_topic(self, topic: str) -> None:
        if self.settings.kafka is None:
            open_sink(self.settings.url(topic)).close()
            return
        from monolith.data.sources.kafka.topics import create_topic

        create_topic(self.settings.kafka, f"{self.settings.prefix}{topic}")

    def _train_command(self, role: str, index: int) -> list[object]:
        settings, ports = self.settings, self._ports
        command: list[object] = ["train", "--task", settings.task, "--record", "example"]
        command += ["--data", f"{settings.url(EXAMPLES)}?group=trainer", "--batch-size", settings.batch_rows]
        command += ["--model-dir", settings.folder / "model", "--save-checkpoints-secs", settings.checkpoint_s]
        command += ["--publish-dir", settings.folder / "published", "--publish-interval-s", settings.publish_s]
        command += ["--server-type", role, "--index", index, "--num-ps", _SERVERS, "--num-workers", 1]
        command += [
            "--threads",
            1,
            "--log-step-count-steps",
            100,
            "--no-progressive-validation",
            "--dense-learning-rate",
            0.005,
        ]
        if settings.zookeeper is None:
            command += ["--discovery-type", "file", "--discovery-folder", settings.folder / "cluster"]
        else:
            command += ["--discovery-type", "zookeeper", "--zk-server", settings.zookeeper]
            command += ["--uuid", f"{settings.prefix}demo"]
        if role == "ps":
            return [*command, "--bind-port", ports.ps[index], "--ps-metrics-port", ports.ps_metrics[index]]
        return [*command, "--metrics-port", ports.trainer]

    def _join_command(self) -> list[object]:
        settings = self.settings
        command: list[object] = ["join", "--input", settings.url(IMPRESSIONS), "--input", settings.url(ACTIONS)]
        command += ["--output", settings.url(EXAMPLES), "--state", settings.folder / "join", "--mode", "fast"]
        command += ["--tasks", "click:1", "--window-s", _WINDOW_S, "--commit-ms", settings.commit_ms]
        return [*command, "--snapshot-s", 10, "--metrics-port", self._ports.joiner]

    def _serve_command(self, export: Path, port: int, rest_port: int) -> list[object]:
        command: list[object] = ["serve", export, "--name", MODEL, "--sync-from", self.settings.folder / "published"]
        return [*command, "--port", port, "--rest-port", rest_port, "--version-poll-s", 0, "--json"]

    # --- first export -------------------------------------------------------------------------------------------------

    def _first_export(self) -> Path:
        """Return the export of the untrained model, kept for later runs while the model stays the same."""
        if self.settings.export is not None:
            return self.settings.export
        from monolith import __version__

        source = Path(__file__).with_name("ranker.py").read_text()
        digest = hashlib.sha256(f"{__version__} {source}".encode()).hexdigest()[:16]
        export = (self.settings.models or self.settings.folder) / f"untrained-{digest}"
        if not export.exists():
            from monolith import Estimator, RunConfig
            from monolith.demo.ranker import Ranker
            from monolith.export import export_model

            made = Estimator(Ranker, RunConfig())
            scratch = export.with_name(f"{export.name}.part")
            shutil.rmtree(scratch, ignore_errors=True)
            export_model(made.model, made.store, scratch, name=MODEL, step=0, version=1)
            scratch.rename(export)
        return export


def _is_served(address: str) -> bool:
    try:
        with Client(address, model=MODEL, timeout_s=2.0) as client:
            return any(version.state == "AVAILABLE" for version in client.status())
    except (ClusterError, ServingError):
        return False


def _local(port: int) -> str:
    return f"127.0.0.1:{port}"
