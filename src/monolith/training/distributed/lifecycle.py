"""The frame around every role: reach discovery, do the work, withdraw, leave. It never hangs, and hides no error.

What the role does in between is an argument.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from monolith.core.errors import ClusterError, MonolithError, RpcTimeout
from monolith.discovery import Discovery, ServiceInfo
from monolith.training.distributed.bounded_calls import bounded_call
from monolith.training.distributed.config import DistributedConfig
from monolith.training.distributed.heartbeat import Heartbeat

__all__ = ["Session", "run_role"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Session:
    """A process's time in discovery: what its role may do there, each call within its time."""

    def __init__(self, discovery: Discovery, config: DistributedConfig) -> None:
        self.config = config
        """The process."""
        self._discovery = discovery

    def connect(self) -> None:
        """Reach discovery."""
        self._call(self._discovery.connect, f"connect {self.config.service_id} via {self.config.service_type}")

    def register(self, host: str, port: int) -> None:
        """Make this process known; a process that comes back replaces what it was."""
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

    def heartbeat(self) -> Heartbeat:
        """Return what keeps the registration alive inside a ``with`` block."""
        return Heartbeat(self._discovery, self.config.service_id, self.config.heartbeat_interval_s)

    def servers(self) -> list[ServiceInfo]:
        """Return the parameter servers that are registered now, in any number."""
        config = self.config
        wanted = config.discovery_service_type_ps
        return self._call(lambda: self._discovery.query(wanted), f"discover {config.service_id} for {wanted}")

    def chief_host(self) -> str | None:
        """Return where worker 0 says it is; None when discovery does not know now."""
        config = self.config
        wanted = config.discovery_service_type_worker
        try:
            workers = self._call(lambda: self._discovery.query(wanted), f"discover {config.service_id} for {wanted}")
        except ClusterError as error:
            logger.warning("the chief was not found error=%s", error)
            return None
        return next((worker.host for worker in workers if worker.index == 0), None)

    def _call(self, call: Callable[[], T], operation: str) -> T:
        return bounded_call(call, operation, self.config.discovery_operation_timeout_ms)


def run_role(discovery: Discovery, config: DistributedConfig, role: Callable[[Session], T]) -> T:
    """Run one role of a job: connect, the role (which registers itself), deregister, disconnect.

    Both ends of leaving are always tried, and what goes wrong there is told after what went wrong before.

    Args:
        discovery: How the processes find each other; closed in the end.
        config: The process.
        role: The work. Returns when it is done.

    Raises:
        ConfigError: The configuration is wrong; discovery was not called.
        MonolithError: What the role raised, with what went wrong in leaving appended; or that alone.
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
        told = f"{operation}: {first}" if others else str(first)
        raise _told(ClusterError(told), _AFTER_SUCCESS, others or issues) from first
    return result


_AFTER_ERROR = "after role error"
_AFTER_SUCCESS = "after successful role completion"

_Step = tuple[str, Callable[[], None]]
_Issue = tuple[str, Exception]


def _deregister(discovery: Discovery, config: DistributedConfig) -> _Step:
    operation = f"deregister {config.service_id} from {config.service_type}"
    return operation, lambda: discovery.deregister(config.service_id)


def _disconnect(discovery: Discovery, config: DistributedConfig) -> _Step:
    return f"disconnect {config.service_id} via {config.service_type}", discovery.close


def _leave(config: DistributedConfig, steps: list[_Step]) -> list[_Issue]:
    issues = []
    for operation, call in steps:
        try:
            bounded_call(call, operation, config.discovery_cleanup_timeout_ms, "cleanup")
        except Exception as error:
            hint = "; raise discovery_cleanup_timeout_ms if it is only slow" if isinstance(error, RpcTimeout) else ""
            logger.warning("leaving discovery failed%s operation=%r error=%s", hint, operation, error)
            issues.append((operation, error))
    return issues


def _append(error: BaseException, when: str, issues: list[_Issue]) -> None:
    """Tell of cleanup after the error that came first. Errors that are not ours are told of in a note."""
    if not issues:
        return
    if isinstance(error, MonolithError):
        _told(error, when, issues)
    else:
        error.add_note(_suffix(when, issues))


def _told(error: MonolithError, when: str, issues: list[_Issue]) -> MonolithError:
    error.args = (f"{error} {_suffix(when, issues)}", *error.args[1:])
    return error


def _suffix(when: str, issues: list[_Issue]) -> str:
    told = "; ".join(f"{operation}: {error}" for operation, error in issues)
    return f"(discovery cleanup encountered issues {when}: {told})"
