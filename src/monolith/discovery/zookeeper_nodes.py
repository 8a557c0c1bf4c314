"""Compose session operations into common node updates: put, put an ephemeral node, delete an own node or a tree.

Stateless functions over ``ZooKeeperSession``; each retries a lost race with another writer a few times.
"""

from __future__ import annotations

import logging

from monolith.core.errors import ConnectionFailed
from monolith.discovery.zookeeper_session import NodeChanged, NodeExists, NodeMissing, NodeNotEmpty, ZooKeeperSession

__all__ = ["delete_if_present", "delete_own", "delete_tree", "put", "put_ephemeral"]

logger = logging.getLogger(__name__)

_TRIES = 5


def put(session: ZooKeeperSession, path: str, data: bytes) -> None:
    """Create a persistent node with this content and its parents, or set its content."""
    for _ in range(_TRIES):
        try:
            session.set(path, data)
            return
        except NodeMissing:
            pass
        try:
            session.create(path, data)
            return
        except NodeExists:
            pass
    raise ConnectionFailed(f"ZooKeeper put of {path} lost {_TRIES} races with other writers; try again")


def put_ephemeral(session: ZooKeeperSession, path: str, data: bytes) -> None:
    """Make this session own an ephemeral node with this content.

    A node of another session ends with that session, so it is replaced in one transaction and not only set. The log
    names that session: two processes with one name replace each other's nodes again and again.
    """
    for _ in range(_TRIES):
        try:
            session.create(path, data, ephemeral=True)
            return
        except NodeExists:
            pass
        try:
            content, stat = session.get(path)
            if stat.ephemeralOwner != session.session_id:
                session.replace(path, data, stat.version)
                logger.warning("node of another session replaced path=%s owner=0x%x", path, stat.ephemeralOwner)
            elif content != data:
                session.set(path, data, stat.version)
            return
        except (NodeMissing, NodeChanged):
            continue
    raise ConnectionFailed(f"ZooKeeper put of {path} lost {_TRIES} races with other writers; try again")


def delete_if_present(session: ZooKeeperSession, path: str) -> bool:
    """Delete a node without children; return False if it did not exist."""
    try:
        session.delete(path)
    except NodeMissing:
        return False
    return True


def delete_own(session: ZooKeeperSession, path: str) -> None:
    """Delete an ephemeral node of this session; a missing node and one of another session are left."""
    stat = session.exists(path)
    if stat is None or stat.ephemeralOwner != session.session_id:
        return
    try:
        session.delete(path, stat.version)
    except (NodeMissing, NodeChanged):
        return  # another session replaced it meanwhile


def delete_tree(session: ZooKeeperSession, path: str) -> bool:
    """Delete a node and all nodes below it; return False if it did not exist."""
    for _ in range(_TRIES):
        try:
            for name in session.children(path):
                delete_tree(session, f"{path.rstrip('/')}/{name}")
            return delete_if_present(session, path)
        except NodeMissing:
            return False
        except NodeNotEmpty:
            continue  # another writer added a child meanwhile
    raise NodeNotEmpty(f"ZooKeeper delete of {path} found new children {_TRIES} times; stop their writer")
