"""Elect one leader among sessions: kazoo's election recipe, with leadership that ends at suspension.

Main type: ``Election``. A candidate is an ephemeral sequence node ``<uuid hex>__lock__<10 digits>`` below the election
path; its content is the name of the candidate. The lowest number leads. Node names and content are those of kazoo's
``Election``, so agents of the original and ours elect one leader together.

Invariants: ``is_leader`` becomes False in the moment of suspension, before any callback runs. A candidate stays one
until ``leave``: a new session creates a new node. A candidate watches only its predecessor.

Threading: one thread per election calls ``on_change``, one call after another.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Callable

from monolith.core.errors import ClusterError
from monolith.discovery.zookeeper_nodes import delete_if_present
from monolith.discovery.zookeeper_session import NodeEvent, NodeMissing, SessionState, ZooKeeperSession

__all__ = ["Election"]

logger = logging.getLogger(__name__)

_CANDIDATE = re.compile(r"__lock__(-?\d{10})$")
# A candidate looks this often even without an event.
_LOOK_S = 10.0
_RETRY_S = 1.0


class Election:
    """One candidate of one election.

    Args:
        session: The session that holds the candidate's node.
        path: Folder of the candidates, such as ``/<bzid>/election``.
        name: Content of the node, for people.
        on_change: Called with True after this candidate became the leader, and with False after it ceased to be.
    """

    def __init__(
        self, session: ZooKeeperSession, path: str, name: str, *, on_change: Callable[[bool], None] = lambda _: None
    ) -> None:
        self._session = session
        self._path = path
        self._name = name
        self._on_change = on_change
        self._prefix = f"{uuid.uuid4().hex}__lock__"
        self._lock = threading.Condition()
        self._node: str | None = None
        self._term = 0
        self._is_leader = False
        self._reported_term: int | None = None
        self._is_woken = False
        self._has_left = False
        self._was_failing = False
        self._thread = threading.Thread(target=self._run, name="zookeeper-election", daemon=True)

    @property
    def is_leader(self) -> bool:
        """True while this candidate leads and its connection is up."""
        return self._is_leader

    @property
    def node_path(self) -> str | None:
        """Path of the own candidate node, for ``CheckNode`` in transactions of the leader; None without a node."""
        with self._lock:
            return None if self._node is None else f"{self._path}/{self._node}"

    def join(self) -> None:
        """Become a candidate, in the background."""
        self._session.add_listener(self._note_state)
        self._thread.start()

    def leave(self) -> None:
        """Withdraw the candidate and end the thread; a second call does nothing."""
        self._session.remove_listener(self._note_state)
        with self._lock:
            self._has_left = True
            self._lock.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(30.0)

    def candidates(self) -> list[str]:
        """Return the names of all candidates, the leader first."""
        try:
            nodes = _in_order(self._session.children(self._path))
        except NodeMissing:
            return []
        contents = self._session.get_all([f"{self._path}/{node}" for node in nodes])
        return [content[0].decode(errors="replace") for content in contents if content is not None]

    def _note_state(self, state: SessionState) -> None:
        with self._lock:
            if state is not SessionState.CONNECTED:
                self._is_leader = False
                self._term += 1
            if state is SessionState.LOST:
                self._node = None
            self._wake()

    def _note_event(self, _: NodeEvent) -> None:
        with self._lock:
            self._wake()

    def _wake(self) -> None:
        self._is_woken = True
        self._lock.notify_all()

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            with self._lock:
                if not self._is_woken and not self._has_left and pause_s:
                    self._lock.wait(pause_s)
                self._is_woken = False
                if self._has_left:
                    break
            pause_s = self._step()
            self._report()
        self._withdraw()
        self._report()

    def _step(self) -> float:
        """Take part in the election once; return the longest pause before the next step."""
        if self._session.is_away:
            return _LOOK_S  # the listener wakes the thread
        with self._lock:
            term = self._term
        try:
            is_first = self._stand()
        except ClusterError as error:
            log = logger.debug if self._was_failing else logger.warning
            log("election step failed, retrying path=%s error=%s", self._path, error)
            self._was_failing = True
            return _RETRY_S
        self._was_failing = False
        with self._lock:
            # A suspension during the step makes its result worthless.
            self._is_leader = is_first and term == self._term and not self._has_left
        return _LOOK_S

    def _stand(self) -> bool:
        """Make sure that the own node exists; return True if it is the first, else watch its predecessor."""
        session = self._session
        session.ensure(self._path)
        nodes = _in_order(session.children(self._path))
        node = next((name for name in nodes if name.startswith(self._prefix)), None)
        if node is not None:
            stat = session.exists(f"{self._path}/{node}")
            if stat is None or stat.ephemeralOwner != session.session_id:
                # It belongs to the session before, whose end is near.
                delete_if_present(session, f"{self._path}/{node}")
                node = None
        if node is None:
            created = session.create(f"{self._path}/{self._prefix}", self._name.encode(), ephemeral=True, sequence=True)
            node = created.rpartition("/")[2]
            nodes = _in_order(session.children(self._path))
        with self._lock:
            self._node = node
        if node not in nodes:
            raise NodeMissing(f"candidate node {self._path}/{node} vanished")
        place = nodes.index(node)
        if place == 0:
            session.exists(f"{self._path}/{node}", self._note_event)
            return True
        if session.exists(f"{self._path}/{nodes[place - 1]}", self._note_event) is None:
            with self._lock:
                self._wake()  # the predecessor went meanwhile
        return False

    def _withdraw(self) -> None:
        with self._lock:
            self._is_leader = False
            node, self._node = self._node, None
        if node is None or self._session.is_away:
            return
        try:
            delete_if_present(self._session, f"{self._path}/{node}")
        except ClusterError as error:
            logger.warning("candidate node not deleted path=%s/%s error=%s", self._path, node, error)

    def _report(self) -> None:
        with self._lock:
            term = self._term if self._is_leader else None
        if term == self._reported_term:
            return
        if self._reported_term is not None:
            self._call(False)  # also where a suspension and a second election lie between two reports
        self._reported_term = term
        if term is not None:
            self._call(True)

    def _call(self, is_leader: bool) -> None:
        logger.info("leadership %s path=%s name=%s", "gained" if is_leader else "ended", self._path, self._name)
        try:
            self._on_change(is_leader)
        except Exception:
            logger.exception("leadership callback failed path=%s", self._path)


def _in_order(nodes: list[str]) -> list[str]:
    numbered = [(int(match[1]), node) for node in nodes if (match := _CANDIDATE.search(node))]
    return [node for _, node in sorted(numbered)]
