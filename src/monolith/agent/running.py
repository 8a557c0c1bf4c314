"""Run an agent from its configuration until a signal or a failure ends it.

Main types: ``run_agent``; ``Agent``, the protocol of all versions.

Invariants: SIGTERM and SIGINT end an agent with status 0 after an orderly stop; a second signal shortens the wait to
1 s. A server that does not restart any more ends the agent with an error after an orderly stop.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from monolith.agent.children import log_path
from monolith.agent.config import AgentConfig
from monolith.agent.fixed_agent import FixedAgent
from monolith.agent.hosts import OwnHost, find_own_host
from monolith.agent.layout_agent import LayoutAgent, with_quick_retries
from monolith.agent.messages import ModelServerConfig
from monolith.agent.metrics import AgentMetrics
from monolith.agent.scheduled_agent import ScheduledAgent
from monolith.agent.server_command import check_server, has_grpc_remote_operator
from monolith.agent.server_process import ServerControl, ServerProcess, plan_server
from monolith.agent.session import make_session
from monolith.agent.settings import DeployType
from monolith.core.errors import ClusterError
from monolith.core.lifeline import Lifeline, end_with_starter
from monolith.core.scratch_folder import ScratchFolder
from monolith.core.stop_signals import Endings, stop_signals
from monolith.discovery.zookeeper_session import ZooKeeperSession
from monolith.rpc.security import Security
from monolith.telemetry.page import MetricsPage

__all__ = ["Agent", "run_agent"]

logger = logging.getLogger(__name__)

_LOOK_S = 0.2


class Agent(Protocol):
    """An agent of any version."""

    @property
    def failure(self) -> str | None:
        """Reason why the agent must end; None while it may run."""

    @property
    def port(self) -> int:
        """Port of the agent's service."""

    def start(self) -> None:
        """Start servers, nodes and threads."""

    def stop(self, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """Withdraw the nodes, then stop the servers."""


class _Signals:
    """Signals of this process: the first asks for an orderly stop, a second one for a quick one."""

    def __init__(self, endings: Endings) -> None:
        self._endings = endings
        self._is_urgent = False

    def wait_s(self, seconds: float) -> str | None:
        """Return the name of a signal, or None after the time."""
        try:
            return self._endings.get(timeout=seconds)
        except queue.Empty:
            return None

    def is_urgent(self) -> bool:
        """Return True after a further signal."""
        if not self._is_urgent and not self._endings.empty():
            self._is_urgent = True
        return self._is_urgent


def run_agent(
    config: AgentConfig,
    *,
    tfs_log: Path,
    restarts: bool = True,
    metrics_port: int | None = None,
    on_started: Callable[[Agent, int | None], None] = lambda _, __: None,
) -> None:
    """Run an agent until a signal ends it; for the main thread.

    Args:
        config: A checked configuration with ports.
        tfs_log: Log of the servers; the type of a server goes before the name.
        restarts: Whether a server that ends restarts; False = the agent ends with it.
        metrics_port: Port of /metrics; None = off.
        on_started: Called with the agent and the port of /metrics after the start.

    Raises:
        ConfigError: A server cannot start.
        ClusterError: ZooKeeper does not answer at the start, or a server ended for good.
    """
    foreign = check_server(config.environment)
    host = find_own_host(config.environment)
    logger.info(
        "agent environment %s", " ".join(f"{key}={value}" for key, value in config.environment.loggable.items())
    )
    with ExitStack() as stack:
        endings = _Signals(stack.enter_context(stop_signals()))
        folder = stack.enter_context(ScratchFolder("monolith-agent-"))
        end_with_starter(os.environ)
        lifeline = stack.enter_context(Lifeline())
        session = make_session(config.service.zk_servers or "", config.environment.zookeeper_auth)
        session.start()
        stack.callback(session.stop)
        metrics = AgentMetrics(has_versions=config.supervision.use_metrics)
        servers = _Servers(config, host, foreign, folder, tfs_log, lifeline, restarts)
        agent = _make_agent(config, session, host, servers, metrics)
        page: MetricsPage | None = None
        if metrics_port is not None:
            page = stack.enter_context(
                MetricsPage(metrics.registry.text, lambda: _health(agent), host=host.listen_address, port=metrics_port)
            )
        try:
            agent.start()
            on_started(agent, None if page is None else page.port)
            name: str | None = None
            while name is None and agent.failure is None:
                name = endings.wait_s(_LOOK_S)
            logger.info("agent stopping cause=%s", name or agent.failure)
        finally:
            agent.stop(is_urgent=endings.is_urgent)
        if agent.failure is not None:
            raise ClusterError(agent.failure)


def _health(agent: Agent) -> tuple[bool, str]:
    return agent.failure is None, agent.failure or "OK"


class _Servers:
    """Makes the servers of an agent."""

    def __init__(
        self,
        config: AgentConfig,
        host: OwnHost,
        foreign: str | None,
        folder: Path,
        tfs_log: Path,
        lifeline: Lifeline,
        restarts: bool,
    ) -> None:
        self.config = with_quick_retries(config)
        self.host = host
        self.foreign = foreign
        self.folder = folder
        self._tfs_log = tfs_log
        self._lifeline = lifeline
        self._restarts = restarts
        # Only the agent may change the models of its servers. A foreign server takes no token.
        self._admin_token_file = None if foreign is not None else folder / "admin.token"
        self._security = Security()
        if self._admin_token_file is not None:
            token = secrets.token_urlsafe(32)
            self._security = Security(token=token)
            descriptor = os.open(self._admin_token_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(token)

    @property
    def addresses_file(self) -> Path:
        return self.folder / "addresses.json"

    def make(
        self,
        server_type: str,
        on_end: Callable[[], None],
        on_final: Callable[[str], None],
        models: ModelServerConfig | None = None,
    ) -> ServerProcess:
        """Return a server that is not started."""
        config, log = self.config, None
        if not config.environment.logs_to_own_output:
            is_unified = server_type == DeployType.UNIFIED
            index = config.environment.shard.dense_service_index or None
            log = log_path(self._tfs_log, None if is_unified else server_type, dense_index=index)
        plan = plan_server(
            config,
            server_type,
            self.host,
            foreign=self.foreign,
            folder=self.folder,
            addresses_file=self.addresses_file,
            log=log,
            admin_token_file=self._admin_token_file,
        )
        return ServerProcess(
            plan,
            self.folder / f"{server_type}.models",
            self.host.reachable_address(config.port_of(server_type) or 0),
            self._lifeline,
            on_end=on_end,
            on_final=on_final,
            restarts=self._restarts,
            models=models,
            security=self._security,
        )


def _make_agent(
    config: AgentConfig, session: ZooKeeperSession, host: OwnHost, servers: _Servers, metrics: AgentMetrics
) -> Agent:
    if config.service.agent_version == 1:
        return FixedAgent(
            config,
            session,
            host,
            servers.make,
            addresses_file=servers.addresses_file,
            is_foreign=servers.foreign is not None,
            metrics=metrics,
        )
    if config.service.agent_version == 2:
        return ScheduledAgent(
            config, session, host, servers.make, addresses_file=servers.addresses_file, metrics=metrics
        )

    def make_unified(on_end: Callable[[], None], on_final: Callable[[str], None]) -> ServerControl:
        return servers.make(DeployType.UNIFIED, on_end, on_final)

    return LayoutAgent(
        config,
        session,
        host,
        make_unified,
        addresses_file=servers.addresses_file,
        is_foreign=servers.foreign is not None,
        use_archon=not has_grpc_remote_operator(servers.foreign),
        metrics=metrics,
    )
