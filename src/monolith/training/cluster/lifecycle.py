"""``run_role``: the frame around every role. It connects to discovery, runs the role, deregisters and disconnects.

Every call of discovery has a timeout. Errors of the cleanup never hide the error of the role.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from monolith.core.errors import AlreadyRegistered, ClusterError, MonolithError, NoSuchService, RpcTimeout
from monolith.discovery import Discovery, ServiceInfo
from monolith.training.cluster.bounded_calls import bounded_call
from monolith.training.cluster.config import DistributedConfig
from monolith.training.cluster.heartbeat import Heartbeat

__all__ = ["Session", "run_role"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Session:
    """The session of one process with discovery; each call has a timeout."""

    def __init__(self, discovery: Discovery, config: DistributedConfig) -> None:
        self.config = config
        """The settings of the process."""
        self._discovery = discovery

    def connect(self) -> None:
        """Connect to discovery."""
        self._call(self._discovery.connect, f"connect {self.config.service_id} via {self.config.service_type}")

    def register(self, host: str, port: int) -> None:
        """Register this process; a restarted process replaces its earlier registration."""
        config = self.config
        service = ServiceInfo(
            service_type=config.service_type,
            index=config.index,
            host=host,
            port=port,
            id=config.service_id,
            metadata={"addr": f"{host}:{port}", "index": str(config.index), "allow_update": "true"},
        )
        self._call(lambda: self._discovery.register(service), f"register {config.service_id} as {config.service_type}")

    def heartbeat(self, on_replaced: Callable[[AlreadyRegistered], None], losses: int = 1) -> Heartbeat:
        """Return the heartbeat that keeps the registration alive inside a ``with`` block.

        Args:
            on_replaced: Called when another process has taken the place of this one.
            losses: Heartbeats in a row that must find the other process first.
        """
        interval_s = self.config.discovery.heartbeat_interval_s
        return Heartbeat(self._discovery, self.config.service_id, interval_s, on_replaced, losses)

    def servers(self) -> list[ServiceInfo]:
        """Return the parameter servers that are registered now."""
        config = self.config
        wanted = config.discovery.discovery_service_type_ps
        return self._call(lambda: self._discovery.query(wanted), f"discover {config.service_id} for {wanted}")

    def chief_host(self) -> str | None:
        """Return the registered host of worker 0; None when discovery does not know it."""
        config = self.config
        wanted = config.discovery.discovery_service_type_worker
        try:
            workers = self._call(lambda: self._discovery.query(wanted), f"discover {config.service_id} for {wanted}")
        except ClusterError as error:
            logger.warning("chief not found error=%s", error)
            return None
        return next((worker.host for worker in workers if worker.index == 0), None)

    def _call(self, call: Callable[[], T], operation: str) -> T:
        return bounded_call(call, operation, self.config.discovery.discovery_operation_timeout_s)


def run_role(discovery: Discovery, config: DistributedConfig, role: Callable[[Session], T]) -> T:
    """Run one role of a job: connect, the role (which registers itself), deregister, disconnect.

    Both steps of the cleanup always run. Their errors are appended to the error of the role.

    Args:
        discovery: Discovery of the job; closed at the end.
        config: The settings of the process.
        role: The work of the process.

    Raises:
        ConfigError: The configuration is invalid; discovery was not called.
        MonolithError: The error of the role, with errors of the cleanup appended; or those alone.
    """
    config.check()
    session = Session(discovery, config)
    try:
        session.connect()
    except BaseException as error:
        _append(error, _AFTER_ERROR, _leave(config, [_disconnect(discovery, config)]))
        raise
    steps = [_deregister(discovery, config), _disconnect(discovery, config)]
    try:
        result = role(session)
    except BaseException as error:
        _append(error, _AFTER_ERROR, _leave(config, steps))
        raise
    issues = _leave(config, steps)
    if issues:
        (operation, first), *others = issues
        text = f"{operation}: {first}" if others else str(first)
        raise _append_issues(ClusterError(text), _AFTER_SUCCESS, others or issues) from first
    return result


_AFTER_ERROR = "after role error"
_AFTER_SUCCESS = "after successful role completion"

_Step = tuple[str, Callable[[], None]]
_Issue = tuple[str, Exception]


def _deregister(discovery: Discovery, config: DistributedConfig) -> _Step:
    operation = f"deregister {config.service_id} from {config.service_type}"

    def leave() -> None:
        with suppress(NoSuchService):  # of a role that failed before it registered
            discovery.deregister(config.service_id)

    return operation, leave


def _disconnect(discovery: Discovery, config: DistributedConfig) -> _Step:
    return f"disconnect {config.service_id} via {config.service_type}", discovery.close


def _leave(config: DistributedConfig, steps: list[_Step]) -> list[_Issue]:
    issues = []
    for operation, call in steps:
        try:
            bounded_call(call, operation, config.discovery.discovery_cleanup_timeout_s, "cleanup")
        except Exception as error:
            hint = "; raise discovery_cleanup_timeout_ms if it is only slow" if isinstance(error, RpcTimeout) else ""
            logger.warning("discovery cleanup failed%s operation=%r error=%s", hint, operation, error)
            issues.append((operation, error))
    return issues


def _append(error: BaseException, when: str, issues: list[_Issue]) -> None:
    """Append issues of the cleanup to the first error; errors of other libraries get a note."""
    if not issues:
        return
    if isinstance(error, MonolithError):
        _append_issues(error, when, issues)
    else:
        error.add_note(_suffix(when, issues))


def _append_issues(error: MonolithError, when: str, issues: list[_Issue]) -> MonolithError:
    error.args = (f"{error} {_suffix(when, issues)}", *error.args[1:])
    return error


def _suffix(when: str, issues: list[_Issue]) -> str:
    text = "; ".join(f"{operation}: {error}" for operation, error in issues)
    return f"(discovery cleanup encountered issues {when}: {text})"
