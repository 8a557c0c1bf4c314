"""Versions that follow, with models of one table and no requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from monolith.core.errors import ConfigError
from monolith.embedding import Adagrad, Fp32, MultiTable, SliceSpec, TableSpec
from monolith.serving.follow.following import FeedSource, Following, parse_sources
from monolith.sync.feed_server import FeedServer
from monolith.telemetry.text import render
from monolith.testing.eventually import eventually
from monolith.testing.fakes.clock import FakeClock
from monolith.testing.fakes.published import FollowedTables, PublishedTables

SPEC = TableSpec("item", [SliceSpec(1, optimizer=Adagrad(learning_rate=0.5), compressor=Fp32())])


class Version(FollowedTables):
    """The part of a ``Servable`` that ``Following`` uses."""

    def __init__(self, folder: Path) -> None:
        super().__init__(MultiTable([SPEC]).to_serving())
        self.name, self.version, self.is_part = folder.parent.name, int(folder.name), False
        self._closers: list[Callable[[], None]] = []

    def mark_following(self) -> None:
        pass

    def before_close(self, act: Callable[[], None]) -> None:
        self._closers.append(act)

    def close(self) -> None:
        for act in self._closers:
            act()

    def shown(self) -> list[float]:
        return [*self.tables["item"].lookup([1])[0].tolist(), *self.weights.get("w", [])]


class Trainer(PublishedTables):
    def __init__(self, root: Path, clock: FakeClock) -> None:
        super().__init__(root, [SPEC], {"w": [0.0]}, clock=clock)

    def publish(self, value: float, time_s: int = 0) -> None:
        self.tables["item"].assign([1], [[value]], time_s=time_s)
        self.weights["w"][0] = value
        self.publish_now()


def follow(sources: Mapping[str, Path], clock: FakeClock) -> Following:
    return Following(Version, sources, clock=clock, poll_s=0.001)  # type: ignore[arg-type]


def number(following: Following, name: str) -> float:
    (line,) = [line for line in render(following.samples()).splitlines() if line.startswith(name)]
    return float(line.rpartition(" ")[2])


def test_a_version_is_at_the_newest_cut_when_it_is_loaded_and_follows(tmp_path: Path) -> None:
    clock = FakeClock(now_s=1000.0)
    trainer = Trainer(tmp_path, clock)
    trainer.publish(2.0, time_s=990)
    clock.sleep_s(1.5)
    following = follow({"": tmp_path}, clock)
    version: Any = following(Path("clicks/7"))
    assert version.shown() == [2.0, 2.0]
    assert number(following, 'monolith_sync_cut{model="clicks",version="7"}') == 1
    assert number(following, 'monolith_sync_sequence{model="clicks",version="7",shard="0"}') == 1
    assert number(following, 'monolith_sync_publish_to_servable_seconds_sum{model="clicks"}') == 1.5
    assert number(following, 'monolith_event_to_servable_seconds_sum{model="clicks"}') == 11.5
    trainer.publish(3.0)
    eventually(lambda: number(following, "monolith_sync_cut{") >= 2)
    assert version.shown() == [3.0, 3.0]
    assert number(following, "monolith_sync_cuts_behind{") == number(following, "monolith_sync_lag_seconds{") == 0
    assert number(following, 'monolith_background_thread_up{thread="follower clicks/7"}') == 1
    clock.sleep_s(100.0)
    assert number(following, 'monolith_sync_age_seconds{model="clicks",version="7",of="cut"}') == 100
    assert number(following, 'monolith_sync_age_seconds{model="clicks",version="7",of="event"}') == 111.5
    version.close()
    assert following.statuses() == {}


def test_a_version_whose_cuts_fail_stays_as_exported_and_reports_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(now_s=1000.0)
    trainer = Trainer(tmp_path, clock)
    trainer.publish(2.0)
    (tmp_path / "shard-00000-of-00001" / f"seg-{1:020d}.delta").write_bytes(b"damaged")
    clock.sleep_s(4.0)
    following = follow({"clicks": tmp_path}, clock)
    version: Any = following(Path("clicks/7"))
    assert version.shown() == [0.0]
    assert number(following, "monolith_sync_failures_total{") >= 1
    assert number(following, "monolith_sync_cut{") == 0
    assert number(following, "monolith_sync_cuts_behind{") == 1
    assert number(following, "monolith_sync_lag_seconds{") == 4.0
    version.close()
    assert caplog.text.count("cut not applied, retrying model=clicks/7") == 1


def test_a_version_without_cuts_or_without_a_source_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    following = follow({"clicks": tmp_path}, clock)
    waiting: Any = following(Path("clicks/7"))
    assert caplog.text.count(f"no cut is published yet, serving the export model=clicks/7 source={tmp_path}") == 1
    Trainer(tmp_path, clock).publish(2.0)
    eventually(lambda: waiting.shown() == [2.0, 2.0])
    waiting.close()
    misnamed: Any = follow({"click": tmp_path}, clock)(Path("clicks/7"))
    assert misnamed.shown() == [0.0]
    assert caplog.text.count("no --sync-from names this model, serving its export model=clicks/7 names=click") == 1
    caplog.clear()
    for version in (follow({}, clock)(Path("clicks/7")), follow({"": tmp_path}, clock)(Path("clicks/7"))):
        version.close()
    assert "serving" not in caplog.text


def test_each_model_follows_its_own_folder(tmp_path: Path) -> None:
    clock = FakeClock()
    for name, value in (("one", 1.0), ("rest", 5.0)):
        Trainer(tmp_path / name, clock).publish(value)
    following = follow({"one": tmp_path / "one", "": tmp_path / "rest"}, clock)
    versions: list[Any] = [following(Path(name)) for name in ("one/1", "two/1", "three/1")]
    assert [version.shown()[0] for version in versions] == [1.0, 5.0, 5.0]
    alone = follow({"one": tmp_path / "one"}, clock)
    other: Any = alone(Path("two/1"))
    assert other.shown() == [0.0]
    assert alone.statuses() == {}
    for version in versions:
        version.close()


def test_versions_that_follow_one_publisher_share_its_feed(tmp_path: Path) -> None:
    clock = FakeClock(now_s=1000.0)
    trainer = Trainer(tmp_path / "published", clock)
    trainer.publish(2.0)
    with FeedServer(tmp_path / "published", poll_s=0.001) as server:
        source = FeedSource(server.address)
        following = Following(Version, {"": source}, clock=clock, poll_s=0.001)  # type: ignore[arg-type]
        versions: list[Any] = [following(Path(name)) for name in ("one/1", "two/1")]
        assert [version.shown() for version in versions] == [[2.0, 2.0]] * 2
        (scratch,) = {subscription.folder for subscription in following._subscriptions.values()}
        trainer.publish(3.0)
        eventually(lambda: all(version.shown() == [3.0, 3.0] for version in versions))
        assert not any(status.error for status in following.statuses().values())
    eventually(lambda: all(status.error for status in following.statuses().values()))  # the publisher is lost
    assert all(version.shown() == [3.0, 3.0] for version in versions)
    assert all(status.failures for status in following.statuses().values())
    for version in versions:
        version.close()
    following.close()
    following.close()
    assert not scratch.exists()


def test_sources_are_folders_with_or_without_the_name_of_a_model() -> None:
    assert parse_sources([]) == {}
    assert parse_sources(["a=x/y", "z"]) == {"a": Path("x/y"), "": Path("z")}
    assert parse_sources(["a=host:80", "x/host:80"]) == {"a": FeedSource("host:80"), "": Path("x/host:80")}
    for wrong, why in (
        ([""], "expected FOLDER, URL"),
        (["a="], "expected FOLDER, URL"),
        (["x", "y"], "set twice for every model"),
        (["a=x", "a=y"], "set twice for a"),
    ):
        with pytest.raises(ConfigError, match=why):
            parse_sources(wrong)
