"""``RayJob``: runs the processes of a job as actors of a Ray cluster, which places, restarts and watches them.

Every actor runs the role that ``monolith train`` would run. The actors find each other by file discovery, in a folder
that all machines see, under the address of their machine; so a server that restarts elsewhere is found there. Ray
carries settings and results, never rows. This is the only module that imports Ray.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from monolith.artifacts.remote_folder import STAGING_VARIABLE
from monolith.core.config_sections import replace_settings
from monolith.core.errors import ClusterError, ConfigError
from monolith.core.logs import setup_logging
from monolith.core.stop_signals import Endings
from monolith.core.storage import is_url
from monolith.discovery import FileDiscovery
from monolith.discovery.address import split_address
from monolith.training.cluster.config import from_cluster
from monolith.training.cluster.job_config import ClusterJobConfig
from monolith.training.cluster.lifecycle import run_role
from monolith.training.cluster.roles.process import security_of, server_settings
from monolith.training.cluster.roles.server import serve
from monolith.training.staging import stage_model_folder

__all__ = ["RayActor", "RayJob", "RaySettings"]

logger = logging.getLogger(__name__)

_POLL_S = 1.0
_STOP = "the launcher ends the job"


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Placement and restarts of the actors."""

    address: str | None = None
    """The cluster: ``host:port``, ``ray://...``, ``local`` for one in this process; None = the one of this machine."""
    max_restarts: int = 3
    """Restarts of each actor that dies; -1 = without limit."""
    cpus_per_ps: float = 1.0
    """Cores that Ray reserves for a server."""
    cpus_per_worker: float = 1.0
    """Cores that Ray reserves for a worker."""
    gpus_per_worker: float = 0.0
    """GPUs that Ray reserves for a worker."""
    working_dir: str | None = None
    """Folder that Ray copies to all machines, for the actors; None = this folder, which all machines see."""
    start_timeout_s: float = 300.0
    """Timeout of the placement of all actors."""
    grace_s: float = 60.0
    """Timeout of the end of the processes."""
    log_level: str = "INFO"
    """Log level of every actor: DEBUG, INFO, WARNING or ERROR."""

    def __post_init__(self) -> None:
        if self.max_restarts < -1:
            raise ConfigError(f"max_restarts is {self.max_restarts}, expected 0 or more, or -1 for no limit")
        for field in ("cpus_per_ps", "cpus_per_worker", "gpus_per_worker"):
            if getattr(self, field) < 0:
                raise ConfigError(f"{field} is {getattr(self, field)}, expected 0 or more")


class RayActor:
    """One actor, which runs one role of the job. Ray calls ``run`` in one thread, ``stop`` in another.

    Args:
        config: The settings of the job and of this process.
        folder: Working folder; None = that of Ray.
        log_level: Level of its log, which Ray shows at the launcher.
    """

    def __init__(self, config: ClusterJobConfig, folder: str | None, log_level: str) -> None:
        setup_logging(log_level)
        if folder is not None:
            _enter(folder)
        host = _host()
        self._config = replace_settings(config, bind_host=host, advertised_host=host)
        self._ended = threading.Event()
        self._endings: Endings = SimpleQueue()

    def __repr__(self) -> str:
        return _name(self._config)  # Ray's prefix of its log lines

    def run(self) -> dict[str, float] | None:
        """Run the role to its end; return its metrics, or None for a server."""
        config = self._config = replace_settings(self._config, bind_port=self._known_port())
        process, security = from_cluster(config.cluster, config.run.runtime), security_of(config.cluster.security)
        discovery = FileDiscovery(_discovery_folder(config))
        if config.cluster.server_type == "ps":
            settings = server_settings(config, security)
            run_role(discovery, process, lambda session: serve(session, settings, self._endings))
            return None
        from monolith.training.cluster.roles.worker import train_worker
        from monolith.training.cluster.stop_event import StopEventHook

        hooks = [StopEventHook(self._ended, _STOP)]
        return run_role(discovery, process, lambda session: train_worker(session, config, security, hooks=hooks))

    def _known_port(self) -> int:
        """Return the port of an earlier instance on this machine, which the workers know."""
        config = self._config
        path = (
            _discovery_folder(config)
            / config.cluster.discovery.discovery_service_type_ps
            / str(config.run.runtime.index)
        )
        if config.cluster.server_type != "ps" or not path.is_file():
            return config.cluster.listen.bind_port
        host, port = split_address(path.read_text().strip())
        return port if host == config.cluster.listen.bind_host else config.cluster.listen.bind_port

    def stop(self) -> None:
        """End ``run``; a worker saves a checkpoint."""
        self._ended.set()
        self._endings.put(_STOP)

    def ping(self) -> str:
        """Return the host of the actor, once Ray has started it."""
        return self._config.cluster.listen.bind_host


class RayJob:
    """Servers and workers of one job on a Ray cluster. ``run`` returns when they have ended.

    Args:
        config: The settings of the job. All machines must see its folder; of a URL, its staging folder.
        settings: Placement of the actors.

    Raises:
        ConfigError: Ray is not installed, or the job has no folder, servers or workers.
        ClusterError: No cluster answers at the address.
    """

    def __init__(self, config: ClusterJobConfig, settings: RaySettings) -> None:
        if config.cluster.num_ps < 1:
            raise ConfigError(f"num_ps is {config.cluster.num_ps}, expected at least 1 server for a job on Ray")
        if not config.run.model_dir:
            raise ConfigError("model_dir is empty; give a folder that all machines of the Ray cluster see")
        _check_staging(str(config.run.model_dir), settings)
        if (
            config.cluster.security.ps_token_file is None
            and config.cluster.security.ps_tls_ca is None
            and settings.address != "local"
        ):
            logger.warning("servers accept calls without a token or TLS; give ps_token_file, or ps_tls_*")
        self._ray = _ray()
        self._settings = settings
        config = stage_model_folder(config, config.run.model_dir)
        self._config = replace_settings(
            config, model_dir=str(Path(config.run.model_dir).absolute()), discovery_type="file"
        )
        self._actors: dict[str, Any] = {}
        self._runs: dict[str, Any] = {}

    def run(self) -> dict[str, float]:
        """Start all actors, and wait for the workers; return the chief's metrics.

        An interruption (Ctrl-C) ends all actors, workers first, with a checkpoint.

        Raises:
            ClusterError: An actor died without a restart left, or its role failed; the text names it.
        """
        self._connect()
        try:
            self._clear_registrations()
            self._start()
            metrics = self._wait()
            self._wait_for_servers()
            return metrics
        finally:
            self._stop()

    def _connect(self) -> None:
        address = self._settings.address
        environment = {} if self._settings.working_dir is None else {"working_dir": self._settings.working_dir}
        if self._ray.is_initialized():
            return
        try:
            self._ray.init(
                None if address == "local" else address or "auto",
                runtime_env=environment,
                logging_level=logging.WARNING,
                **({"include_dashboard": False} if address == "local" else {}),
            )
        except Exception as error:  # Ray raises this class too
            raise ClusterError(
                f"no Ray cluster answers at {address or 'this machine'} ({error}); start one with 'ray start --head', "
                "give --address, or --address local"
            ) from error

    def _clear_registrations(self) -> None:
        """Remove the registrations of an earlier run."""
        folder = _discovery_folder(self._config)
        for role in (
            self._config.cluster.discovery.discovery_service_type_ps,
            self._config.cluster.discovery.discovery_service_type_worker,
        ):
            for path in (folder / role).glob("*"):
                path.unlink(missing_ok=True)

    def _start(self) -> None:
        settings = self._settings
        folder = str(Path.cwd()) if settings.working_dir is None else None
        options: dict[str, Any] = {
            "max_restarts": settings.max_restarts,
            "max_task_retries": settings.max_restarts,
            "max_concurrency": 3,  # run, beside stop and ping
            "scheduling_strategy": "SPREAD",
        }
        if staging := os.environ.get(STAGING_VARIABLE):  # actors find the URL of a staging folder by it
            options["runtime_env"] = {"env_vars": {STAGING_VARIABLE: os.path.abspath(staging)}}
        servers = [
            replace_settings(self._config, server_type="ps", index=i) for i in range(self._config.cluster.num_ps)
        ]
        num_workers = self._config.run.runtime.num_workers
        workers = [replace_settings(self._config, server_type="worker", index=i) for i in range(num_workers)]
        actor = self._ray.remote(RayActor)
        for one in [*servers, *workers]:
            is_server = one.cluster.server_type == "ps"
            cpus = settings.cpus_per_ps if is_server else settings.cpus_per_worker
            gpus = 0.0 if is_server else settings.gpus_per_worker
            placed = actor.options(**options, num_cpus=cpus, num_gpus=gpus)
            self._actors[_name(one)] = placed.remote(one, folder, settings.log_level)
        pings = {actor.ping.remote(): name for name, actor in self._actors.items()}
        _, missing = self._ray.wait(list(pings), num_returns=len(pings), timeout=settings.start_timeout_s)
        if missing:
            names = ", ".join(pings[one] for one in missing)
            raise ClusterError(
                f"Ray has not placed {names} in {settings.start_timeout_s:g} s; ask for fewer cores (--cpus-per-ps, "
                "--cpus-per-worker), or add machines"
            )
        for ping, name in pings.items():
            logger.info("actor placed actor=%s host=%s", name, self._result(name, ping))
            self._runs[name] = self._actors[name].run.remote()

    def _wait(self) -> dict[str, float]:
        """Wait until every worker has ended; the failure of a server before that ends the job."""
        waiting = {run: name for name, run in self._runs.items()}
        metrics: dict[str, float] = {}
        while any(not name.startswith("ps ") for name in waiting.values()):
            done, _ = self._ray.wait(list(waiting), timeout=_POLL_S)
            for run in done:
                name = waiting.pop(run)
                result = self._result(name, run)
                if name == "chief" and result is not None:
                    metrics = result
        return metrics

    def _wait_for_servers(self) -> None:
        """Wait for the servers, which the chief has shut down."""
        runs = [run for name, run in self._runs.items() if name.startswith("ps ")]
        self._ray.wait(runs, num_returns=len(runs), timeout=self._settings.grace_s)

    def _result(self, name: str, run: Any) -> Any:
        try:
            return self._ray.get(run)
        except self._ray.exceptions.RayTaskError as error:
            raise ClusterError(f"{name} failed: {error.cause}") from error
        except self._ray.exceptions.RayError as error:
            raise ClusterError(f"{name} was lost and has no restart left: {error}") from error

    def _stop(self) -> None:
        """Stop all actors, workers first, so that they can save; then kill the actors."""
        for is_server in (False, True):
            names = [name for name in self._runs if name.startswith("ps ") is is_server]
            for name in names:
                self._actors[name].stop.remote()
            runs = [self._runs[name] for name in names]
            if runs:
                self._ray.wait(runs, num_returns=len(runs), timeout=self._settings.grace_s)
        for actor in self._actors.values():
            self._ray.kill(actor)


def _check_staging(model_dir: str, settings: RaySettings) -> None:
    """Refuse a URL without a staging folder that all machines see.

    Servers and workers share logs, positions and addresses in the staging folder.
    """
    if is_url(model_dir) and settings.address != "local" and not os.environ.get(STAGING_VARIABLE):
        raise ConfigError(
            f"model_dir is {model_dir!r} and {STAGING_VARIABLE} is not set, expected a staging folder that all "
            f"machines of the Ray cluster see; set {STAGING_VARIABLE}, or give such a folder as model_dir"
        )


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError("launching on Ray needs Ray: pip install 'monolith[ray]'") from error


def _name(config: ClusterJobConfig) -> str:
    if config.cluster.server_type == "ps":
        return f"ps {config.run.runtime.index}"
    return f"worker {config.run.runtime.index}" if config.run.runtime.index else "chief"


def _host() -> str:
    host: str = _ray().util.get_node_ip_address()
    return host


def _discovery_folder(config: ClusterJobConfig) -> Path:
    return Path(config.cluster.discovery.discovery_folder or Path(config.run.model_dir) / "cluster")


def _enter(folder: str) -> None:
    """Change to the folder of the launcher, so that relative paths have the same meaning."""
    try:
        os.chdir(folder)
    except OSError as error:
        raise ConfigError(
            f"{folder}, where the job was launched, is not on {_host()} ({error.strerror}); launch it in a folder that "
            "all machines see, or give --working-dir"
        ) from error
