"""The native data plane in one process: responses of a shard, with and without frames, and refused clients."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from monolith import _native
from monolith.core.errors import (
    CapacityExceeded,
    ClusterError,
    ConfigError,
    DimensionMismatch,
    RpcTimeout,
    ShardUnavailable,
    SnapshotCorrupt,
)
from monolith.embedding import Adagrad, MultiTable, Sgd, SliceSpec, TableSpec
from monolith.embedding.admission import ProbabilisticFilter
from monolith.embedding.initializers import RandomUniform

TOKEN = b"a token"
NAMES, DIMS = ["item", "user"], [2, 5]
HASH = _native.ps_tables_hash(NAMES, DIMS)
PULL, PUSH, HELLO, ERROR = 2, 3, 1, 255
TIMEOUT_MS = 20_000


def specs(max_bytes: int | None = None) -> list[TableSpec]:
    return [
        TableSpec("item", [SliceSpec(2, optimizer=Sgd(learning_rate=1.0))], max_bytes=max_bytes),
        TableSpec(
            "user",
            [SliceSpec(4, optimizer=Adagrad(learning_rate=0.1)), SliceSpec(1, optimizer=Sgd(learning_rate=1.0))],
            max_bytes=max_bytes,
        ),
    ]


class Server:
    """A shard of the two tables behind a listener."""

    def __init__(
        self, path: Path, index: int = 0, count: int = 1, max_bytes: int | None = None, **options: Any
    ) -> None:
        self.tables = MultiTable(specs(max_bytes))
        self.shard = _native.PsShard(index, count, [self.tables[name]._native for name in NAMES], NAMES)
        self.listener = _native.PsListener(self.shard, unix_path=str(path), token=TOKEN, **options)

    def connection(self, **changes: Any) -> _native.PsConnection:
        hello = {"shard": self.shard.index, "shards": self.shard.count, "tables_hash": HASH} | changes
        return _native.PsConnection(self.listener.address, hello.pop("token", TOKEN), TIMEOUT_MS, **hello)


class Client:
    """All servers; pushes numbered upwards."""

    def __init__(self, servers: list[Server], number: int = 1) -> None:
        self.connections = [server.connection() for server in servers]
        self.fan_out = _native.PsFanOut(self.connections, DIMS)
        self.number, self.sequence = number, 0

    def pull(self, ids: list[NDArray[np.int64]], half: bool = False) -> list[NDArray[np.float32]]:
        rows = [np.full((len(keys), dim), np.nan, np.float32) for keys, dim in zip(ids, DIMS, strict=True)]
        self.fan_out.pull(ids, rows, half=half, timeout_ms=TIMEOUT_MS)
        return rows

    def push(
        self, ids: list[NDArray[np.int64]], grads: list[NDArray[np.float32]], half: bool = False, **changes: Any
    ) -> None:
        self.sequence += 1
        call = {"client": self.number, "sequence": self.sequence, "time_s": 5, "step": 3} | changes
        self.fan_out.push(ids, grads, ones(ids), RATES, half=half, timeout_ms=TIMEOUT_MS, **call)


RATES = [np.array([1.0], np.float32), np.array([0.1, 1.0], np.float32)]


def ones(ids: list[NDArray[np.int64]]) -> list[NDArray[np.uint32]]:
    return [np.ones(len(keys), np.uint32) for keys in ids]


def some(*ids: int) -> list[NDArray[np.int64]]:
    return [np.array(ids, np.int64), np.array(ids, np.int64)]


def grads_for(ids: list[NDArray[np.int64]], value: float = 1.0) -> list[NDArray[np.float32]]:
    return [np.full((len(keys), dim), value, np.float32) for keys, dim in zip(ids, DIMS, strict=True)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(index: int = 0, count: int = 1, **options: Any) -> Server:
        servers.append(Server(tmp_path / f"s{len(servers)}", index, count, **options))
        return servers[-1]

    yield start
    for server in servers:
        server.listener.close()


def until(holds: Callable[[], bool]) -> None:
    """Wait for another thread's doing; a test that never gets there fails."""
    turn = threading.Event()
    for _ in range(2000):
        if holds():
            return
        turn.wait(0.005)
    pytest.fail("it never came to pass")


# --- the same as in this process ---


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("half", [False, True])
def test_rows_equal_those_of_local_tables(start: Callable[..., Server], seed: int, count: int, half: bool) -> None:
    client = Client([start(index, count) for index in range(count)])
    local = MultiTable(specs())
    chance = np.random.default_rng(seed)
    for step in range(6):
        ids = [chance.choice(2**63, 300).astype(np.int64) - step % 2 * 2**62 for _ in NAMES]
        # Values that a half holds exactly: then even the bytes are equal.
        grads = [chance.integers(-8, 8, (300, dim)).astype(np.float32) / 4 for dim in DIMS]
        client.push(ids, grads, half)
        named = dict(zip(NAMES, ids, strict=True))
        local.apply_gradients(
            named, dict(zip(NAMES, grads, strict=True)), dict(zip(NAMES, RATES, strict=True)), time_s=5, step=3
        )
        expected = local.lookup(named)
        for name, rows in zip(NAMES, client.pull(ids), strict=True):
            assert np.array_equal(rows, expected[name])
        for name, rows in zip(NAMES, client.pull(ids, half=True), strict=True):
            assert np.array_equal(rows, expected[name].astype(np.float16).astype(np.float32))


def test_one_server_keeps_the_same_bytes_as_local_tables_with_filter_and_state(tmp_path: Path, seed: int) -> None:
    spec = TableSpec(
        "t",
        [SliceSpec(3, optimizer=Adagrad(learning_rate=0.1), initializer=RandomUniform(-1, 1))],
        admission=ProbabilisticFilter(),
        slot_thresholds={0: 3},
        deterministic=True,
    )
    remote, local = MultiTable([spec]), MultiTable([spec])
    shard = _native.PsShard(0, 1, [remote["t"]._native], ["t"])
    listener = _native.PsListener(shard, unix_path=str(tmp_path / "s"), token=TOKEN)
    connection = _native.PsConnection(
        listener.address, TOKEN, TIMEOUT_MS, shard=0, shards=1, tables_hash=shard.tables_hash
    )
    fan_out = _native.PsFanOut([connection], [3])
    chance = np.random.default_rng(seed)
    rates = np.array([0.1], np.float32)
    for step in range(20):
        ids = chance.choice(4000, 1000, replace=False).astype(np.int64)
        grads = chance.normal(size=(1000, 3)).astype(np.float32)
        counts = chance.integers(1, 4, 1000).astype(np.uint32)
        fan_out.push(
            [ids], [grads], [counts], [rates], client=1, sequence=step, time_s=step, step=step, timeout_ms=TIMEOUT_MS
        )
        local.apply_gradients({"t": ids}, {"t": grads}, {"t": rates}, step, step, counts={"t": counts})
    everything = np.arange(4000, dtype=np.int64)
    ours, theirs = (tables["t"]._native.raw_rows(everything) for tables in (remote, local))
    assert 0 < len(theirs[0]) < 4000
    for one, other in zip(ours, theirs, strict=True):
        assert one.tobytes() == other.tobytes()
    listener.close()


@settings(max_examples=40)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50), st.integers(1, 2**64 - 1))
def test_the_shard_of_an_id_is_its_unsigned_remainder(ids: list[int], shards: int) -> None:
    found = _native.ps_shard_of(np.array(ids, np.int64), shards).view(np.uint64)
    assert found.tolist() == [id % 2**64 % shards for id in ids]


def test_absent_ids_are_zeros_and_empty_tables_are_left_alone(start: Callable[..., Server]) -> None:
    server = start()
    client = Client([server])
    rows = client.pull([np.array([1, 2], np.int64), np.array([], np.int64)])
    assert not rows[0].any()
    assert rows[1].shape == (0, 5)
    client.fan_out.pull([None, None], [None, None], timeout_ms=TIMEOUT_MS)
    until(lambda: server.shard.stats()["pull"]["count"] == 1)  # counted once the last byte is on its way


def test_a_push_with_no_ids_still_moves_the_clock_of_every_shard(start: Callable[..., Server]) -> None:
    servers = [start(index, 2) for index in range(2)]
    client = Client(servers)
    client.push(some(0), grads_for(some(0)), time_s=77)
    assert [server.tables["user"].max_time_s for server in servers] == [77, 77]
    assert [len(server.tables["user"]) for server in servers] == [1, 0]


def test_a_table_left_out_of_a_push_is_not_touched(start: Callable[..., Server]) -> None:
    server = start()
    ids = np.array([1], np.int64)
    Client([server]).fan_out.push(
        [ids, None],
        [np.ones((1, 2), np.float32), None],
        [np.ones(1, np.uint32), None],
        [RATES[0], None],
        client=1,
        sequence=1,
        time_s=9,
        step=0,
        timeout_ms=TIMEOUT_MS,
    )
    assert server.tables["item"].max_time_s == 9
    assert server.tables["user"].max_time_s == 0


def pull_payload(ids: list[NDArray[np.int64]]) -> bytes:
    head = struct.pack("<I", len(ids)) + b"".join(struct.pack("<II", i, len(keys)) for i, keys in enumerate(ids))
    return head.ljust(-len(head) % 8 + len(head), b"\0") + b"".join(keys.tobytes() for keys in ids)


def push_payload(
    ids: list[NDArray[np.int64]], grads: list[NDArray[np.float32]], client: int = 1, sequence: int = 1
) -> bytes:
    head = struct.pack("<QQqqI", client, sequence, 5, 3, len(ids))
    parts = [head + b"".join(struct.pack("<III", i, len(keys), len(RATES[i])) for i, keys in enumerate(ids))]
    for keys, counts, rates, rows in zip(ids, ones(ids), RATES, grads, strict=True):
        parts += [keys.tobytes(), counts.tobytes(), rates.tobytes(), rows.tobytes()]
    return b"".join(part.ljust(-len(part) % 8 + len(part), b"\0") for part in parts)


def test_payloads_mean_the_same_without_a_socket(start: Callable[..., Server]) -> None:
    server = start()
    ids = some(1, 2, 3)
    assert server.shard.push(push_payload(ids, grads_for(ids, -1.0))) == b""
    over_frames = Client([server]).pull(ids)
    reply = server.shard.pull(pull_payload(ids))
    assert reply == b"".join(rows.tobytes() for rows in over_frames)
    shifted = memoryview(b"x" + pull_payload(ids))[1:]  # at an odd address
    assert server.shard.pull(shifted) == reply
    assert server.shard.pull(bytearray(pull_payload(ids)), half=True) == b"".join(
        rows.astype(np.float16).tobytes() for rows in over_frames
    )


def test_a_bad_payload_is_a_config_error_without_a_socket(start: Callable[..., Server]) -> None:
    shard = start().shard
    with pytest.raises(ConfigError, match="ends early"):
        shard.pull(b"")
    with pytest.raises(ConfigError, match="names no table"):
        shard.pull(bytes(8))
    with pytest.raises(ConfigError, match="ends early"):
        shard.push(push_payload(some(1), grads_for(some(1)))[:-8])
    with pytest.raises(RpcTimeout, match="deadline"):
        shard.pull(pull_payload(some(1)), timeout_ms=0)
    with pytest.raises(TypeError):
        shard.pull("text")


# --- exactly once ---


def test_a_repeated_push_is_applied_once_also_after_a_restart(start: Callable[..., Server]) -> None:
    first, second = start(), start()
    ids, grads = some(1), grads_for(some(1), -1.0)
    for server in (first, first):
        server.shard.push(push_payload(ids, grads, client=4, sequence=9))
    assert first.tables.lookup({"item": [1]})["item"].tolist() == [[1.0, 1.0]]
    assert first.shard.stats()["repeated_pushes"] == 1
    second.shard.restore_client_marks(first.shard.client_marks())
    Client([second], 4).push(ids, grads, sequence=9)
    assert len(second.tables["item"]) == 0, "the log that holds the marks holds the rows too"
    with pytest.raises(SnapshotCorrupt, match="end early"):
        second.shard.restore_client_marks(b"\1")


def test_a_push_below_the_window_is_refused(start: Callable[..., Server]) -> None:
    client = Client([start()])
    client.push(some(1), grads_for(some(1)), sequence=5000)
    with pytest.raises(ClusterError, match="more than 4096 behind") as caught:
        client.push(some(1), grads_for(some(1)), sequence=903)
    assert type(caught.value) is ClusterError
    assert not caught.value.retryable
    assert not failures_of(caught.value)[0].is_surely_not_applied


def test_no_push_is_applied_while_pushes_are_paused(start: Callable[..., Server]) -> None:
    server = start()
    client = Client([server])
    thread = threading.Thread(target=client.push, args=(some(1), grads_for(some(1), -1.0)))
    with server.shard.pause_pushes():
        marks = server.shard.client_marks()
        thread.start()
        until(lambda: server.listener.connections == 1)
        assert not client.pull(some(1))[0].any(), "pulls go on"
        assert server.shard.client_marks() == marks
    thread.join()
    assert client.pull(some(1))[0].tolist() == [[1.0, 1.0]]
    assert server.shard.client_marks() != marks


def test_many_threads_add_up(start: Callable[..., Server]) -> None:
    servers = [start(index, 2) for index in range(2)]
    shared = Client(servers)
    ids = [np.arange(2000, dtype=np.int64), np.arange(0, dtype=np.int64)]

    def work(number: int) -> None:
        for sequence in range(10):
            grads = grads_for(ids, -1.0)
            shared.fan_out.push(
                ids, grads, ones(ids), RATES, client=number, sequence=sequence, time_s=1, step=1, timeout_ms=TIMEOUT_MS
            )
            shared.pull(ids)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (shared.pull(ids)[0] == 40).all()


# --- errors ---


def failures_of(error: BaseException) -> tuple[_native.PsFailure, ...]:
    found = getattr(error, "failures")  # noqa: B009  the classes of the tree do not know it
    assert isinstance(found, tuple)
    return found


def test_an_engine_error_is_raised_as_its_class_by_the_client(start: Callable[..., Server]) -> None:
    server = start(max_bytes=1 << 20)
    client = Client([server])
    many = [np.arange(100_000, dtype=np.int64), np.arange(0, dtype=np.int64)]
    with pytest.raises(CapacityExceeded, match="max_bytes 1048576") as caught:
        client.push(many, grads_for(many))
    (failure,) = failures_of(caught.value)
    assert failure.address == server.listener.address
    assert server.listener.address in str(caught.value)
    assert (failure.server, failure.kind, failure.error) == (0, "remote", "CapacityExceeded")
    assert (failure.may_retry, failure.is_surely_not_applied) == (False, True)
    assert len(server.tables["item"]) == 0
    client.push(some(1), grads_for(some(1)), sequence=1)
    assert len(server.tables["item"]) == 1, "the refused push was not remembered"


def test_one_failing_server_is_named_and_its_part_alone_is_done_again(start: Callable[..., Server]) -> None:
    servers = [start(0, 2), start(1, 2, max_bytes=1 << 20)]
    client = Client(servers)
    ids = [np.arange(100_000, dtype=np.int64), np.arange(0, dtype=np.int64)]
    with pytest.raises(CapacityExceeded) as caught:
        client.push(ids, grads_for(ids, -1.0), sequence=1)
    assert [failure.server for failure in failures_of(caught.value)] == [1]
    fewer = [np.array([0, 1], np.int64), np.arange(0, dtype=np.int64)]
    client.push(fewer, grads_for(fewer, -1.0), sequence=1)
    assert client.pull(fewer)[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_an_address_without_a_listener_is_a_retryable_error_that_names_it(tmp_path: Path) -> None:
    for address in (f"unix:{tmp_path}/none", "tcp:127.0.0.1:1"):
        connection = _native.PsConnection(address, TOKEN, TIMEOUT_MS, shard=0, shards=1, tables_hash=HASH)
        with pytest.raises(ShardUnavailable, match=address) as caught:
            connection.connect()
        assert caught.value.retryable
        (failure,) = failures_of(caught.value)
        assert (failure.kind, failure.is_surely_not_applied) == ("refused", True)


def test_a_server_that_never_answers_is_a_timeout(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        connection = _native.PsConnection(f"unix:{tmp_path}/silent", TOKEN, 50, shard=0, shards=1, tables_hash=HASH)
        with pytest.raises(RpcTimeout, match="no connection within") as caught:
            connection.connect()
        assert failures_of(caught.value)[0].is_surely_not_applied


def test_a_server_that_talks_nonsense_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "odd"))
        server.listen()

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(100)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        connection = _native.PsConnection(f"unix:{tmp_path}/odd", TOKEN, TIMEOUT_MS, shard=0, shards=1, tables_hash=1)
        with pytest.raises(ShardUnavailable, match="same release"):
            connection.connect()
        thread.join()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token": b"another"}, "token is wrong"),
        ({"token": b""}, "token is wrong"),
        ({"shard": 1, "shards": 2}, "this is shard 0 of 1, not 1 of 2"),
        ({"tables_hash": HASH ^ 1}, "other tables"),
    ],
)
def test_a_client_with_a_wrong_hello_is_refused_with_the_reason(
    start: Callable[..., Server], changes: dict[str, Any], reason: str
) -> None:
    server = start()
    with pytest.raises(ClusterError, match=reason) as caught:
        server.connection(**changes).connect()
    assert not caught.value.retryable
    until(lambda: server.listener.connections == 0)
    assert server.connection().connect() == server.shard.instance


def test_wrong_arguments_are_refused_before_anything_is_sent(start: Callable[..., Server]) -> None:
    client = Client([start()])
    ids, grads = some(1, 2), grads_for(some(1, 2))
    with pytest.raises(DimensionMismatch, match=r"shape \(2, 5\), need \(2, 2\)"):
        client.fan_out.pull(ids, grads[::-1], timeout_ms=1)
    with pytest.raises(DimensionMismatch, match="ids has 1 entries, there are 2 tables"):
        client.fan_out.pull(ids[:1], grads, timeout_ms=1)
    with pytest.raises(ConfigError, match="rows of table number 1 is None"):
        client.fan_out.pull(ids, [grads[0], None], timeout_ms=1)
    with pytest.raises(ConfigError, match="timeout_ms is 0"):
        client.fan_out.pull(ids, grads, timeout_ms=0)
    with pytest.raises(TypeError):
        client.fan_out.pull([keys.astype(np.int32) for keys in ids], grads, timeout_ms=1)
    with pytest.raises(ConfigError, match="time_s is -1"):
        client.push(ids, grads, time_s=-1)
    with pytest.raises(ConfigError, match="step is -2"):
        client.push(ids, grads, step=-2)
    with pytest.raises(ConfigError, match="not understood"):
        _native.PsConnection("http://x", TOKEN, 1, shard=0, shards=1, tables_hash=0)


# --- hostile and broken peers ---


def frame(payload: bytes, kind: int, *, length: int | None = None, flags: int = 0, timeout_ms: int = 5000) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack("<IHHQII", size, kind, flags, 1, timeout_ms, 0) + payload


def hello(magic: bytes = b"monopsv1", version: int = 1, token: bytes = TOKEN) -> bytes:
    return frame(magic + struct.pack("<IIIIQ", version, len(token), 0, 1, HASH) + token, HELLO)


def dial(server: Server) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(30)
    peer.connect(server.listener.address.removeprefix("unix:"))
    return peer


def greeted(server: Server) -> socket.socket:
    peer = dial(server)
    peer.sendall(hello())
    assert len(receive(peer, 40)) == 40
    return peer


def receive(peer: socket.socket, most: int = 1 << 20) -> bytes:
    """All that comes until the server closes, or so many bytes."""
    got = b""
    while len(got) < most and (piece := peer.recv(most - len(got))):
        got += piece
    return got


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", b""),
        (b"\xff" * 64, b""),
        (frame(b"", PULL), b""),
        (frame(b"", HELLO, length=1 << 20), b""),
        (hello(magic=b"monopsv2"), b"another protocol"),
        (hello(version=2), b"version 2"),
        (hello(token=b"?"), b"token is wrong"),
        (frame(hello()[24:-1], HELLO), b"length is wrong"),
        (frame(b"short", HELLO), b"ends early"),
    ],
)
def test_a_client_without_a_valid_hello_is_disconnected(
    start: Callable[..., Server], sent: bytes, answer: bytes
) -> None:
    server = start()
    with dial(server) as peer:
        peer.sendall(sent)
        try:
            got = receive(peer)
        except ConnectionResetError:  # the kernel dropped unread bytes
            got = b""
        assert answer in got
        assert bool(got) == bool(answer)
    until(lambda: server.listener.connections == 0)


@pytest.mark.parametrize(
    "sent",
    [
        frame(b"", PULL, length=(256 << 20) + 1),
        frame(b"", PULL, length=2**32 - 1),
        frame(b"", 77),
        frame(b"", HELLO),
        frame(b"", PULL, flags=8),
        b"\0" * 24,
        b"\xff" * 24,
    ],
)
def test_garbage_after_the_greeting_closes_the_connection(start: Callable[..., Server], sent: bytes) -> None:
    server = start()
    with greeted(server) as peer:
        peer.sendall(sent)
        assert receive(peer) == b""
    until(lambda: server.listener.connections == 0)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "ends early"),
        (bytes(8), "names no table"),
        (struct.pack("<IIII", 1, 9, 0, 0), "table number 9"),
        (struct.pack("<IIII", 1, 0, 2**32 - 1, 0), "ends early"),
        (pull_payload(some(1)) + bytes(8), "8 bytes more"),
    ],
)
def test_a_bad_request_is_answered_and_the_connection_continues(
    start: Callable[..., Server], payload: bytes, reason: str
) -> None:
    server = start()
    with greeted(server) as peer:
        peer.sendall(frame(payload, PULL))
        size, kind, flags, request, _, _ = struct.unpack("<IHHQII", receive(peer, 24))
        body = receive(peer, size)
        assert (kind, request) == (ERROR, 1)
        assert flags == 4, "not applied, and no use in a retry"
        assert struct.unpack("<I", body[:4]) == (1,)
        assert reason in body[4:].decode()
        peer.sendall(frame(pull_payload(some(1)), PULL))
        assert struct.unpack("<IH", receive(peer, 24)[:6]) == (7 * 4, 130)


def test_a_peer_that_stops_in_the_middle_is_cut_off_when_its_time_is_up(start: Callable[..., Server]) -> None:
    server = start()
    with greeted(server) as peer:
        peer.sendall(frame(pull_payload(some(1))[:-8], PULL, length=len(pull_payload(some(1))), timeout_ms=30))
        assert receive(peer) == b""
    with greeted(server) as peer:  # asks for much and takes nothing
        many = [np.arange(0, dtype=np.int64), np.arange(600_000, dtype=np.int64)]
        peer.sendall(frame(pull_payload(many), PULL, timeout_ms=300))
        until(lambda: server.listener.connections == 0)


def test_a_push_of_a_peer_that_has_left_is_not_applied(start: Callable[..., Server]) -> None:
    server = start()
    with server.shard.pause_pushes(), greeted(server) as blocker, greeted(server) as peer:
        # The blocker's push waits for the pause; the other peer's lies in its socket when it leaves.
        blocker.sendall(frame(push_payload(some(1), grads_for(some(1)), sequence=1), PUSH))
        peer.sendall(frame(push_payload(some(2), grads_for(some(2)), sequence=2), PUSH, timeout_ms=1))
        peer.close()
        left_s = time.monotonic()
        until(lambda: time.monotonic() > left_s + 0.1)  # the time of its push is up
    until(lambda: server.listener.connections == 0)
    assert server.tables["item"].lookup([2]).tolist() == [[0.0, 0.0]]


def test_too_large_a_call_is_refused_with_the_limit(start: Callable[..., Server]) -> None:
    client = Client([start(max_frame_bytes=10_000)])
    for count in (300, 2000):  # a reply, a request that is too large
        many = [np.arange(0, dtype=np.int64), np.arange(count, dtype=np.int64)]
        with pytest.raises(ConfigError, match=r"max_frame_bytes is 10000; (ask for|send) fewer ids"):
            client.pull([many[0], np.repeat(many[1], 2)])
    assert client.pull(some(1))[0].shape == (1, 2)


def test_a_connection_past_the_limit_is_refused_with_the_reason(start: Callable[..., Server]) -> None:
    server = start(max_connections=1)
    first, second = server.connection(), server.connection()
    first.connect()
    with pytest.raises(ShardUnavailable, match="1 connections, its limit"):
        second.connect()
    first.close()
    until(lambda: server.listener.connections == 0)
    second.connect()


# --- nothing is left behind ---


def held() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def test_neither_clients_nor_listeners_leave_threads_or_files_behind(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    first = start()
    Client([first]).pull(some(1))  # lazily created objects exist from here on
    until(lambda: first.listener.connections == 0)
    before = held()
    for _ in range(3):
        server = Server(tmp_path / "again")
        clients = [Client([server], number) for number in range(5)]
        for client in clients:
            client.push(some(1, 2), grads_for(some(1, 2)))
        with greeted(server) as peer:
            peer.sendall(b"half a hea")
        for client in clients:
            client.connections[0].close()
        until(lambda server=server: server.listener.connections == 0)  # type: ignore[misc]
        clients[0].pull(some(1))
        server.listener.close()
        server.listener.close()
        with pytest.raises(ShardUnavailable):
            clients[0].pull(some(1))
        assert not (tmp_path / "again").exists()
        del server, clients, client, peer
    # Other tests of the process may close descriptors meanwhile.
    until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


def test_a_socket_file_is_private_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = Server(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(OSError, match="cannot listen at"):
        Server(path)
    assert Client([server]).pull(some(1))[0].shape == (1, 2), "the living one was not disturbed"
    server.listener.close()


def test_a_listener_has_a_byte_budget(start: Callable[..., Server], tmp_path: Path) -> None:
    shard = start().shard
    with pytest.raises(ConfigError, match="max_inflight_bytes is 0"):
        _native.PsListener(shard, host="127.0.0.1", token=TOKEN, max_inflight_bytes=0)
    listener = _native.PsListener(shard, unix_path=str(tmp_path / "small"), token=TOKEN, max_inflight_bytes=1)
    assert listener.inflight_bytes == 0
    listener.close()


def test_an_error_of_the_system_has_errno_and_file_name(start: Callable[..., Server], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as failure:
        _native.PsListener(start().shard, unix_path=str(tmp_path / "no" / "such"), token=TOKEN)
    assert failure.value.errno == errno.ENOENT
    with pytest.raises(FileNotFoundError) as failure:
        _native.read_delta_header(str(tmp_path / "absent"))
    assert (failure.value.errno, failure.value.filename) == (errno.ENOENT, str(tmp_path / "absent"))
    assert "cannot open: No such file or directory" in str(failure.value)


def test_a_listener_raises_for_an_invalid_address(start: Callable[..., Server], tmp_path: Path) -> None:
    shard = start().shard
    with pytest.raises(ConfigError, match="give one of them"):
        _native.PsListener(shard, token=TOKEN)
    with pytest.raises(ConfigError, match="give 1 to 107"):
        _native.PsListener(shard, unix_path="/" + "x" * 200, token=TOKEN)
    with pytest.raises(OSError, match=r"cannot listen at.*unix:"):
        _native.PsListener(shard, unix_path=str(tmp_path / "no" / "such"), token=TOKEN)
    with pytest.raises(ConfigError, match="max_frame_bytes is 5"):
        _native.PsListener(shard, host="127.0.0.1", token=TOKEN, max_frame_bytes=5)
    with pytest.raises(ConfigError, match="token has 2000 bytes"):
        _native.PsListener(shard, host="127.0.0.1", token=b"x" * 2000)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_tcp_serves_like_a_socket_file(start: Callable[..., Server], host: str) -> None:
    server = start()
    try:
        listener = _native.PsListener(server.shard, host=host, token=TOKEN)
    except OSError as error:  # a machine without IPv6
        pytest.skip(str(error))
    assert not listener.address.endswith(":0")
    connection = _native.PsConnection(listener.address, TOKEN, TIMEOUT_MS, shard=0, shards=1, tables_hash=HASH)
    fan_out = _native.PsFanOut([connection], DIMS)
    Client([server]).push(some(1), grads_for(some(1), -1.0))
    rows = grads_for(some(1), 0.0)
    fan_out.pull(some(1), rows, timeout_ms=TIMEOUT_MS)
    assert rows[0].tolist() == [[1.0, 1.0]]
    assert connection.instance == server.shard.instance
    assert connection.idle_sockets == 1
    listener.close()


def test_the_statistics_count_calls_ids_and_rows(start: Callable[..., Server]) -> None:
    server = start()
    client = Client([server])
    client.push(some(1, 2), grads_for(some(1, 2)))
    client.pull(some(1, 2, 3))
    with pytest.raises(ConfigError):
        client.push(some(1), grads_for(some(1)), time_s=-1)
    until(lambda: server.shard.stats()["pull"]["count"] == 1)
    stats = server.shard.stats()
    assert stats["pull"]["errors"] == 0
    assert (stats["push"]["count"], stats["push"]["errors"]) == (2, 1)
    for kind in ("pull", "push"):
        assert sum(stats[kind]["buckets"]) == stats[kind]["count"]
        assert len(stats[kind]["buckets"]) == len(stats[kind]["bounds_us"]) + 1
    assert stats["clients"] == 1
    assert stats["tables"]["user"] == {
        "rows": 2,
        "bytes": server.tables["user"].memory_bytes,
        "ids_pulled": 3,
        "ids_pushed": 2,
    }
