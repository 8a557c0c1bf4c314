"""An entry and its parts follow one by one, and every answer is of one cut."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.artifacts.delta_log import Cut
from monolith.core.errors import CapacityExceeded, InvalidRequest, RpcTimeout, ShardUnavailable
from monolith.embedding import Fp32, MultiTable, Sgd, SliceSpec, TableSpec, Zeros
from monolith.export import ExportOptions, export_model, exporter
from monolith.export.dense_part import DensePart
from monolith.serving import (
    DegradedOutputs,
    GivenAddresses,
    ModelConfig,
    ModelServer,
    RemoteCalls,
    RemoteSettings,
    Servable,
    ServingConfig,
    servable_loader,
)
from monolith.serving.follow.following import Following
from monolith.serving.requests.request_deadline import deadline
from monolith.serving.servable import cut_state
from monolith.serving.servable.cut_history import KEPT, KEPT_AT_MOST, CutKey, OtherCut, RowHistory, Undo, key_of
from monolith.serving.servable.dense_states import DenseState, DenseStates
from monolith.serving.servable.parts import Arrays, EntryRows
from monolith.sync.row_updates import Move
from monolith.testing.eventually import eventually
from monolith.testing.fakes.published import PublishedTables

LONG_S = 60.0
USER, ITEM = 2, 3
"""Ids on either shard."""
SHOWN = {"user": [{"fids": [USER]}], "item": [{"fids": [ITEM]}]}


class Tells(mt.Model):
    """Its score encodes its inputs: the row of the user, that of the item, and the weight."""

    def __init__(self) -> None:
        super().__init__()
        rule: dict[str, Any] = {"optimizer": Sgd(1.0), "initializer": Zeros(), "compressor": Fp32()}
        for slot, name in enumerate(("user", "item"), 1):
            self.embedding_feature(name, slot=slot)
        self.values = self.embedding_slice(["user", "item"], "value", 1, **rule)
        self.shift = torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch: Any) -> mt.Output:
        user, item = self.values(batch)
        told = user.sum(dim=1) + 256 * item.sum(dim=1) + 65536 * self.shift
        return mt.Output(head="told", predictions=told, label=batch.label[:, 0], loss=told, is_classification=False)


def parts_of(score: float) -> tuple[int, int, int]:
    whole = int(score)
    assert whole == score
    return whole % 256, whole // 256 % 256, whole // 65536


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``own``: the entry has the weights. ``remote``: ``dense_0`` has them."""
    folder = tmp_path_factory.mktemp("exports")
    estimator = mt.Estimator(Tells, mt.RunConfig())
    part = DensePart(estimator.model)
    for name in ("own", "remote"):
        options = ExportOptions(layout="distributed", shards=2, has_remote_dense=name == "remote")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporter, "DensePart", lambda model: part)
            export_model(estimator.model, estimator.store, folder / name, name="m", step=1, version=1, options=options)
    return folder


class Trainer(PublishedTables):
    """Publishes cut ``n`` with the number ``n`` everywhere."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "published", Tells().declaration.table_specs(), {"shift": [0]})
        self.number = 0

    def publish(self) -> None:
        self.number += 1
        self.weights["shift"][0] = self.number
        for name, fid in (("user", USER), ("item", ITEM)):
            self.tables[name].assign([fid], [[self.number]])
        self.publish_now()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


class Fleet:
    """Servers of the parts of one export, which follow, and an entry that asks them."""

    def __init__(self, exports: Path, root: Path, stack: ExitStack) -> None:
        self._exports, self._root, self._stack = exports, root, stack
        self.following: list[Following] = []

    def serve(self, part: str, *, poll_s: float = 0.01) -> ModelServer:
        following = Following(servable_loader(), {"": self._root}, poll_s=poll_s)
        self.following.append(following)
        config = ModelConfig(name=part, base_path=self._exports / part)
        server = ModelServer(ServingConfig(models=[config], port=0, rest_port=None, version_poll_s=0.0), following)
        self._stack.callback(server.stop, 0.0)
        server.start()
        assert server.models.wait_until_settled(LONG_S)
        return server

    def entry(self, places: dict[str, list[str]], *, poll_s: float = 0.01, **settings: Any) -> Servable:
        calls = RemoteCalls(GivenAddresses(places), RemoteSettings(**{"timeout_s": LONG_S, **settings}))
        self._stack.callback(calls.close)
        following = Following(servable_loader(calls), {"": self._root}, poll_s=poll_s)
        self.following.append(following)
        servable = following(self._exports / "entry" / "1")
        self._stack.callback(servable.close)
        return servable

    def wait_for(self, number: int) -> None:
        """Wait until all show a cut."""
        waiting = threading.Event()
        for _ in range(int(LONG_S / 0.01)):
            if all(status.applied is not None and status.applied.number >= number
                   for each in self.following for status in each.statuses().values()):  # fmt: skip
                return
            waiting.wait(0.01)
        raise AssertionError([each.statuses() for each in self.following])


def scores_during(trainer: Trainer, entry: Servable, cuts: int, between: Callable[[int], None]) -> list[float]:
    """RemoteCall all the while that cuts are published."""
    is_over = threading.Event()

    def ask() -> list[float]:
        found = []
        while not is_over.is_set():
            found += entry.predict_features(SHOWN)["told"].tolist()
        return found

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            for number in range(cuts):
                trainer.publish()
                between(number)
        finally:
            is_over.set()
        return [score for each in asking for score in each.result(LONG_S)]


@pytest.mark.parametrize("weights", ["own", "remote"])
def test_every_answer_is_of_one_cut_while_all_move(
    weights: str, exports: Path, tmp_path: Path, stack: ExitStack
) -> None:
    trainer = Trainer(tmp_path)
    trainer.publish()
    fleet = Fleet(exports / weights, trainer.root, stack)
    # They look at their own pace, so that they are apart much of the time.
    places = {"ps_0": [fleet.serve("ps_0", poll_s=0.003).address]}
    replicas = [fleet.serve("ps_1", poll_s=0.05), fleet.serve("ps_1", poll_s=0.01)]
    places["ps_1"] = [each.address for each in replicas]
    if weights == "remote":
        places["dense_0"] = [fleet.serve("dense_0", poll_s=0.03).address]
    entry = fleet.entry(places, poll_s=0.02)
    pause = threading.Event()

    def between(number: int) -> None:
        pause.wait(0.02)
        if number == 15:
            replicas[0].stop(0.0)

    scores = scores_during(trainer, entry, 40, between)
    mixed = [parts_of(score) for score in scores if len(set(parts_of(score))) > 1]
    assert mixed == []
    assert len(set(scores)) > 3
    fleet.following.pop(1)  # of the replica that was stopped
    fleet.wait_for(trainer.number)
    assert parts_of(entry.predict_features(SHOWN)["told"][0]) == (41, 41, 41)


def test_a_part_that_stays_behind_is_an_error_that_names_it_or_a_marked_answer(
    exports: Path, tmp_path: Path, stack: ExitStack
) -> None:
    trainer = Trainer(tmp_path)
    trainer.publish()
    fleet = Fleet(exports / "own", trainer.root, stack)
    places = {"ps_0": [fleet.serve("ps_0").address], "ps_1": [fleet.serve("ps_1", poll_s=3600.0).address]}
    fleet.following.pop(1)
    entry = fleet.entry(places, timeout_s=5.0)
    for number in range(2, KEPT + 7):
        trainer.publish()
        fleet.wait_for(number)
        assert parts_of(entry.predict_features(SHOWN)["told"][0]) == (1, 1, 1)
    late = fleet.entry(places, timeout_s=0.5)  # has never held the cut of ps_1
    degraded = fleet.entry(places, timeout_s=0.5, allow_degraded=True)
    fleet.wait_for(trainer.number)
    with pytest.raises(ShardUnavailable, match=r"ps_1 holds cuts 1, expected"):
        late.predict_features(SHOWN)
    found = degraded.predict_features(SHOWN)
    assert isinstance(found, DegradedOutputs)
    assert found.missing == ("ps_1",)
    assert parts_of(found["told"][0]) == (trainer.number, 1, trainer.number)


@pytest.mark.parametrize("has_lost", [False, True])
def test_a_marked_answer_has_time_before_the_deadline_and_names_all_parts(
    has_lost: bool, exports: Path, tmp_path: Path, stack: ExitStack
) -> None:
    trainer = Trainer(tmp_path)
    trainer.publish()
    fleet = Fleet(exports / "own", trainer.root, stack)
    ahead = fleet.serve("ps_0")
    places = {"ps_0": [ahead.address], "ps_1": [fleet.serve("ps_1", poll_s=3600.0).address]}
    fleet.following.pop(1)
    trainer.publish()
    fleet.wait_for(trainer.number)
    entry = fleet.entry(places, timeout_s=5.0, allow_degraded=True)  # has never held the cut of ps_1
    if has_lost:
        ahead.stop(0.0)
    with deadline(time.monotonic() + 2.0):  # of the request, before the timeout of the calls
        found = entry.predict_features(SHOWN)
    assert isinstance(found, DegradedOutputs)
    assert sorted(found.missing) == (["ps_0", "ps_1"] if has_lost else ["ps_1"])
    assert parts_of(found["told"][0]) == (0 if has_lost else 2, 1, 2)


def test_an_entry_that_is_many_cuts_behind_its_parts_answers(exports: Path, tmp_path: Path, stack: ExitStack) -> None:
    trainer = Trainer(tmp_path)
    trainer.publish()
    fleet = Fleet(exports / "own", trainer.root, stack)
    places = {"ps_0": [fleet.serve("ps_0").address], "ps_1": [fleet.serve("ps_1").address]}
    entry = fleet.entry(places, poll_s=3600.0, timeout_s=5.0)
    fleet.following.pop()
    for number in range(2, KEPT + 7):
        trainer.publish()
        fleet.wait_for(number)
    assert parts_of(entry.predict_features(SHOWN)["told"][0]) == (1, 1, 1)


def test_an_entry_keeps_cuts_that_share_weights_and_the_weights_of_few_cuts() -> None:
    one, other = Runner(), Runner()
    states = DenseStates(one, keeps_earlier=True)
    states.show((0, 0), one)
    for number in range(1, 2 * KEPT_AT_MOST):
        states.show((number, 0), one)
    assert [state.key for state in states.shown] == keys(*range(2 * KEPT_AT_MOST - 1, KEPT_AT_MOST - 2, -1))
    states.show((200, 0), other)
    for number in range(1, KEPT):
        states.show((200 + number, 0), Runner())
    assert {state.dense for state in states.shown} > {one, other}
    states.show((300, 0), Runner())
    newest = [state.key for state in states.shown[: 1 + KEPT]]
    assert newest == keys(300, *range(199 + KEPT, 199, -1))


@pytest.mark.parametrize("seconds_between", [0.05, 0.3, 0.7])
def test_an_entry_with_many_quick_cuts_keeps_a_few_that_lagging_parts_have_too(seconds_between: float) -> None:
    now_s = 0.0
    states = DenseStates(Runner(), keeps_earlier=True, monotonic_s=lambda: now_s)
    most = 0
    for number in range(400):
        now_s = number * seconds_between
        states.show((number, 0), Runner())
        ages_s = [now_s - state.at_s for state in states.shown]
        most = max(most, len(ages_s))
        assert ages_s[: 1 + KEPT] == pytest.approx([back * seconds_between for back in range(len(ages_s[: 1 + KEPT]))])
        if now_s > 3.0:
            assert any(2.0 <= age_s <= 4.0 + 5 * seconds_between for age_s in ages_s)
    assert KEPT + 1 <= most <= KEPT + 3
    assert len(states.shown) == len({state.key for state in states.shown})


def test_an_entry_with_slow_cuts_keeps_the_last_ones_only() -> None:
    now_s = 0.0
    states = DenseStates(Runner(), keeps_earlier=True, monotonic_s=lambda: now_s)
    for number in range(20):
        now_s = 5.0 * number
        states.show((number, 0), Runner())
    assert [state.key for state in states.shown] == keys(*range(19, 18 - KEPT, -1))


def test_the_text_of_a_timeout_has_the_last_refusal() -> None:
    states = DenseStates(Runner(), keeps_earlier=True)
    states.show((5, 0), Runner())
    errors: Iterator[Exception] = iter([OtherCut("ps_0 holds cuts 9", ["ps_0"], keys(9)), RpcTimeout("too late")])

    def score_at(state: DenseState) -> Arrays:
        raise next(errors)

    class Source(EntryRows):
        allows_degraded = False

        def tries(self) -> Iterator[None]:
            yield from (None, None)

    with pytest.raises(RpcTimeout, match=r"^too late; before that, ps_0 holds cuts 9$"):
        states.score_at_common_cut(score_at, Source())
    errors = iter([RpcTimeout("too late")])
    with pytest.raises(RpcTimeout, match=r"^too late$"):
        states.score_at_common_cut(score_at, Source())


def test_parts_without_a_publisher_answer_for_every_cut(exports: Path) -> None:
    part = Servable.load(exports / "own" / "ps_0" / "1")
    given = {"id": np.array([USER]), "id_split": np.array([0, 0, 1])}
    assert part.call("raw_lookup", {**given, "cut": np.array([7, 8])}).keys() == {"flat_emb"}
    for wrong in (np.array([1.5, 2]), np.array([1]), np.array("x")):
        with pytest.raises(InvalidRequest, match="input 'cut' has shape"):
            part.call("raw_lookup", {**given, "cut": wrong})
    part.mark_following()
    assert part.call("raw_lookup", {**given, "cut": np.array([0, 0])})["cuts"].tolist() == [[0, 0]]
    assert part.call("raw_lookup", {**given, "cut": np.array([7, 8])}).keys() == {"cuts"}
    assert part.call("raw_lookup", given).keys() == {"flat_emb"}
    part.close()


class Runner:
    """A dense part that runs nowhere."""

    def run(self, inputs: Any, outputs: Any, cut: CutKey | None = None) -> Arrays:
        raise NotImplementedError


def keys(*numbers: int) -> list[CutKey]:
    return [(number, 0) for number in numbers]


def test_a_history_gives_the_rows_of_each_cut_that_it_keeps() -> None:
    spec = TableSpec("t", [SliceSpec(1, optimizer=Sgd(), compressor=Fp32())])
    tables = MultiTable([spec]).to_serving()
    history, ids = RowHistory(kept_s=0.0), np.array([5, 1, 9, 1])
    at_cut: dict[CutKey, list[float]] = {}
    random = np.random.default_rng(1)
    history.record_move((0, 0))
    for number in range(8):
        at_cut[number, 0] = tables["t"].lookup(ids).ravel().tolist()
        touched = np.unique(random.integers(0, 10, 4))
        undo = {"t": (touched, tables["t"].lookup(touched))}
        if number == 5:
            before, tables = tables, tables.emptied()
            history.record_move((number + 1, 0), before)
        else:
            tables["t"].assign(touched[1:], random.random((len(touched) - 1, 1), np.float32))
            tables["t"].delete(touched[:1])
            history.record_move((number + 1, 0), undo)
        at_cut[number + 1, 0] = tables["t"].lookup(ids).ravel().tolist()
        assert history.keys == keys(*range(number + 1, max(-1, number - KEPT), -1))
        for key in history.keys:
            assert history.lookup(key, tables, "t", ids).ravel().tolist() == at_cut[key]
    history.record_move((9, 0))
    assert history.keys == keys(9)


def undo_of(rows: int) -> Undo:
    return {"t": (np.arange(rows), np.zeros((rows, 1), np.float32))}


def test_a_history_keeps_more_cuts_while_they_are_young_small_and_few() -> None:
    history = RowHistory()
    for number in range(2 * KEPT_AT_MOST):
        history.record_move((number, 0), undo_of(1))
    assert history.keys == keys(*range(2 * KEPT_AT_MOST - 1, KEPT_AT_MOST - 2, -1))

    history = RowHistory(kept_bytes=12 * 50)  # an id and a float per row
    for number in range(20):
        history.record_move((number, 0), undo_of(10))
    assert history.keys == keys(*range(19, 13, -1))
    history.record_move((20, 0), undo_of(1000))
    assert history.keys == keys(*range(20, 19 - KEPT, -1))
    for number in range(21, 25):
        history.record_move((number, 0), undo_of(1))
    assert history.keys == keys(*range(24, 20 - 1, -1))  # the large preimages have left

    history = RowHistory(kept_s=0.05)
    for number in range(6):
        history.record_move((number, 0), undo_of(1))
    threading.Event().wait(0.06)
    history.record_move((6, 0), undo_of(1))
    assert history.keys == keys(*range(6, 5 - KEPT, -1))


def test_a_history_drops_old_replaced_tables_and_the_cuts_before_them() -> None:
    tables = MultiTable([TableSpec("t", [SliceSpec(1, optimizer=Sgd(), compressor=Fp32())])]).to_serving()
    history = RowHistory()
    for number in range(1, 5):
        history.record_move((number, 0), tables if number == 3 else {})
    history.drop_replaced_tables(3600.0)
    assert history.keys == keys(4, 3, 2, 1)
    history.drop_replaced_tables(0.0)
    assert history.keys == keys(4, 3)
    history.drop_replaced_tables(0.0)
    assert history.keys == keys(4, 3)


def test_a_history_keeps_the_tables_of_one_replacement_only() -> None:
    history = RowHistory()
    history.record_move((0, 0))
    replaced = []
    for number in range(1, 6):  # a publisher that is started again and again
        tables = MultiTable([TableSpec("t", [SliceSpec(1, optimizer=Sgd(), compressor=Fp32())])]).to_serving()
        replaced.append(weakref.ref(tables))
        history.record_move((number, 0), tables)
    del tables
    assert [each() is not None for each in replaced] == [False, False, False, False, True]
    assert history.keys == keys(5, 4)


def test_rows_between_two_cuts_are_never_the_rows_of_a_cut(exports: Path) -> None:
    part = Servable.load(exports / "own" / "ps_0" / "1")
    part.mark_following()
    ids = [USER, USER + 2]
    given = {"id": np.array(ids), "id_split": np.array([0, 0, 2]), "cut": np.array([1, 1_000_000])}

    class FailsInTheMiddle(Move):
        def apply(self, tables: MultiTable) -> None:
            tables["user"].assign(ids[:1], [[2.0]])
            raise CapacityExceeded("table 'user' is full")

    def show(number: int, move: Move | None) -> None:
        tables = None
        if move is None:
            assert part.tables is not None
            tables = part.tables.emptied()
            tables["user"].assign(ids, [[float(number)], [float(number)]])
        cut = Cut(sequences={0: number}, dense=1, number=number, published_at_s=float(number))
        part.apply(move, tables=tables, cut=cut)

    show(1, None)
    with pytest.raises(CapacityExceeded):
        show(2, FailsInTheMiddle((), (0, 1)))
    show(2, None)
    answer = part.call("raw_lookup", given)
    assert "flat_emb" not in answer
    assert answer["cuts"].tolist() == [[2, 2_000_000]]
    part.close()


def test_a_part_frees_replaced_tables_without_a_further_cut(exports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_state, "REPLACED_TABLES_S", 0.05)
    part = Servable.load(exports / "own" / "ps_0" / "1")
    part.mark_following()
    given = {"id": np.array([USER]), "id_split": np.array([0, 0, 1]), "cut": np.array([0, 0])}
    for number in (1, 2):
        assert part.tables is not None
        replaced = weakref.ref(part.tables)
        cut = Cut(sequences={0: number}, dense=1, number=number, published_at_s=float(number))
        part.apply(tables=part.tables.emptied(), cut=cut)
    eventually(lambda: part.call("raw_lookup", given)["cuts"].tolist() == [[2, 2_000_000]], timeout_s=60)
    assert replaced() is None
    part.close()


def test_cuts_of_one_number_differ_by_their_time() -> None:
    one, other = (Cut(sequences={0: 1}, dense=1, number=3, published_at_s=time_s) for time_s in (7.0, 7.5))
    assert key_of(one) == (3, 7_000_000) != key_of(other)
