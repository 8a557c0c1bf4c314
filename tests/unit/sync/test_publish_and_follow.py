"""A publisher and followers in one process, without models: tables, and a dictionary of weights."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monolith.artifacts.delta_log import DeltaReader, LogPosition, read_cut
from monolith.core.durable_files import seal
from monolith.core.errors import ArtifactError, ConfigError, DeltaLogBroken, ManifestInvalid, SchemaMismatch
from monolith.embedding import Adagrad, Fp16, Fp32, MultiTable, SliceSpec, TableSpec
from monolith.sync import BaseSnapshot, Follower, LocalRowLog, Publisher, read_base, write_base
from monolith.sync.cut_pace import CutPace
from monolith.sync.feed_server import FeedServer
from monolith.sync.row_updates import Move
from monolith.sync.subscription import Subscription
from monolith.testing.fakes.clock import FakeClock

IDS = np.arange(1, 9)


def specs(*names: str, compressor: Any = None) -> list[TableSpec]:
    piece = SliceSpec(2, optimizer=Adagrad(learning_rate=0.5), compressor=compressor or Fp32())
    return [TableSpec(name, [piece]) for name in names or ("item", "user")]


class Trainer:
    """Learns, and publishes."""

    def __init__(self, root: Path, flavour: Any = "serving", compressor: Any = None) -> None:
        self.tables = MultiTable(specs(compressor=compressor))
        self.weights: dict[str, Any] = {"w": np.zeros(2, np.float32), "frozen": np.ones(3, np.float32)}
        self.clock = FakeClock(now_s=1000.0)
        self.rows = LocalRowLog(root, self.tables, clock=self.clock, flavour=flavour)
        self.publisher = Publisher(
            root, self.rows, lambda: {name: value.copy() for name, value in self.weights.items()}, clock=self.clock
        )

    def learn(self, ids: Any, time_s: int = 5) -> None:
        for name in self.tables:
            gradients = {name: np.tile(np.asarray(ids, np.float32)[:, None], 2)}
            self.tables.apply_gradients({name: ids}, gradients, time_s=time_s)
        self.weights["w"] = self.weights["w"] + 1

    def shown(self) -> dict[str, Any]:
        return {**{name: rows_of(self.tables, name) for name in self.tables}, **self.weights}


class Model:
    """Target of a follower: serving tables and weights, which change together."""

    has_weights = True

    def __init__(self, tables: MultiTable | None, shard: tuple[int, int] = (0, 1)) -> None:
        self.tables = tables
        self.shard = shard
        self.weights: dict[str, Any] = {}
        self.replaced = 0

    def apply(
        self,
        move: Move | None = None,
        *,
        weights: Mapping[str, Any] | None = None,
        tables: MultiTable | None = None,
        **_: Any,
    ) -> None:
        if tables is not None:
            self.tables = tables
            self.replaced += 1
        if move is not None:
            assert self.tables is not None
            move.apply(self.tables)
        self.weights |= dict(weights or {})

    def shown(self) -> dict[str, Any]:
        assert self.tables is not None
        return {**{name: rows_of(self.tables, name) for name in self.tables}, **self.weights}


def rows_of(tables: MultiTable, name: str) -> dict[int, list[float]]:
    ids = np.arange(64)
    there = tables[name].contains(ids)
    return {int(fid): tables[name].lookup([fid])[0].tolist() for fid in ids[there]}


def served(compressor: Any = None, **options: Any) -> MultiTable:
    return MultiTable(specs(compressor=compressor)).to_serving(**options)


class Streams:
    """Streams of published folders, and folders that they fill; a cut is there when a follower looks."""

    def __init__(self, scratch: Path, stack: ExitStack) -> None:
        self._scratch, self._stack = scratch, stack
        self._servers: dict[Path, FeedServer] = {}
        self._count = 0

    def follow(self, root: Path, model: Model) -> StreamedFollower:
        if root not in self._servers:
            self._servers[root] = self._stack.enter_context(FeedServer(root, poll_s=0.001))
        self._count += 1
        subscription = Subscription(self._servers[root].address, self._scratch / str(self._count))
        subscription.start()
        self._stack.callback(subscription.close)
        return StreamedFollower(root, subscription, model, self._stack.callback)


class StreamedFollower(Follower):
    """A follower of a feed that waits for the newest cut or for the error of the connection."""

    def __init__(self, root: Path, subscription: Subscription, model: Model, closing: Callable[..., Any]) -> None:
        self.closing = closing
        super().__init__(subscription.folder, model, clock=FakeClock(now_s=1001.0))
        self._published, self._subscription, self._failures = root, subscription, 0

    def step(self) -> bool:
        wanted, waiting = read_cut(self._published), threading.Event()
        while wanted is not None and _names(read_cut(self._subscription.folder)) != _names(wanted):
            if self._subscription.failures > self._failures:
                self._failures = self._subscription.failures
                self._status = replace(self._status, newest=wanted)
                raise DeltaLogBroken(self._subscription.error, last_good=0)
            waiting.wait(0.001)
        return super().step()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Be without a connection."""
        old = self._subscription
        old.close()
        yield
        self._subscription, self._failures = Subscription(old.address, old.folder), 0
        self._subscription.start()
        self.closing(self._subscription.close)


def away(follower: Follower) -> AbstractContextManager[None]:
    """Disconnect a follower of a feed; a follower of a folder sees changes immediately."""
    return follower.away() if isinstance(follower, StreamedFollower) else nullcontext()


def _names(cut: Any) -> Any:
    return None if cut is None else (cut.number, cut.published_at_s, cut.sequences, cut.dense)


_streams: list[Streams] = []


@pytest.fixture(autouse=True, params=["folder", "stream"])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every test is one of folders that are seen, and of those that are streamed."""
    with ExitStack() as stack:
        if request.param == "stream":
            _streams.append(Streams(tmp_path_factory.mktemp("streamed"), stack))
        yield
        _streams.clear()


def follow(root: Path, model: Model) -> Follower:
    return _streams[0].follow(root, model) if _streams else Follower(root, model, clock=FakeClock(now_s=1001.0))


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            assert value == other[name], name
        else:
            np.testing.assert_array_equal(value, other[name])


def test_a_follower_shows_the_trainers_state_at_the_cut(tmp_path: Path) -> None:
    trainer, model = Trainer(tmp_path), Model(served())
    follower = follow(tmp_path, model)
    assert not follower.step()
    assert follower.status.applied is None
    trainer.learn(IDS)
    trainer.publisher.publish()
    at_cut = trainer.shown()
    trainer.learn([1, 2, 50])
    assert follower.step()
    same(model.shown(), at_cut)
    assert not follower.step()
    trainer.publisher.publish()
    assert follower.step()
    same(model.shown(), trainer.shown())
    assert model.replaced == 1  # the first time only; after that the rows that changed
    status = follower.status
    assert _names(status.applied) == _names(read_cut(tmp_path)) == _names(trainer.publisher.newest)
    assert status.applied is not None
    assert (status.applied.number, status.applied.sequences, status.applied.dense) == (2, {0: 2}, 2)
    assert status.applied.newest_event_s == 5


def test_a_publish_without_changes_makes_no_cut(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.learn(IDS)
    first = trainer.publisher.publish()
    assert trainer.publisher.publish() == first
    cut = trainer.publisher.newest
    assert cut is not None
    assert cut.number == 1
    trainer.weights["w"] = trainer.weights["w"] + 1
    assert trainer.publisher.publish() == first
    assert trainer.publisher.newest is not None
    assert (trainer.publisher.newest.number, trainer.publisher.newest.dense) == (2, 2)


def test_rows_that_expired_or_were_removed_disappear(tmp_path: Path) -> None:
    trainer, model = Trainer(tmp_path), Model(served())
    follower = follow(tmp_path, model)
    trainer.learn(IDS)
    trainer.publisher.publish()
    follower.step()
    trainer.tables["item"].delete([1, 2, 3])
    trainer.publisher.publish()
    follower.step()
    assert sorted(model.shown()["item"]) == [4, 5, 6, 7, 8]
    assert sorted(model.shown()["user"]) == IDS.tolist()
    trainer.learn([7, 9], time_s=40_000 * 86_400)
    assert trainer.tables.evict(40_000 * 86_400) == 4 + 7
    trainer.publisher.publish()
    follower.step()
    assert sorted(model.shown()["item"]) == sorted(model.shown()["user"]) == [7, 9]
    assert model.replaced == 1


@pytest.mark.parametrize("flavour", ["serving", "durable"])
def test_half_precision_equals_that_of_an_export(tmp_path: Path, flavour: str) -> None:
    trainer, model = Trainer(tmp_path, flavour, Fp16()), Model(served(Fp16()))
    trainer.learn(IDS)
    trainer.publisher.publish()
    follow(tmp_path, model).step()
    exported = trainer.tables.to_serving()
    assert rows_of(exported, "item") == model.shown()["item"] != rows_of(trainer.tables, "item")


def test_an_export_in_full_precision_needs_the_durable_flavour(tmp_path: Path) -> None:
    full = MultiTable(specs(compressor=Fp16())).to_serving(full_precision=True)
    half = Trainer(tmp_path / "half", "serving", Fp16())
    half.learn(IDS)
    half.publisher.publish()
    with pytest.raises(SchemaMismatch, match="fp16"):
        follow(tmp_path / "half", Model(full)).step()
    durable = Trainer(tmp_path / "full", "durable", Fp16())
    durable.learn(IDS)
    durable.publisher.publish()
    model = Model(full)
    follow(tmp_path / "full", model).step()
    same(model.shown(), durable.shown())


def test_a_server_that_missed_some_cuts_takes_the_newest(tmp_path: Path) -> None:
    trainer, model = Trainer(tmp_path), Model(served())
    follower = follow(tmp_path, model)
    for number in range(6):
        trainer.learn([number, number + 1])
        trainer.publisher.publish()
        if number == 2:
            follower.step()
    follower.step()
    same(model.shown(), trainer.shown())
    same(model.shown(), _fresh(tmp_path).shown())


def _fresh(root: Path) -> Model:
    model = Model(served())
    follow(root, model).step()
    return model


@pytest.mark.parametrize("is_part", [False, True])
def test_a_slow_part_moves_to_the_cuts_that_other_slow_parts_move_to(tmp_path: Path, is_part: bool) -> None:
    trainer = Trainer(tmp_path)
    clock, applied, published_meanwhile = FakeClock(now_s=1000.0), list[int](), 0

    def publish() -> None:
        trainer.weights["w"] = trainer.weights["w"] + 1
        trainer.publisher.publish()

    class Slow(Model):
        def apply(self, *args: Any, **settings: Any) -> None:
            clock.sleep_s(1.2)
            for _ in range(published_meanwhile):
                publish()
            super().apply(*args, **settings)

    follower = Follower(
        tmp_path, Slow(None), clock=clock, on_applied=lambda cut: applied.append(cut.number), is_part=is_part
    )
    publish()
    published_meanwhile = 1
    follower.step()
    follower.step()
    assert applied == [1, 2]
    follower.step()  # cut 3 is there
    assert applied == ([1, 2] if is_part else [1, 2, 3])
    published_meanwhile = 0
    publish()
    follower.step()
    follower.step()
    publish()
    follower.step()
    newest = trainer.publisher.newest
    assert newest is not None
    assert follower.status.newest == newest
    assert applied == ([1, 2, 4] if is_part else [1, 2, 3, 5, 6])
    clock.sleep_s(2.4)  # no further cut: the last one is taken too
    follower.step()
    assert applied[-1] == newest.number
    for _ in range(2):  # no cut is missed
        follower.step()
        publish()
        follower.step()
    assert applied[-3:] == [newest.number, newest.number + 1, newest.number + 2]


def test_slow_parts_with_moves_of_different_times_share_their_cuts() -> None:
    random = np.random.default_rng(1)
    for seconds in (1.05, 1.3, 1.6, 1.9):
        pace, now_s, taken = CutPace(), float(random.random()), list[int]()
        while now_s < 60.0:
            if pace.takes(int(now_s), now_s) and int(now_s) not in taken:
                taken.append(int(now_s))
                now_s += seconds
                pace.note_move(taken[-1], seconds, is_rebuild=False)
            now_s += 0.05
        assert taken[4:] == list(range(taken[4], 60, 2))
        assert not taken[4] % 2


@pytest.mark.parametrize("fails_before_rows", [True, False])
def test_weights_that_fail_before_a_row_changes_cost_no_rebuild(tmp_path: Path, fails_before_rows: bool) -> None:
    class Fails(Model):
        fails = False

        def apply(self, move: Move | None = None, **settings: Any) -> None:
            if self.fails and not fails_before_rows:
                super().apply(move)
            if self.fails:
                raise MemoryError("no memory for another session")
            super().apply(move, **settings)

    trainer = Trainer(tmp_path)
    model = Fails(served())
    follower = Follower(tmp_path, model, clock=trainer.clock)
    trainer.learn(IDS)
    trainer.publisher.publish()
    follower.step()
    assert model.replaced == 1
    trainer.learn(IDS[:3])
    trainer.publisher.publish()
    model.fails = True
    with pytest.raises(MemoryError):
        follower.step()
    model.fails = False
    follower.step()
    assert model.replaced == (1 if fails_before_rows else 2)
    same(model.shown(), trainer.shown())


def test_a_checkpoint_takes_the_place_of_the_segments_before_it(tmp_path: Path) -> None:
    root, base = tmp_path / "published", tmp_path / "checkpoint"
    trainer, late = Trainer(root), Model(served())
    lagging = follow(root, late)
    trainer.learn(IDS)
    trainer.publisher.publish()
    lagging.step()
    for number in range(3):
        trainer.learn([number, 40])
        trainer.publisher.publish()
    state = trainer.publisher.publish()
    trainer.tables.save(base)
    trainer.publisher.rebase(base, state)
    assert [segment.sequence for segment in DeltaReader(trainer.rows.folders[0]).segments()] == [4]
    for model, follower in ((late, lagging), ((new := Model(served())), follow(root, new))):
        follower.step()
        same(model.shown(), trainer.shown())
    trainer.learn([7, 60])
    trainer.publisher.publish()
    lagging.step()
    same(late.shown(), trainer.shown())
    same(_fresh(root).shown(), trainer.shown())
    shutil.move(tmp_path, moved := tmp_path.with_name(tmp_path.name + "-moved"))
    same(_fresh(moved / "published").shown(), trainer.shown())


def test_without_segments_and_base_the_model_stays_as_it_was(tmp_path: Path) -> None:
    trainer, model = Trainer(tmp_path), Model(served())
    follower = follow(tmp_path, model)
    trainer.learn(IDS)
    trainer.publisher.publish()
    follower.step()
    before = model.shown()
    with away(follower):
        for _ in range(2):
            trainer.learn(IDS)
            trainer.publisher.publish()
        folder = trainer.rows.folders[0]
        for sequence in (1, 2):
            (folder / f"seg-{sequence:020d}.delta").unlink()
    for _ in range(2):
        assert not follower.try_step()
    same(model.shown(), before)
    status = follower.status
    assert "has a gap" in status.error
    assert (status.failures, status.cuts_behind, status.lag_s(1003.5)) == (2, 2, 3.5)
    with pytest.raises(DeltaLogBroken, match="has a gap"):
        follower.step()


def test_a_damaged_segment_changes_nothing(tmp_path: Path) -> None:
    trainer, model = Trainer(tmp_path), Model(served())
    follower = follow(tmp_path, model)
    trainer.learn(IDS)
    trainer.publisher.publish()
    follower.step()
    before = model.shown()
    with away(follower):
        trainer.learn(IDS)
        trainer.publisher.publish()
        path = trainer.rows.folders[0] / f"seg-{2:020d}.delta"
        content = bytearray(path.read_bytes())
        content[-20] ^= 1
        path.write_bytes(content)
    assert not follower.try_step()
    assert re.search(rf"shard-[\w-]+/{path.name}' at byte \d+: checksum", follower.status.error)
    same(model.shown(), before)


def test_a_damaged_last_segment_keeps_the_sound_ones_before_it_from_the_live_tables(tmp_path: Path) -> None:
    trainer, model = Trainer(tmp_path), Model(served())
    follower = follow(tmp_path, model)
    trainer.learn(IDS)
    trainer.publisher.publish()
    follower.step()
    before = model.shown()
    with away(follower):
        for ids in ([1, 2], [3, 4], [5, 6]):
            trainer.learn(ids)
            trainer.publisher.publish()
        path = trainer.rows.folders[0] / f"seg-{4:020d}.delta"
        content = bytearray(path.read_bytes())
        content[-20] ^= 1
        path.write_bytes(content)
    moves: list[Move | None] = []
    apply = model.apply

    def note(move: Move | None = None, **options: Any) -> None:
        moves.append(move)
        apply(move, **options)

    model.apply = note  # type: ignore[method-assign]
    assert not follower.try_step()
    assert "checksum" in follower.status.error
    assert moves == []  # no segment reached the live tables
    same(model.shown(), before)


def test_a_trainer_that_starts_again_from_an_older_state_takes_servers_with_it(tmp_path: Path) -> None:
    first, model = Trainer(tmp_path), Model(served())
    follower = follow(tmp_path, model)
    first.learn(IDS)
    first.publisher.publish()
    first.learn([30])
    first.publisher.publish()
    follower.step()
    first.publisher.close()
    second = Trainer(tmp_path)
    second.learn([1, 2])
    second.publisher.publish()
    follower.step()
    same(model.shown(), second.shown())
    assert follower.status.applied is not None
    assert follower.status.applied.number == 3


def test_a_restarted_log_is_followed(tmp_path: Path) -> None:
    first, model = Trainer(tmp_path), Model(served())
    follower = follow(tmp_path, model)
    for _ in range(3):
        first.learn(IDS)
        first.publisher.publish()
        follower.step()
    first.publisher.close()
    shutil.rmtree(tmp_path)
    second = Trainer(tmp_path)
    second.learn([1])
    second.publisher.publish()
    follower.step()
    same(model.shown(), second.shown())


def test_a_part_of_the_tables_takes_its_ids_only(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.learn(IDS)
    trainer.publisher.publish()
    parts = [Model(served(), shard=(index, 3)) for index in range(3)]
    followers = [follow(tmp_path, part) for part in parts]
    for follower in followers:
        follower.step()
    trainer.learn([1, 2, 3])
    trainer.publisher.publish()
    for index, (part, follower) in enumerate(zip(parts, followers, strict=True)):
        follower.step()
        expected = {fid: row for fid, row in trainer.shown()["item"].items() if fid % 3 == index}
        assert part.shown()["item"] == expected


def test_a_part_without_tables_takes_the_weights(tmp_path: Path) -> None:
    trainer, model = Trainer(tmp_path), Model(None)
    trainer.learn(IDS)
    trainer.publisher.publish()
    follow(tmp_path, model).step()
    np.testing.assert_array_equal(model.weights["w"], trainer.weights["w"])


def test_other_tables_are_refused(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    trainer.learn(IDS)
    trainer.publisher.publish()
    with pytest.raises(SchemaMismatch, match="holds 2 tables, there are 1"):
        follow(tmp_path, Model(MultiTable(specs("item")).to_serving())).step()


def test_two_cannot_publish_in_one_folder(tmp_path: Path) -> None:
    Trainer(tmp_path)
    with pytest.raises(ConfigError, match="in use by another process"):
        Trainer(tmp_path)


def test_a_base_that_was_altered_is_refused(tmp_path: Path) -> None:
    assert read_base(tmp_path) is None
    base = BaseSnapshot(tables=tmp_path / "checkpoint", positions={0: LogPosition(7, 3)})
    write_base(tmp_path, base)
    assert read_base(tmp_path) == base
    path = tmp_path / "base.json"
    path.write_bytes(path.read_bytes().replace(b"checkpoint", b"checkqoint"))
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        read_base(tmp_path)
    path.write_bytes(seal({"format": "other", "version": 1}))
    with pytest.raises(ArtifactError, match="is 'other' version 1"):
        read_base(tmp_path)


def test_a_thread_follows_until_it_is_closed(tmp_path: Path) -> None:
    trainer, model = Trainer(tmp_path), Model(served())
    cuts: list[int] = []
    follower = Follower(
        tmp_path, model, clock=FakeClock(), poll_s=0.001, on_applied=lambda cut: cuts.append(cut.number)
    )
    follower.start()
    for number in range(1, 4):
        trainer.learn(IDS)
        trainer.publisher.publish()
        while number not in cuts:
            assert not follower.status.error
    follower.close()
    follower.close()
    same(model.shown(), trainer.shown())
    assert cuts == [1, 2, 3]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("learn"), st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True)),
            st.tuples(st.just("erase"), st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True)),
            st.tuples(st.sampled_from(["publish", "follow", "rebase", "restart"]), st.none()),
        ),
        max_size=25,
    )
)
def test_a_follower_shows_one_cut_after_any_history(
    steps: list[tuple[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    trainer, model = Trainer(folder / "published"), Model(served())
    follower = follow(folder / "published", model)
    at_cut: dict[int, dict[str, Any]] = {}
    for number, (step, ids) in enumerate([*steps, ("publish", None), ("follow", None)]):
        if step == "learn":
            trainer.learn(ids)
        elif step == "erase":
            trainer.tables["user"].delete(ids)
        elif step == "follow":
            follower.step()
            if (cut := follower.status.applied) is not None:
                same(model.shown(), at_cut[cut.number])
        elif step == "restart":
            follower = follow(folder / "published", model := Model(served()))
        else:
            state = trainer.publisher.publish()
            assert trainer.publisher.newest is not None
            at_cut[trainer.publisher.newest.number] = trainer.shown()
            if step == "rebase":
                trainer.tables.save(folder / f"base-{number}")
                trainer.publisher.rebase(folder / f"base-{number}", state)
    same(model.shown(), trainer.shown())
