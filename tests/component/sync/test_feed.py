"""A subscriber checks every message of a feed, and receives lost files again."""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith import _native
from monolith.artifacts.delta_log import Cut, LogPosition, read_cut
from monolith.artifacts.delta_log.publish import encoded_cut
from monolith.core import storage
from monolith.core.durable_files import seal
from monolith.core.errors import ArtifactError, ClusterError, ConfigError, RetriesExhausted, ShardUnavailable
from monolith.embedding import Adagrad, Fp32, SliceSpec, TableSpec
from monolith.rpc.security import Security
from monolith.sync import read_base
from monolith.sync import subscription as subscription_module
from monolith.sync.feed_cache import FeedCache
from monolith.sync.feed_messages import PIECE_BYTES, FollowResponse
from monolith.sync.feed_pieces import CutPieces
from monolith.sync.feed_server import FeedServer
from monolith.sync.remote_feed import FeedDownload
from monolith.sync.subscription import Subscription
from monolith.testing.fakes.published import PublishedTables
from monolith.testing.processes.certificates import Authority

LONG_S = 60.0
SPEC = TableSpec("item", [SliceSpec(2, optimizer=Adagrad(learning_rate=0.5), compressor=Fp32())])


class Trainer(PublishedTables):
    def __init__(self, root: Path, weights: int = 2) -> None:
        super().__init__(root, [SPEC], {"w": np.zeros(weights)})

    def publish(self, ids: Any = (1, 2, 3)) -> Cut:
        self.tables.apply_gradients({"item": list(ids)}, {"item": np.ones((len(ids), 2), np.float32)})
        self.weights["w"] += 1
        return self.publish_now()


def wait_for(is_so: Callable[[], bool], why: Callable[[], Any] = lambda: "") -> None:
    waiting = threading.Event()
    for _ in range(int(LONG_S / 0.005)):
        if is_so():
            return
        waiting.wait(0.005)
    raise AssertionError(why())


def has_come(subscription: Subscription, cut: Cut) -> None:
    def is_there() -> bool:
        found = read_cut(subscription.folder)
        return found is not None and found.number == cut.number

    wait_for(is_there, lambda: subscription.error)


@pytest.fixture
def subscribe(tmp_path: Path) -> Iterator[Callable[..., Subscription]]:
    made: list[Subscription] = []

    def start(address: str, folder: Path = tmp_path / "cache", **options: Any) -> Subscription:
        made.append(Subscription(address, folder, **options))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.close()


def messages(root: Path, at: Any = None) -> list[FollowResponse]:
    cut = read_cut(root)
    assert cut is not None
    return list(CutPieces(root, at or {}).to(cut))


def test_no_message_is_larger_than_grpc_takes(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "published", weights=PIECE_BYTES)
    trainer.publish(range(200_000))
    found = messages(trainer.root)
    assert len(found) > 4
    assert max(message.ByteSize() for message in found) < 4 << 20
    cache = FeedCache(tmp_path / "cache")
    assert [cut.number for message in found if (cut := cache.take(message)) is not None] == [1]
    assert cache.positions() == {0: LogPosition(trainer.rows._writer.log, 1)}
    cache.close()


def test_altered_truncated_and_foreign_messages_are_refused_and_leave_the_cache(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "published")
    trainer.publish()
    cache = FeedCache(tmp_path / "cache")
    for message in messages(trainer.root):
        cache.take(message)
    before = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    trainer.publish()
    sound = messages(trainer.root, cache.positions())
    segment, cut = sound[0], sound[-1]

    def changed(message: FollowResponse, **values: Any) -> FollowResponse:
        copy = FollowResponse()
        copy.CopyFrom(message)
        for name, value in values.items():
            setattr(copy, name, value)
        if "content" in values and "crc32c" not in values:
            copy.crc32c = _native.crc32c(copy.content)
        return copy

    elsewhere = Cut(sequences={0: 2}, dense=0, folders=("../../etc",))
    other = Cut(sequences={0: 2}, dense=0, folders=("log-0000000000000000-00000-of-00001",))
    bodies = [b"{", b"\xff" * 9, encoded_cut(elsewhere), encoded_cut(other), seal({"format": "monolith.cut"}),
              seal({"format": "monolith.cut", "version": 1, "sequences": 7}),
              seal({"format": "monolith.cut", "version": 1, "sequences": {"0": 2}, "dense": "x"})]  # fmt: skip
    bases = [b"{", seal({"format": "monolith.base", "version": 1, "tables": "../../etc", "positions": {}}),
             seal({"format": "monolith.base", "version": 1, "positions": 4})]  # fmt: skip
    for wrong, why in (
        (changed(segment, crc32c=segment.crc32c ^ 1), "checksum differs"),
        (changed(segment, content=segment.content[:-1] + b"x", crc32c=segment.crc32c), "checksum differs"),
        (changed(segment, path="../../etc/passwd"), "file name is"),
        (changed(segment, path="/etc/passwd"), "file name is"),
        (changed(segment, path="base-00000000/../../x"), "file name is"),
        (changed(segment, offset=5), "out of order"),
        (changed(segment, size=3), "out of order"),
        (changed(segment, size=1 << 60), "more than"),
        (changed(segment, content=b""), "is empty"),
        *((changed(cut, content=body, size=len(body)), ".") for body in bodies),
        *((changed(cut, path="base.json", content=body, size=len(body)), ".") for body in bases),
        (cut, "before its segment"),
    ):
        cache.begin()
        with pytest.raises((ArtifactError, ClusterError), match=why):
            cache.take(wrong)
        cache.begin()
        for path, content in before.items():
            assert path.read_bytes() == content
    cache.begin()
    assert [found.number for message in sound if (found := cache.take(message)) is not None] == [2]
    with pytest.raises(ConfigError, match="in use by another process"):
        FeedCache(tmp_path / "cache")
    cache.close()


def test_bases_of_transfers_that_broke_off_do_not_pile_up(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path / "published")
    cache = FeedCache(tmp_path / "cache")

    def bases() -> list[Path]:
        return list(cache.folder.glob("base-*"))

    trainer.publish()
    for number in range(3):
        trainer.publish()
        state = trainer.publisher.publish()
        trainer.tables.save(tmp_path / f"checkpoint-{number}")
        trainer.publisher.rebase(tmp_path / f"checkpoint-{number}", state)
        trainer.publish()
        cache.begin()
        for message in messages(trainer.root):
            if message.path == "base.json":
                break
            cache.take(message)
        assert len(bases()) == 1
        cache.begin()
        assert bases() == []
    for message in messages(trainer.root):
        cache.take(message)
    cache.begin()
    base = read_base(cache.folder)
    assert base is not None
    assert bases() == [base.tables]
    (cache.folder / "base.json").write_bytes(b"damaged")
    cache.begin()
    assert bases() == []
    cache.close()


def test_a_lost_publisher_leaves_the_received_cut_and_is_connected_again(
    tmp_path: Path, subscribe: Callable[..., Subscription]
) -> None:
    trainer = Trainer(tmp_path / "published")
    first = trainer.publish()
    with FeedServer(trainer.root) as server:
        subscription = subscribe(server.address)
        assert subscription.wait_for_first(LONG_S)
        has_come(subscription, first)
        port = int(server.address.rpartition(":")[2])
    wait_for(lambda: subscription.error != "")
    assert read_cut(subscription.folder) is not None
    second = trainer.publish()
    with FeedServer(trainer.root, port=port):
        has_come(subscription, second)
        wait_for(lambda: subscription.error == "")
    segments = sorted(path.name for path in subscription.folder.glob("log-*/seg-*"))
    assert len(segments) == 2, "the first did not come twice, and is still there"


def test_an_absent_publisher_is_reported_and_tried_again(
    tmp_path: Path, subscribe: Callable[..., Subscription]
) -> None:
    subscription = subscribe("127.0.0.1:1")
    assert subscription.wait_for_first(LONG_S)
    assert "127.0.0.1:1" in subscription.error
    wait_for(lambda: subscription.failures > 1)
    with pytest.raises(ConfigError, match="expected host:port"):
        Subscription("here", tmp_path / "x")
    with pytest.raises(ConfigError, match="port is 70000"):
        FeedServer(tmp_path, port=70_000)


class Pauses(threading.Event):
    """Notes the pauses between connections, and ends the subscription after some."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        if len(self.seconds) == self._most:
            self.set()
        return self.is_set()


def test_a_connection_that_breaks_after_a_cut_is_made_again_without_a_long_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = Subscription("127.0.0.1:1", tmp_path / "cache")
    pauses = Pauses(8)

    def receive() -> None:
        if len(pauses.seconds) == 6:
            subscription.error = ""  # as after a cut
        raise ShardUnavailable("the publisher was killed")

    monkeypatch.setattr(subscription, "_ended", pauses)
    monkeypatch.setattr(subscription, "_receive", receive)
    subscription._run()
    assert pauses.seconds == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 0.1, 0.2]
    subscription.close()


def test_a_cache_on_a_damaged_disk_keeps_no_thread_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = Subscription("127.0.0.1:1", tmp_path / "cache")
    pauses, attempts = Pauses(3), 0

    def begin() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 100:
            pauses.set()
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(subscription, "_ended", pauses)
    monkeypatch.setattr(subscription._cache, "begin", begin)
    subscription.renew()
    subscription._run()
    assert attempts == len(pauses.seconds) == 3
    assert "Read-only file system" in subscription.error
    subscription.close()


def test_a_download_that_fills_the_disk_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_disk(url: str, target: Path) -> None:
        target.write_bytes(b"some of the bytes")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "download_file", fill_disk)
    feed = FeedDownload("s3://bucket/published", tmp_path / "cache")
    with pytest.raises(RetriesExhausted, match="No space left"):
        feed._get("s3://bucket/published/gen", "base.json", is_kept=False)
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_token_is_asked_for(tmp_path: Path, subscribe: Callable[..., Subscription]) -> None:
    trainer = Trainer(tmp_path / "published")
    cut = trainer.publish()
    with FeedServer(trainer.root, security=Security(token="s3cret")) as server:
        stranger = subscribe(server.address, tmp_path / "stranger")
        assert stranger.wait_for_first(LONG_S)
        assert "the bearer token is missing or wrong" in stranger.error
        assert read_cut(stranger.folder) is None
        has_come(subscribe(server.address, security=Security(token="s3cret")), cut)


def test_mutual_tls_admits_only_subscribers_with_certificates(
    tmp_path: Path, subscribe: Callable[..., Subscription], authority: Authority, tmp_path_factory: Any
) -> None:
    trainer = Trainer(tmp_path / "published")
    cut = trainer.publish()
    ca, stranger = authority.ca_file, Authority(tmp_path_factory.mktemp("stranger"))
    named, own = authority.sign("trainer", "DNS:trainer.example"), authority.sign("follower", "DNS:follower")
    right = Security(ca_file=ca, **own._asdict(), token="s3cret", server_name="trainer.example")
    with FeedServer(trainer.root, security=Security(**named._asdict(), ca_file=ca, token="s3cret")) as server:
        for number, (changes, why) in enumerate((
            ({"ca_file": stranger.ca_file}, "its certificate is not of the authority in ca_file"),
            ({"server_name": ""}, "its certificate is for another name; .* server_name"),
            ({"ca_file": None, "cert_file": None, "key_file": None}, r"TLS.*ca_file"),
            ({"cert_file": None, "key_file": None}, r"client certificate.*cert_file"),
            (stranger.sign("follower", "DNS:follower")._asdict(), "one that its authority signed"),
            ({"ca_file": tmp_path / "absent"}, "ca_file is '.*absent', which cannot be read"),
            ({"token": ""}, "the bearer token is missing or wrong; give the server's token"),
            ({"token": "s3cres"}, "the bearer token is missing or wrong; give the server's token"),
        )):  # fmt: skip
            refused = subscribe(server.address, tmp_path / str(number), security=replace(right, **changes))
            assert refused.wait_for_first(LONG_S)
            assert re.search(why, refused.error), refused.error
            refused.close()
            assert read_cut(refused.folder) is None
        has_come(subscribe(server.address, security=right), cut)
    with FeedServer(trainer.root) as plain:
        refused = subscribe(plain.address, tmp_path / "plain", security=right)
        assert refused.wait_for_first(LONG_S)
        assert "it has no TLS; leave ca_file out" in refused.error


def test_a_subscriber_behind_the_log_gets_the_base_first_and_segments_do_not_pile_up(
    tmp_path: Path, subscribe: Callable[..., Subscription], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_module, "_RENEWED_BYTES", 1)
    trainer = Trainer(tmp_path / "published")
    with FeedServer(trainer.root, poll_s=0.002) as server:
        subscription = subscribe(server.address)
        has_come(subscription, trainer.publish())
        for number in range(12):
            has_come(subscription, trainer.publish([number]))
        state = trainer.publisher.publish()
        trainer.tables.save(tmp_path / "checkpoint")
        trainer.publisher.rebase(tmp_path / "checkpoint", state)
        cut = trainer.publish([7])
        has_come(subscription, cut)
        wait_for(lambda: read_base(subscription.folder) is not None, lambda: subscription.error)
        base = read_base(subscription.folder)
        assert base is not None
        wait_for(lambda: len(list(subscription.folder.glob("log-*/seg-*"))) <= 2)
        assert base.tables.parent == subscription.folder
        late = subscribe(server.address, tmp_path / "late")
        has_come(late, cut)
        assert read_base(late.folder) is not None
        has_come(subscription, trainer.publish([8]))
    assert len(list((subscription.folder / "dense").glob("*.json"))) <= 3
