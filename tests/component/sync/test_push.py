"""Rows that are pushed, to targets in this process that take them, fail, hang, answer nonsense, or come and go."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monolith.artifacts.delta_log import DeltaReader, DeltaWriter, changed_ids
from monolith.core.clock import SystemClock
from monolith.core.errors import ConfigError, ShardUnavailable
from monolith.core.free_ports import free_port
from monolith.core.retry import RetryPolicy
from monolith.embedding import Adagrad, Fp32, MultiTable, SliceSpec, TableSpec
from monolith.rpc.security import Security
from monolith.serving.api import messages
from monolith.serving.api.tensors import make_tensor
from monolith.sync import BaseSnapshot, LocalRowLog, Publisher, write_base
from monolith.sync.push import PushSettings, RowPusher
from monolith.sync.push_ids import IdSet, chunks_of
from monolith.sync.push_messages import MAX_BYTES, Assignments
from monolith.sync.push_targets import fleet_targets, parse_targets, split_fleets
from monolith.testing.eventually import eventually
from monolith.testing.fakes.clock import FakeClock
from monolith.testing.processes.certificates import Authority
from push_target import PushTargetServer

SPECS = [
    TableSpec(name, [SliceSpec(2, optimizer=Adagrad(learning_rate=0.5), compressor=Fp32())])
    for name in ("item", "user")
]
QUICK = RetryPolicy(attempts=10_000, initial_backoff_s=0.01, max_backoff_s=0.02)


class Trainer:
    """Learns and publishes; its pushers read the log after every publish."""

    def __init__(self, root: Path, specs: Sequence[TableSpec] = SPECS) -> None:
        self.root = root
        self.tables = MultiTable(specs)
        self.rows = LocalRowLog(root, self.tables, clock=SystemClock())
        self.publisher = Publisher(root, self.rows, dict, clock=SystemClock())
        self.pushers: list[RowPusher] = []
        self.exported: list[tuple[str, float, tuple[str, ...]]] = []

    def push_to(self, *targets: str, timeout_s: float = 20.0, **options: Any) -> RowPusher:
        security = options.pop("security", Security())
        settings = PushSettings(timeout_s=timeout_s, backoffs=QUICK, security=security)
        pusher = RowPusher(
            *(self.root, self.tables, parse_targets(targets)),
            clock=SystemClock(),
            settings=settings,
            export=lambda metric, value, labels: self.exported.append((metric.name, value, labels)),
            **options,
        )
        self.pushers.append(pusher)
        return pusher

    def learn(self, ids: Any, table: str = "item") -> None:
        self.tables.apply_gradients({table: ids}, {table: np.ones((len(ids), 2), np.float32)})
        self.publisher.publish()
        for pusher in self.pushers:
            pusher.step()

    def all_rows(self) -> dict[tuple[str, int], list[float]]:
        return {
            (name, int(fid)): row.tolist()
            for name in self.tables
            for ids, rows in self.tables[name].items()
            for fid, row in zip(ids, rows, strict=True)
        }


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    made = Trainer(tmp_path / "published")
    yield made
    for pusher in made.pushers:
        pusher.close()


@pytest.fixture
def server() -> Iterator[Callable[..., PushTargetServer]]:
    made: list[PushTargetServer] = []

    def start(**options: Any) -> PushTargetServer:
        made.append(PushTargetServer(**options))
        return made[-1]

    yield start
    for each in made:
        each.behave = lambda: None
        each.stop()


@pytest.mark.parametrize("signature", ["hashtable_assign", "raw_assign", "MonolithMultiHashTable_0/raw_assign"])
def test_a_target_has_the_rows_of_the_run_and_a_row_that_is_removed_is_zeros(
    trainer: Trainer, server: Callable[..., PushTargetServer], signature: str
) -> None:
    one = server(security=Security(token="secret"))
    trainer.learn([1, 2])
    pusher = trainer.push_to(one.address, signature=signature, security=Security(token="secret"))
    trainer.learn([2, 3, -4])
    trainer.learn([5], "user")
    assert pusher.flush(60)
    assert one.rows == trainer.all_rows()
    expected = {"item/raw_assign", "user/raw_assign"} if signature == "raw_assign" else {signature}
    assert {name for name, _, _ in one.requests} == expected
    trainer.tables["item"].delete([3])
    trainer.learn([1])
    assert pusher.flush(60)
    assert one.rows == {**trainer.all_rows(), ("item", 3): [0.0, 0.0]}


def test_a_row_that_changed_often_while_a_target_was_busy_goes_once_and_as_it_is_then(
    trainer: Trainer, server: Callable[..., PushTargetServer]
) -> None:
    one = server()
    pusher = trainer.push_to(one.address)
    held, entered = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        held.wait(60)

    one.behave = wait
    trainer.learn([1])
    assert entered.wait(60)
    for _ in range(10):
        trainer.learn([7, 8])
    held.set()
    assert pusher.flush(60)
    assert one.touched == [1, 7, 8]
    assert one.rows == trainer.all_rows()
    assert pusher.statuses()[f"default={one.address}"].pushed == 3


def test_rows_that_a_target_refuses_or_answers_wrongly_are_sent_again(
    trainer: Trainer, server: Callable[..., PushTargetServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "monolith")
    one, name = server(), ""
    pusher = trainer.push_to(one.address)
    name = f"default={one.address}"
    wrong = messages.PredictResponse()
    wrong.outputs["item_result"].CopyFrom(make_tensor(np.array(7, np.int64)))
    for answer in (b"\xff\xff nonsense", b"", wrong.SerializeToString(), None):
        if answer is None:
            one.behave = lambda: 1 / 0  # type: ignore[return-value]
        else:
            one.behave = lambda answer=answer: answer  # type: ignore[misc]
        before = one.refusals
        trainer.learn([1, 2])
        one.wait(lambda before=before: one.refusals > before + 2)
        assert pusher.statuses()[name].error
        assert not pusher.flush(0.01)
        assert pusher.statuses()[name].waiting == 2
        assert pusher.statuses()[name].lag_s > 0
        one.behave = lambda: None
        one.wait(lambda: one.rows == trainer.all_rows())
    told = [record.message for record in caplog.records if "push failed" in record.message]
    assert 4 <= len(told) < one.refusals
    trainer.pushers.clear()
    pusher.close()
    counted = {
        key: sum(value for found, value, _ in trainer.exported if found == key) for key, _, _ in trainer.exported
    }
    assert counted["monolith_push_failures_total"] == one.refusals
    assert counted["monolith_push_rows_total"] >= 8


def test_a_target_that_hangs_is_given_up_on_and_keeps_no_other_waiting(
    trainer: Trainer, server: Callable[..., PushTargetServer]
) -> None:
    good, slow, held = server(), server(), threading.Event()
    slow.behave = lambda: held.wait(60) and None
    pusher = trainer.push_to(good.address, slow.address, "127.0.0.1:1", timeout_s=0.2)
    for round in range(5):
        trainer.learn([round, 100])
        good.wait(lambda: good.rows == trainer.all_rows())
    assert not slow.rows
    statuses = pusher.statuses()
    assert statuses["default=127.0.0.1:1"].waiting == 6
    held.set()
    slow.wait(lambda: slow.rows == trainer.all_rows())
    assert pusher.statuses()["default=127.0.0.1:1"].waiting == 6


def test_a_restarted_target_gets_all_rows_that_ever_changed(
    trainer: Trainer, server: Callable[..., PushTargetServer]
) -> None:
    one, other = server(), server()
    pusher = trainer.push_to(one.address, other.address)
    trainer.learn([1, 2, 3])
    assert pusher.flush(60)
    one.stop()
    one.rows.clear()  # it restarts with the rows of its export
    trainer.learn([3, 4])
    other.wait(lambda: other.rows == trainer.all_rows())
    one.start()
    one.wait(lambda: one.rows == trainer.all_rows())
    assert pusher.flush(60)
    before = len(other.requests)
    one.stop()
    one.rows.clear()
    one.start()  # without new rows: the sender notices the new connection
    one.wait(lambda: one.rows == trainer.all_rows())
    assert len(other.requests) == before


def test_another_version_of_a_target_gets_all_rows_too(
    trainer: Trainer, server: Callable[..., PushTargetServer]
) -> None:
    one = server()
    pusher = trainer.push_to(one.address)
    trainer.learn([1, 2, 3])
    assert pusher.flush(60)
    one.version = 2
    one.rows.clear()
    trainer.learn([4])
    one.wait(lambda: one.rows == trainer.all_rows())


def test_sub_models_get_the_ids_of_their_shard(trainer: Trainer, server: Callable[..., PushTargetServer]) -> None:
    first, second, whole = server(), server(), server()
    pusher = trainer.push_to(f"m:ps_0={first.address}", f"m:ps_1={second.address}", f"m={whole.address}")
    trainer.learn([1, 2, 3, -1, -2])
    assert pusher.flush(60)
    assert {fid for _, fid in first.rows} == {2, -2}
    assert {fid for _, fid in second.rows} == {1, 3, -1}
    assert whole.rows == trainer.all_rows()


def test_a_target_may_be_spoken_to_over_tls(
    trainer: Trainer, server: Callable[..., PushTargetServer], authority: Authority
) -> None:
    own = authority.sign("localhost", "DNS:localhost", "IP:127.0.0.1")._asdict()
    one = server(security=Security(**own))
    pusher = trainer.push_to(f"https://{one.address}", security=Security(ca_file=authority.ca_file))
    plain = trainer.push_to(one.address)
    trainer.learn([1, 2])
    assert pusher.flush(60)
    assert one.rows == trainer.all_rows()
    assert not plain.flush(60)


def test_requests_stay_below_four_mebibytes(tmp_path: Path, server: Callable[..., PushTargetServer]) -> None:
    one = server()
    one.keeps = False
    wide = TableSpec("wide", [SliceSpec(64, optimizer=Adagrad(0.5), compressor=Fp32())])
    trainer = Trainer(tmp_path, [*SPECS, wide])
    pusher = trainer.push_to(one.address)
    trainer.tables["wide"].assign(np.arange(40_000), np.ones((40_000, 64), np.float32))
    trainer.learn(np.arange(10))
    assert pusher.flush(60)
    pusher.close()
    assert sum(count for _, count, _ in one.requests) == 40_010
    assert len(one.requests) == 3
    assert MAX_BYTES * 0.99 < max(size for _, _, size in one.requests) < MAX_BYTES


def test_a_pusher_that_comes_late_begins_with_the_base(
    trainer: Trainer, server: Callable[..., PushTargetServer], tmp_path: Path
) -> None:
    one = server()
    trainer.learn([1, 2])
    state = trainer.publisher.publish()
    trainer.tables.save(tmp_path / "tables")
    trainer.learn([3])
    trainer.publisher.rebase(tmp_path / "tables", state)
    trainer.learn([4])
    assert len(DeltaReader(trainer.rows.folders[0]).segments()) < 4
    pusher = trainer.push_to(one.address)
    assert pusher.step()
    assert pusher.flush(60)
    assert one.rows == trainer.all_rows()


def test_a_rolled_back_run_overwrites_the_pushed_rows(
    trainer: Trainer, server: Callable[..., PushTargetServer]
) -> None:
    one = server()
    pusher = trainer.push_to(one.address)
    trainer.learn([1, 2])
    assert pusher.flush(60)
    trainer.publisher.close()
    trainer.tables["item"].clear()
    trainer.rows = LocalRowLog(trainer.root, trainer.tables, clock=SystemClock())
    trainer.publisher = Publisher(trainer.root, trainer.rows, dict, clock=SystemClock())
    trainer.learn([2])
    assert pusher.flush(60)
    assert one.rows == {**trainer.all_rows(), ("item", 1): [0.0, 0.0]}


def test_a_damaged_log_is_logged_once_and_read_after_its_repair(
    trainer: Trainer, server: Callable[..., PushTargetServer], caplog: pytest.LogCaptureFixture
) -> None:
    one = server()
    pusher = trainer.push_to(one.address)
    trainer.learn([1])
    trainer.pushers.clear()
    trainer.learn([2])
    path = DeltaReader(trainer.rows.folders[0]).segments()[-1].path
    good = path.read_bytes()
    path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    write_base(trainer.root, BaseSnapshot(tables=trainer.root / "gone", positions={}))
    pusher.flush(60)
    pusher.flush(60)
    assert len([record for record in caplog.records if "published log not read" in record.message]) == 1
    path.write_bytes(good)
    pusher.flush(60)
    one.wait(lambda: one.rows == trainer.all_rows())
    pusher.close()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["a:1", "A:1"], "twice"),
        (["a:1", "http://a:1/"], "twice"),
        (["a:1/path"], "URL path"),
        (["ftp://a:1"], "http or https"),
        ([" a:1"], "host:port"),
        (["=a:1"], "MODEL=host:port"),
        (["m="], "MODEL=host:port"),
        (["u@a:1"], "userinfo"),
        (["ps_0=a:1", "ps_2=a:1"], "ps_0, ps_2"),
    ],
)
def test_a_bad_list_of_targets_is_refused(given: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_targets(given)


def test_other_signatures_are_refused(trainer: Trainer) -> None:
    with pytest.raises(ConfigError, match="sync_signature_name is 'serving_default'"):
        trainer.push_to("a:1", signature="serving_default")


def test_a_response_with_other_numbers_is_refused() -> None:
    form = Assignments("hashtable_assign", {"item": 2})
    rows = {"item": (np.array([1]), np.zeros((1, 2), np.float32))}
    with pytest.raises(ShardUnavailable, match="item_result = 1"):
        form.read_answer(b"", rows)


LOTS = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(-5, 30), max_size=6)), max_size=12)


@given(LOTS)
def test_ids_that_wait_are_each_there_once(lots: list[tuple[str, list[int]]]) -> None:
    ids = IdSet()
    expected: dict[str, set[int]] = {}
    for table, keys in lots:
        ids.add({table: np.array(keys, np.int64)})
        expected.setdefault(table, set()).update(keys)
    wanted = {table: sorted(keys) for table, keys in expected.items() if keys}
    assert bool(ids) == bool(wanted)
    assert len(ids) == sum(map(len, wanted.values()))
    assert {table: keys.tolist() for table, keys in ids.take().items()} == wanted
    assert not ids


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 40)),
    st.integers(10, 100),
    st.booleans(),
)
def test_lots_have_every_id_once_and_are_as_full_as_they_may_be(
    counts: dict[str, int], max_bytes: int, one_table: bool
) -> None:
    ids = {table: np.arange(count) for table, count in counts.items()}
    sizes = {"a": 9, "b": 16, "c": 30}
    lots = list(chunks_of(ids, sizes, max_bytes, one_table=one_table))
    for table, keys in ids.items():
        parts = [lot[table] for lot in lots if table in lot]
        np.testing.assert_array_equal(np.concatenate([*parts, keys[:0]]), keys)
    for lot in lots:
        rows = sum(map(len, lot.values()))
        assert rows
        assert rows == 1 or sum(len(keys) * sizes[table] for table, keys in lot.items()) <= max_bytes
        assert not one_table or len(lot) == 1


def test_the_ids_of_a_segment_are_those_that_were_set_or_removed(tmp_path: Path) -> None:
    tables = MultiTable(SPECS)
    with DeltaWriter(tmp_path, (0, 1), tables, clock=FakeClock(now_s=1.0)) as writer:
        tables["user"].assign(np.arange(40_000)[::-1], np.ones((40_000, 2)))
        writer.write()
        tables["user"].assign([70, -3], np.ones((2, 2)))
        tables["user"].delete([5, 9])
        writer.write()
    first, second = (changed_ids(segment.path) for segment in DeltaReader(tmp_path).segments())
    np.testing.assert_array_equal(first["user"], np.arange(40_000))
    assert second["user"].tolist() == [-3, 5, 9, 70]
    assert second["item"].tolist() == []


def test_each_server_of_a_fleet_gets_its_ids_under_the_signature_of_its_shard(
    trainer: Trainer, server: Callable[..., PushTargetServer]
) -> None:
    fleet = [server(), server()]
    targets = [f"clicks:ps_{index}={each.address}" for index, each in enumerate(fleet)]
    trainer.learn([1, 2, 3, 4, -5])
    pusher = trainer.push_to(*targets, signature="MonolithMultiHashTable_0/raw_assign")
    assert pusher.flush(60)
    for index, each in enumerate(fleet):
        assert {name for name, _, _ in each.requests} == {f"MonolithMultiHashTable_{index}/raw_assign"}
        assert {np.uint64(np.int64(fid)) % 2 for _, fid in each.rows} == {index}
    assert {**fleet[0].rows, **fleet[1].rows} == trainer.all_rows()


def test_a_rank_pushes_only_the_rows_of_its_shard(trainer: Trainer, server: Callable[..., PushTargetServer]) -> None:
    one = server()
    trainer.learn([1, 2, 3, 4])
    pusher = trainer.push_to(one.address, shard=(1, 2))
    assert pusher.flush(60)
    assert sorted(fid for _, fid in one.rows) == [1, 3]


def test_targets_that_come_later_get_all_rows_and_targets_that_left_get_no_more(
    trainer: Trainer, server: Callable[..., PushTargetServer]
) -> None:
    first, second = server(), server()
    trainer.learn([1, 2, 3])
    pusher = trainer.push_to()
    pusher.set_targets(fleet_targets({0: [first.address], 1: []}))
    trainer.learn([4])
    assert pusher.flush(60)
    assert sorted(fid for _, fid in first.rows) == [2, 4]
    pusher.set_targets(fleet_targets({0: [], 1: [second.address]}))
    trainer.learn([5, 6])
    assert pusher.flush(60)
    assert sorted(fid for _, fid in first.rows) == [2, 4]
    assert sorted(fid for _, fid in second.rows) == [1, 3, 5]


def test_the_gauges_of_a_target_that_left_show_no_lag(trainer: Trainer) -> None:
    def gauges() -> dict[str, float]:
        return {name: value for name, value, _ in trainer.exported if name.startswith("monolith_push_")}

    trainer.learn([1, 2, 3])
    pusher = trainer.push_to(f"127.0.0.1:{free_port()}")
    assert not pusher.flush(60)
    pusher.start()
    eventually(lambda: gauges().get("monolith_push_waiting_rows") == 3, timeout_s=60)
    eventually(lambda: gauges()["monolith_push_lag_seconds"] > 0, timeout_s=60)
    pusher.set_targets([])
    assert (gauges()["monolith_push_waiting_rows"], gauges()["monolith_push_lag_seconds"]) == (0, 0)


@pytest.mark.parametrize("text", ["zk://", "zk://host:2181", "zk://host:2181/ads", "zk://host:2181/ads/", "zk:///a/b"])
def test_a_fleet_without_all_parts_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected zk://host:port"):
        split_fleets([text])
