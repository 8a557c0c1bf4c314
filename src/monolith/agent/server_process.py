"""Run one model server and control its models: process, model config file, reload, states.

Main types: ``ServerProcess``, and ``ServerControl``, the protocol that agents use and that the fake implements.

Invariants: the model config file is written atomically before each reload call, so a server that restarts serves the
same models. A failed reload is repeated each second. A server that lets two status calls in a row run into their
deadline counts as not answering; one late call keeps the last state.

Threading: one thread supervises the process, one thread reloads; all methods may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from monolith.agent.addresses_file import write_atomically
from monolith.agent.background import BackgroundLoop
from monolith.agent.children import Child, ChildPlan
from monolith.agent.config import AgentConfig
from monolith.agent.guard import guarded
from monolith.agent.hosts import OwnHost
from monolith.agent.messages import ModelServerConfig, ModelVersionStatus, make_version_status
from monolith.agent.model_configs import make_server_config, model_config_text
from monolith.agent.platform_config import batching_parameters_text, write_platform_config
from monolith.agent.records import ModelState, ServerType
from monolith.agent.server_command import (
    foreign_command,
    foreign_unified_command,
    serve_command,
)
from monolith.agent.server_monitor import ServerClient, is_late
from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError
from monolith.core.lifeline import Lifeline
from monolith.rpc.security import Security
from monolith.rpc.status import Code

__all__ = ["ServerControl", "ServerProcess", "plan_server"]

logger = logging.getLogger(__name__)

_FOREIGN_DRAIN_S = 30.0
_SERVE_DRAIN_S = 30.0


class ServerControl(Protocol):
    """A model server under the control of an agent. Thread-safe."""

    def start(self) -> None:
        """Start the server."""

    def set_models(self, config: ModelServerConfig) -> None:
        """Serve exactly these models from now on."""

    def list_saved_models(self) -> list[str]:
        """Return the names of the models, in the order of the model config file."""

    def list_saved_models_status(self) -> dict[str, ModelVersionStatus]:
        """Return the best status of each model."""

    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """End the server in order."""


def plan_server(
    config: AgentConfig,
    server_type: str,
    host: OwnHost,
    *,
    foreign: str | None,
    folder: Path,
    addresses_file: Path | None,
    log: Path | None,
    admin_token_file: Path | None = None,
) -> ChildPlan:
    """Return how to run a server.

    Args:
        config: The configuration.
        server_type: ps, entry, dense or unified.
        host: Address to listen on.
        foreign: Path of a foreign server; None = ``monolith serve``.
        folder: Private folder of the agent; the model config file is ``<folder>/<server_type>.models``.
        addresses_file: File with the addresses of other sub-models.
        log: File for output and errors; None = the output of the agent.
        admin_token_file: File with the token of the agent, for ``monolith serve``.
    """
    models = str(folder / f"{server_type}.models")
    environment: dict[str, str] = {}
    if server_type in (ServerType.ENTRY, "unified") and config.ports.agent_port is not None:
        environment["PORT2"] = str(config.ports.agent_port)
    if foreign is not None:
        platform = str(write_platform_config(config, folder))
        if server_type == "unified":
            command = foreign_unified_command(
                config, binary=foreign, model_config_file=models, platform_config_file=platform
            )
        else:
            command = foreign_command(
                config, server_type, binary=foreign, model_config_file=models, platform_config_file=platform
            )
        working = Path(foreign).parent
        return ChildPlan(
            name=server_type,
            command=guarded(command),
            environment=environment,
            folder=working,
            log=log,
            drain_s=_FOREIGN_DRAIN_S,
        )
    batching: str | None = None
    if config.dense.dense_alone and config.server.batching.enable_batching:
        batching = str(folder / "batching.parameters")
        write_atomically(Path(batching), batching_parameters_text())
    command = serve_command(
        config,
        server_type,
        model_config_file=models,
        listen_address=host.listen_address,
        addresses_file=None if addresses_file is None else str(addresses_file),
        batching_parameters_file=batching,
        admin_token_file=None if admin_token_file is None else str(admin_token_file),
    )
    return ChildPlan(name=server_type, command=command, environment=environment, log=log, drain_s=_SERVE_DRAIN_S)


class ServerProcess(ServerControl):
    """One model server.

    Args:
        plan: How to run it.
        models_file: Its model config file.
        address: ``host:port`` of its gRPC port.
        lifeline: Ends the server when the agent dies.
        on_end: Called after each end of the process that was not asked for.
        on_final: Called with the reason when the process does not restart any more.
        restarts: Whether the process restarts.
        models: Models at the start.
        security: Token of the agent's calls.
        clock: Measures waits.
    """

    def __init__(
        self,
        plan: ChildPlan,
        models_file: Path,
        address: str,
        lifeline: Lifeline,
        *,
        on_end: Callable[[], None] = lambda: None,
        on_final: Callable[[str], None] = lambda _: None,
        restarts: bool = True,
        models: ModelServerConfig | None = None,
        security: Security | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._models_file = models_file
        self._clock = clock or SystemClock()
        self._client = ServerClient(address, security=security)
        self._lock = threading.Lock()
        self._config = models or make_server_config([])
        self._failed_reloads = 0
        self._reload_count = 0
        self._reloader = BackgroundLoop(f"agent-reload-{plan.name}", self._reload)

        self._child = Child(
            plan, lifeline, on_end=lambda _: on_end(), on_final=on_final, restarts=restarts, clock=self._clock
        )

    @override
    def start(self) -> None:
        write_atomically(self._models_file, model_config_text(self._config))
        self._child.start()
        self._reloader.start(immediately=False)

    @override
    def set_models(self, config: ModelServerConfig) -> None:
        with self._lock:
            if config == self._config:
                return
            write_atomically(self._models_file, model_config_text(config))
            self._config = config  # after the file, so that a full disk leaves the change to the next call
        self._reloader.wake()

    @override
    def list_saved_models(self) -> list[str]:
        with self._lock:
            return [each.name for each in self._config.model_config_list.config]

    @override
    def list_saved_models_status(self) -> dict[str, ModelVersionStatus]:
        statuses: dict[str, ModelVersionStatus] = {}
        late: ModelVersionStatus | None = None
        for name in self.list_saved_models():
            status = self.probe_status(name) if late is None else late
            if is_late(status):
                late = status  # the server does not answer for its other models either
            statuses[name] = status
        return statuses

    def probe_status(self, name: str, version: int | None = None) -> ModelVersionStatus:
        """Return the best status of a model; after a late answer, ask once more."""
        if self._child.pid is None:
            return make_version_status(-1, ModelState.UNKNOWN, Code.UNAVAILABLE, "the server does not run")
        return self._client.probe_again_if_late(name, version)

    def is_answering(self) -> bool:
        """Return True if the server answers calls."""
        if self._child.pid is None:
            return False
        code = int(self._client.probe_status("agent_readiness").status.error_code)
        return code not in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)

    @property
    def pid(self) -> int | None:
        """Id of the running process."""
        return self._child.pid

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of restarts, reloads and failed reloads."""
        return {
            "restarts": self._child.restart_count,
            "reloads": self._reload_count,
            "failed_reloads": self._failed_reloads,
        }

    @override
    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        self._reloader.stop()
        self._child.stop(is_urgent=is_urgent)
        self._client.close()

    def _reload(self) -> None:
        with self._lock:
            config = self._config
        if self._child.pid is None:
            return  # the process reads the file when it starts
        try:
            status = self._client.reload(config)
        except ClusterError:
            self._failed_reloads += 1
            raise
        if int(status.error_code):
            self._failed_reloads += 1
            raise ClusterError(f"reload was refused: {status.error_message} (code {int(status.error_code)})")
        self._reload_count += 1
        logger.info("models reloaded models=%d", len(config.model_config_list.config))
