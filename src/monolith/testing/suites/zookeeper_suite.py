"""Test every ``ZooKeeperSession``: one suite for the client of real servers and for the in-memory twin.

To test an implementation, derive a class ``Test...`` from ``ZooKeeperSuite`` and give it a fixture ``ensemble`` that
makes sessions with one server and breaks them. Needs pytest.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from monolith.core.clock import Deadline, SystemClock
from monolith.core.errors import ClusterError, ConnectionFailed
from monolith.discovery.zookeeper_election import Election
from monolith.discovery.zookeeper_nodes import delete_if_present, delete_tree, put, put_ephemeral
from monolith.discovery.zookeeper_session import (
    MAX_NODE_BYTES,
    CheckNode,
    CreateNode,
    DeleteNode,
    NodeChanged,
    NodeEvent,
    NodeEventKind,
    NodeExists,
    NodeMissing,
    NodeNotEmpty,
    Operation,
    SessionState,
    SetNode,
    ZooKeeperSession,
)
from monolith.discovery.zookeeper_watches import NodeWatches
from monolith.testing.suites.zookeeper_ensembles import Ensemble

__all__ = ["ZooKeeperSuite", "root"]

_PATIENCE_S = 60.0


@pytest.fixture
def root() -> str:
    """A path of this test alone; the server is shared."""
    return f"/{uuid.uuid4().hex}"


def _eventually(is_true: Callable[[], bool]) -> None:
    clock = SystemClock()
    deadline = Deadline(clock, _PATIENCE_S)
    while not is_true():
        assert not deadline.is_past, "the condition never became true"
        clock.sleep_s(0.02)


@contextmanager
def _watches(session: ZooKeeperSession) -> Iterator[NodeWatches]:
    with NodeWatches(session, retry_s=0.05) as watches:
        yield watches


def _next(events: queue.Queue[Any]) -> Any:
    return events.get(timeout=_PATIENCE_S)


class ZooKeeperSuite:
    """The suite."""

    # --- nodes ---

    # T41, T42, D50
    def test_a_created_node_has_its_path_content_and_parents(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        assert session.create(f"{root}/zk/data", b"one") == f"{root}/zk/data"
        content, stat = session.get(f"{root}/zk/data")
        assert (content, stat.version, stat.ephemeralOwner, stat.dataLength, stat.numChildren) == (b"one", 0, 0, 3, 0)
        assert session.children(root) == ["zk"]
        assert session.get(root)[1].numChildren == 1

    # D50
    def test_a_missing_parent_is_an_error_without_makepath(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        with pytest.raises(NodeMissing):
            session.create(f"{root}/a", makepath=False)
        session.ensure(root)
        session.create(f"{root}/a", makepath=False)
        with pytest.raises(NodeExists):
            session.create(f"{root}/a")

    # T42
    def test_a_missing_node_cannot_be_read_set_deleted_or_listed(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        for call in (
            lambda: session.get(root),
            lambda: session.set(root, b""),
            lambda: session.delete(root),
            lambda: session.children(root),
        ):
            with pytest.raises(NodeMissing):
                call()
        assert session.exists(root) is None
        assert session.get_all([root]) == [None]
        assert session.children_all([root]) == [None]

    # T42
    def test_a_set_changes_content_version_and_transaction(self, ensemble: Ensemble, root: str) -> None:
        session, other = ensemble.open(), ensemble.open()
        session.create(root, b"one")
        before = session.get(root)[1]
        session.set(root, b"two")
        content, stat = session.get(root)
        assert (content, stat.version, stat.czxid) == (b"two", 1, before.czxid)
        assert stat.mzxid > before.mzxid
        _eventually(lambda: other.get(root)[0] == b"two")

    # D50
    def test_a_wrong_version_is_refused(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(root, b"one")
        session.set(root, b"two", 0)
        with pytest.raises(NodeChanged):
            session.set(root, b"three", 0)
        with pytest.raises(NodeChanged):
            session.delete(root, 0)
        assert session.get(root)[0] == b"two"
        session.delete(root, 1)
        assert session.exists(root) is None

    # T43, D50
    def test_a_node_with_children_is_deleted_only_with_its_tree(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(f"{root}/a/b/c")
        session.create(f"{root}/a/d")
        with pytest.raises(NodeNotEmpty):
            session.delete(f"{root}/a")
        assert session.exists(f"{root}/a/b/c") is not None
        assert delete_tree(session, root)
        assert session.exists(root) is None
        assert not delete_tree(session, root)
        assert not delete_if_present(session, root)

    # D50
    def test_sequence_names_have_ten_digits_and_grow_per_parent(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        assert session.create(f"{root}/entry/0", sequence=True) == f"{root}/entry/00000000000"
        assert session.create(f"{root}/entry/0", sequence=True) == f"{root}/entry/00000000001"
        session.delete(f"{root}/entry/00000000001")
        assert session.create(f"{root}/entry/x", sequence=True) == f"{root}/entry/x0000000002"
        assert session.create(f"{root}/other/x", sequence=True) == f"{root}/other/x0000000000"

    # D50
    def test_an_ephemeral_node_cannot_have_children(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(root, ephemeral=True)
        with pytest.raises(ClusterError, match=r"(?i)ephemeral"):
            session.create(f"{root}/a")

    def test_content_above_the_limit_is_refused_before_it_is_sent(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(root, b"x" * MAX_NODE_BYTES)
        with pytest.raises(ClusterError, match=f"{MAX_NODE_BYTES + 1} bytes"):
            session.set(root, b"x" * (MAX_NODE_BYTES + 1))
        assert len(session.get(root)[0]) == MAX_NODE_BYTES

    # --- transactions ---

    def test_a_transaction_applies_all_operations(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(f"{root}/old")
        session.create(f"{root}/set", b"one")
        session.create(f"{root}/check")
        paths = session.commit(
            [
                CheckNode(f"{root}/check"),
                DeleteNode(f"{root}/old"),
                SetNode(f"{root}/set", b"two", 0),
                CreateNode(f"{root}/new", b"x", ephemeral=True),
                CreateNode(f"{root}/s", sequence=True),
            ]
        )
        assert paths[3:] == [f"{root}/new", f"{root}/s0000000004"]
        assert sorted(session.children(root)) == ["check", "new", "s0000000004", "set"]
        assert session.get(f"{root}/set")[0] == b"two"
        assert session.get(f"{root}/new")[1].ephemeralOwner == session.session_id

    @pytest.mark.parametrize(
        ("name", "error"),
        [("gone", NodeMissing), ("changed", NodeChanged), ("full", NodeNotEmpty), ("there", NodeExists)],
    )
    def test_a_failed_transaction_changes_nothing(
        self, ensemble: Ensemble, root: str, name: str, error: type[ClusterError]
    ) -> None:
        session = ensemble.open()
        session.create(f"{root}/changed", b"one")
        session.create(f"{root}/full/child")
        session.create(f"{root}/there")
        session.create(f"{root}/spare")
        operations: dict[str, Operation] = {
            "gone": CheckNode(f"{root}/gone"),
            "changed": SetNode(f"{root}/changed", b"two", 7),
            "full": DeleteNode(f"{root}/full"),
            "there": CreateNode(f"{root}/there"),
        }
        failing = operations[name]
        with pytest.raises(error):
            session.commit([CreateNode(f"{root}/new"), DeleteNode(f"{root}/spare"), failing, CreateNode(f"{root}/z")])
        assert sorted(session.children(root)) == ["changed", "full", "spare", "there"]
        assert session.get(f"{root}/changed")[0] == b"one"

    def test_replace_moves_a_node_to_this_session(self, ensemble: Ensemble, root: str) -> None:
        old, new = ensemble.open(), ensemble.open()
        old.create(root, b"old", ephemeral=True)
        version = new.get(root)[1].version
        new.replace(root, b"new", version)
        old.stop()
        content, stat = new.get(root)
        assert (content, stat.ephemeralOwner) == (b"new", new.session_id)
        with pytest.raises(ConnectionFailed):
            new.replace(root, b"x", version + 5)

    def test_put_creates_or_sets(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        put(session, f"{root}/a", b"one")
        put(session, f"{root}/a", b"two")
        assert session.get(f"{root}/a")[0] == b"two"

    def test_put_ephemeral_takes_over_a_node_of_another_session(self, ensemble: Ensemble, root: str) -> None:
        old, new = ensemble.open(), ensemble.open()
        put_ephemeral(old, f"{root}/a", b"one")
        put_ephemeral(old, f"{root}/a", b"two")
        assert old.get(f"{root}/a")[1].version == 1
        put_ephemeral(new, f"{root}/a", b"two")
        old.stop()
        content, stat = new.get(f"{root}/a")
        assert (content, stat.ephemeralOwner) == (b"two", new.session_id)

    # --- sessions ---

    # D50
    def test_ephemeral_nodes_go_with_a_stopped_session(self, ensemble: Ensemble, root: str) -> None:
        session, other = ensemble.open(), ensemble.open()
        session.create(f"{root}/a", ephemeral=True)
        session.create(f"{root}/b")
        session.stop()
        _eventually(lambda: other.children(root) == ["b"])

    # D50
    def test_ephemeral_nodes_survive_a_lost_connection(self, ensemble: Ensemble, root: str) -> None:
        session, other = ensemble.open(), ensemble.open()
        states: queue.Queue[SessionState] = queue.Queue()
        session.add_listener(states.put)
        session.create(root, ephemeral=True)
        number = session.session_id
        ensemble.disconnect(session)
        assert _next(states) is SessionState.SUSPENDED
        assert session.session_id == number
        assert other.exists(root) is not None
        ensemble.reconnect(session)
        assert _next(states) is SessionState.CONNECTED
        assert session.session_id == number
        assert session.exists(root) is not None

    def test_reads_fail_immediately_while_the_connection_is_away(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(root)
        ensemble.disconnect(session)
        _eventually(lambda: session.is_away)
        with pytest.raises(ConnectionFailed):
            session.get(root)
        with pytest.raises(ConnectionFailed):
            session.children(root)
        ensemble.reconnect(session)
        _eventually(lambda: not session.is_away)

    # D50
    def test_an_expired_session_is_reported_and_followed_by_a_new_one(self, ensemble: Ensemble, root: str) -> None:
        session, other = ensemble.open(), ensemble.open()
        states: queue.Queue[SessionState] = queue.Queue()
        session.add_listener(states.put)
        session.create(root, ephemeral=True)
        before = session.session_id
        ensemble.expire(session)
        seen = [_next(states)]
        while seen[-1] is not SessionState.CONNECTED or SessionState.LOST not in seen:
            seen.append(_next(states))
        assert session.session_id != before
        _eventually(lambda: other.exists(root) is None)
        session.remove_listener(states.put)

    def test_a_failing_listener_does_not_silence_the_others(self, ensemble: Ensemble) -> None:
        session = ensemble.open()
        states: queue.Queue[SessionState] = queue.Queue()

        def fail(state: SessionState) -> None:
            raise ValueError(f"a listener that fails at {state}")

        session.add_listener(fail)
        session.add_listener(states.put)
        ensemble.disconnect(session)
        assert _next(states) is SessionState.SUSPENDED
        ensemble.reconnect(session)
        assert _next(states) is SessionState.CONNECTED

    # --- one-shot watches ---

    # T45, D50
    def test_a_one_shot_watch_fires_once(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(root)
        events: queue.Queue[NodeEvent] = queue.Queue()
        session.get(root, events.put)
        session.set(root, b"1")
        session.set(root, b"2")
        assert _next(events) == NodeEvent(NodeEventKind.CHANGED, root)
        session.children(root, events.put)
        session.create(f"{root}/a")
        assert _next(events) == NodeEvent(NodeEventKind.CHILD, root)
        assert events.empty()

    def test_an_exists_watch_reports_creation_and_deletion(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        events: queue.Queue[NodeEvent] = queue.Queue()
        assert session.exists(root, events.put) is None
        session.create(root)
        assert _next(events) == NodeEvent(NodeEventKind.CREATED, root)
        assert session.exists(root, events.put) is not None
        session.delete(root)
        assert _next(events) == NodeEvent(NodeEventKind.DELETED, root)

    # D50
    def test_several_watches_on_one_path_all_fire(self, ensemble: Ensemble, root: str) -> None:
        session, other = ensemble.open(), ensemble.open()
        session.create(root)
        queues: list[queue.Queue[NodeEvent]] = [queue.Queue() for _ in range(3)]
        session.get(root, queues[0].put)
        session.get(root, queues[1].put)
        other.get(root, queues[2].put)
        session.set(root, b"1")
        assert [_next(events).kind for events in queues] == [NodeEventKind.CHANGED] * 3

    # --- lasting watches ---

    # T44, D50
    def test_a_data_watch_reports_the_first_reading_and_each_change(self, ensemble: Ensemble, root: str) -> None:
        session, other = ensemble.open(), ensemble.open()
        readings: queue.Queue[bytes | None] = queue.Queue()
        with _watches(session) as watches:
            watches.watch_data(root, lambda data, _: readings.put(data))
            assert _next(readings) is None
            for content in (b"1", b"2"):
                put(other, root, content)
                assert _next(readings) == content
            other.set(root, b"2")
            assert _next(readings) == b"2"
            other.delete(root)
            assert _next(readings) is None
            other.create(root, b"3")
            assert _next(readings) == b"3"
            watches.reread()
            other.set(root, b"4")
            assert _next(readings) == b"4"

    # T45, D50
    def test_a_children_watch_reports_names_and_a_missing_node(self, ensemble: Ensemble, root: str) -> None:
        session, other = ensemble.open(), ensemble.open()
        readings: queue.Queue[list[str] | None] = queue.Queue()
        with _watches(session) as watches:
            watches.watch_children(root, readings.put)
            assert _next(readings) is None
            other.create(root)
            assert _next(readings) == []
            other.create(f"{root}/b")
            assert _next(readings) == ["b"]
            other.create(f"{root}/a")
            assert _next(readings) == ["a", "b"]
            delete_tree(other, root)
            while (names := _next(readings)) is not None:
                assert len(names) < 2
            other.create(f"{root}/c")
            while _next(readings) != ["c"]:
                pass

    # D50
    def test_several_lasting_watches_on_one_path_all_fire(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(root, b"1")
        readings: queue.Queue[str] = queue.Queue()
        with _watches(session) as watches:
            watches.watch_data(root, lambda data, _: readings.put(f"a{data!r}"))
            watches.watch_data(root, lambda data, _: readings.put(f"b{data!r}"))
            watches.watch_children(root, lambda names: readings.put(f"c{names!r}"))
            assert {_next(readings) for _ in range(3)} == {"ab'1'", "bb'1'", "c[]"}
            session.set(root, b"2")
            assert {_next(readings) for _ in range(2)} == {"ab'2'", "bb'2'"}

    # D50
    def test_lasting_watches_survive_a_new_session(self, ensemble: Ensemble, root: str) -> None:
        session, other = ensemble.open(), ensemble.open()
        other.create(root, b"1")
        contents: queue.Queue[bytes | None] = queue.Queue()
        names: queue.Queue[list[str] | None] = queue.Queue()
        with _watches(session) as watches:
            watches.watch_data(root, lambda data, _: contents.put(data))
            watches.watch_children(root, names.put)
            assert (_next(contents), _next(names)) == (b"1", [])
            before = session.session_id
            ensemble.expire(session)
            other.set(root, b"2")
            other.create(f"{root}/a")
            assert (_next(contents), _next(names)) == (b"2", ["a"])
            _eventually(lambda: not session.is_away and session.session_id != before)
            other.set(root, b"3")
            assert _next(contents) == b"3"

    def test_lasting_watches_see_changes_of_an_outage(self, ensemble: Ensemble, root: str) -> None:
        session, other = ensemble.open(), ensemble.open()
        other.create(root, b"1")
        contents: queue.Queue[bytes | None] = queue.Queue()
        with _watches(session) as watches:
            watches.watch_data(root, lambda data, _: contents.put(data))
            assert _next(contents) == b"1"
            ensemble.disconnect(session)
            _eventually(lambda: session.is_away)
            other.set(root, b"2")
            ensemble.reconnect(session)
            assert _next(contents) == b"2"

    def test_a_closed_watch_is_silent_and_callbacks_run_in_one_thread(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(root, b"1")
        threads: set[str] = set()
        readings: queue.Queue[tuple[str, bytes | None]] = queue.Queue()

        def note(name: str, data: bytes | None) -> None:
            threads.add(threading.current_thread().name)
            readings.put((name, data))

        with _watches(session) as watches:
            first = watches.watch_data(root, lambda data, _: note("a", data))
            watches.watch_data(root, lambda data, _: note("b", data))
            assert {_next(readings), _next(readings)} == {("a", b"1"), ("b", b"1")}
            first.close()
            first.close()
            session.set(root, b"2")
            assert _next(readings) == ("b", b"2")
        session.set(root, b"3")
        assert readings.empty()
        assert len(threads) == 1

    def test_a_path_that_cannot_be_read_does_not_stop_other_watches(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(root, b"1")
        readings: queue.Queue[tuple[str, bytes | None]] = queue.Queue()
        with _watches(session) as watches:
            watches.watch_data(root, lambda data, _: readings.put(("good", data)))
            watches.watch_data(f"{root}//a", lambda data, _: readings.put(("bad", data)))
            assert {_next(readings), _next(readings)} == {("good", b"1"), ("bad", None)}
            session.set(root, b"2")
            assert _next(readings) == ("good", b"2")

    def test_a_failing_callback_does_not_end_its_watch(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        session.create(root, b"1")
        readings: queue.Queue[bytes | None] = queue.Queue()

        def fail(data: bytes | None, _: Any) -> None:
            readings.put(data)
            raise ValueError("a callback that fails")

        with _watches(session) as watches:
            watches.watch_data(root, fail)
            assert _next(readings) == b"1"
            session.set(root, b"2")
            assert _next(readings) == b"2"

    # --- election ---

    def test_one_candidate_leads_and_the_next_follows_it(self, ensemble: Ensemble, root: str) -> None:
        sessions = [ensemble.open() for _ in range(3)]
        elections = [Election(each, f"{root}/election", f"agent-{i}") for i, each in enumerate(sessions)]
        for place, election in enumerate(elections):
            election.join()
            _eventually(lambda place=place: len(elections[0].candidates()) == place + 1)  # type: ignore[misc]
        _eventually(lambda: elections[0].is_leader)
        assert [each.is_leader for each in elections] == [True, False, False]
        assert elections[0].candidates() == ["agent-0", "agent-1", "agent-2"]
        node = str(elections[0].node_path).rpartition("/")[2]
        assert len(node) == 32 + len("__lock__") + 10
        assert "__lock__" in node
        sessions[0].commit([CheckNode(str(elections[0].node_path)), CreateNode(f"{root}/x")])
        elections[0].leave()
        assert not elections[0].is_leader
        _eventually(lambda: elections[1].is_leader)
        sessions[1].stop()
        _eventually(lambda: elections[2].is_leader)
        for election in elections[1:]:
            election.leave()

    # D78
    def test_leadership_ends_at_suspension_and_returns_with_the_session(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        changes: queue.Queue[bool] = queue.Queue()
        election = Election(session, f"{root}/election", "agent", on_change=changes.put)
        election.join()
        assert _next(changes) is True
        ensemble.disconnect(session)
        assert _next(changes) is False
        assert not election.is_leader
        ensemble.reconnect(session)
        assert _next(changes) is True
        assert election.candidates() == ["agent"]
        election.leave()
        assert _next(changes) is False

    def test_a_candidate_whose_session_expired_is_one_again(self, ensemble: Ensemble, root: str) -> None:
        session = ensemble.open()
        changes: queue.Queue[bool] = queue.Queue()
        election = Election(session, f"{root}/election", "agent", on_change=changes.put)
        election.join()
        assert _next(changes) is True
        old_node = str(election.node_path)
        ensemble.expire(session)
        assert _next(changes) is False
        assert _next(changes) is True
        assert election.node_path != old_node
        with pytest.raises(NodeMissing):
            session.commit([CheckNode(old_node), CreateNode(f"{root}/published")])
        assert session.exists(f"{root}/published") is None
        election.leave()
