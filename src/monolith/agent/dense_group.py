"""Run several dense agents on one host, one process each, under one supervisor.

Main type: ``run_dense_group``. Child ``i`` of replica ``r`` has the replica id ``r * n + i``; each child but the first
takes free ports. Children restart by the rules of ``children``; signals reach them as an orderly stop.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from monolith.agent.children import Child, ChildPlan
from monolith.agent.config import AgentConfig
from monolith.agent.settings import DeployType
from monolith.core.config_sections import replace_settings
from monolith.core.errors import ClusterError
from monolith.core.lifeline import Lifeline
from monolith.core.stop_signals import stop_signals

__all__ = ["child_environment", "is_dense_group", "run_dense_group", "with_own_replica"]

_STOP_S = 60.0
_PORTS = ("PORT", "PORT2", "PORT3", "PORT4")
VARIABLE = "MONOLITH_DENSE_CHILD"
"""Set in the environment of a child, so that it runs one agent and not a group."""


def is_dense_group(config: AgentConfig, variables: Mapping[str, str]) -> bool:
    """Return True if this process starts several dense agents."""
    return (
        config.service.deploy_type is DeployType.DENSE
        and config.dense.dense_service_num > 1
        and VARIABLE not in variables
    )


def child_environment(config: AgentConfig, index: int) -> dict[str, str]:
    """Return the variables of one child; an empty port means a free one."""
    replica = -1 if config.service.replica_id is None else config.service.replica_id
    variables = {VARIABLE: "1", "DENSE_SERVICE_IDX": str(index)}
    if replica >= 0:
        variables["REPLICA_ID"] = str(replica * config.dense.dense_service_num + index)
    if index > 0:
        variables |= {name: "" for name in _PORTS}
    return variables


def with_own_replica(config: AgentConfig, variables: Mapping[str, str]) -> AgentConfig:
    """Return the configuration of a child, whose replica id its parent chose; others stay as they are."""
    if VARIABLE not in variables or config.environment.shard.replica_id is None:
        return config
    return replace_settings(config, replica_id=config.environment.shard.replica_id)


def run_dense_group(config: AgentConfig, conf: Path, arguments: list[str]) -> None:
    """Run all dense agents of a host until a signal ends them; for the main thread.

    Args:
        config: The configuration.
        conf: Its file.
        arguments: Further arguments of ``monolith agent run``.

    Raises:
        ClusterError: An agent ended for good.
    """
    failures: queue.SimpleQueue[str] = queue.SimpleQueue()
    with ExitStack() as stack:
        endings = stack.enter_context(stop_signals())
        lifeline = stack.enter_context(Lifeline())
        children = [
            Child(
                ChildPlan(
                    name=f"dense-agent-{index}",
                    command=[sys.executable, "-m", "monolith", "agent", "run", "--conf", str(conf), *arguments],
                    environment=child_environment(config, index),
                    drain_s=_STOP_S,
                ),
                lifeline,
                on_final=failures.put,
            )
            for index in range(config.dense.dense_service_num)
        ]
        for child in children:
            stack.callback(child.stop, is_urgent=lambda: endings.qsize() > 0)
            child.start()
        pause = threading.Event()
        while endings.empty() and failures.empty():
            pause.wait(0.1)
        if not endings.empty():
            endings.get()
        for child in children:
            child.request_stop()
        if not failures.empty():
            raise ClusterError(failures.get())
