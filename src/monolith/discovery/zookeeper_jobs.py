"""Cleanup of ZooKeeper by the launcher of a job, before its first process starts."""

from __future__ import annotations

import logging

from monolith.core.clock import Clock, SystemClock
from monolith.core.errors import ClusterError
from monolith.discovery.base import checked_name
from monolith.discovery.zookeeper import checked_root
from monolith.discovery.zookeeper_client import NodeMissing, ZooKeeperClient, checked_servers

__all__ = ["prepare_job"]

logger = logging.getLogger(__name__)

_OLD_S = 9 * 7 * 86400.0


def prepare_job(
    servers: str,
    job: str,
    *,
    auth: str | None = None,
    root: str = "/monolith",
    is_forced: bool = False,
    clock: Clock | None = None,
) -> None:
    """Remove nodes of old jobs, and check that this job has no registered process.

    A job is old if its node is nine weeks old and has no registered process.

    Args:
        servers: ``host:port,...``.
        job: The job that is about to start.
        auth: ``user:password`` for digest authentication, or None.
        root: The path above the jobs.
        is_forced: Whether to remove the nodes of this job, registered processes included.
        clock: Measures the age of jobs.

    Raises:
        ClusterError: The job has a registered process, and ``is_forced`` is not set.
    """
    clock = clock or SystemClock()
    root, path = checked_root(root), f"{checked_root(root)}/{checked_name('job', job)}"
    client = ZooKeeperClient(
        checked_servers(servers),
        auth=auth,
        session_timeout_s=30.0,
        timeout_s=10.0,
        on_connected=lambda _: None,
        clock=clock,
    )
    client.start()
    try:
        client.ensure(root)
        for name in client.children(root):
            if name != job:
                _remove_if_old(client, f"{root}/{name}", clock.now_s())
        if job in client.children(root):
            if not is_forced:
                _check_no_process(client, job, path)
            _remove(client, path)
    finally:
        client.stop()


def _check_no_process(client: ZooKeeperClient, job: str, path: str) -> None:
    try:
        processes = ", ".join(sorted(client.children(path)))
    except NodeMissing:
        return
    if processes:
        raise ClusterError(
            f"job {job!r} exists in ZooKeeper with the processes {processes}, expected none; stop them and wait "
            "for the end of their sessions, choose another name, or replace the job with --force"
        )


def _remove_if_old(client: ZooKeeperClient, path: str, now_s: float) -> None:
    try:
        _, stat = client.get(path)
        if stat.numChildren == 0 and stat.mtime / 1000 + _OLD_S < now_s:
            client.delete(path, stat.version)
            logger.info("old job removed path=%s", path)
    except (NodeMissing, ClusterError) as error:
        # Another launcher may clean up at the same time, or may have created the job again.
        logger.debug("old job not removed path=%s error=%r", path, error)


def _remove(client: ZooKeeperClient, path: str) -> None:
    try:
        for name in client.children(path):
            _remove(client, f"{path}/{name}")
        client.delete(path)
    except NodeMissing:
        return
