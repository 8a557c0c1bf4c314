from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monolith.artifacts.export_manifest import (
    PROGRAM,
    TABLES,
    WEIGHTS,
)
from monolith.core.errors import (
    ArtifactError,
    CapacityExceeded,
    ConfigError,
    DimensionMismatch,
    InvalidRequest,
    ManifestInvalid,
    ModelNotReady,
)
from monolith.core.rwlock import ReadWriteLock
from monolith.data import Batch
from monolith.data.records import messages
from monolith.embedding import MultiTable
from monolith.embedding.store import Ids, Rows
from monolith.export.signatures import dense_signatures
from monolith.serving import Servable
from monolith.serving.servable import loading
from monolith.sync.row_updates import Move
from small_export import WEIGHT, example, fid_of, make_export


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_export(tmp_path_factory.mktemp("export") / "12")


@pytest.fixture
def servable(folder: Path) -> Servable:
    return Servable.load(folder, verify="checksums")


# --- scoring ---


def test_a_loaded_export_has_name_version_and_signatures(servable: Servable) -> None:
    assert (servable.name, servable.version) == ("prices", 12)
    assert servable.signatures["serving_default"].outputs["score"].shape == (-1,)
    assert servable.signatures["twice"].kind == "score"
    assert servable.warm_up() == 2


def test_the_rows_of_all_records_are_scored_in_order(servable: Servable) -> None:
    records = [example([7], [9], 0.5), example([7, 8], [], 0.0), example([99], [7], -1.0)]
    found = servable.predict([each.SerializeToString() for each in records], "example")
    assert found["score"].tolist() == [41.5, 3.0, 29.0]
    assert list(found) == ["score"]
    assert servable.predict([records[0].SerializeToString()], "example", "twice")["twice"].tolist() == [83.0]


def test_every_kind_of_record_gives_the_same_scores(servable: Servable) -> None:
    batch = messages.ExampleBatch(batch_size=2)
    for name, slot, rows in (("user", 1, [[7], [8]]), ("item", 2, [[9], [7]])):
        column = batch.named_feature_list.add(name=name)
        for values in rows:
            column.feature.add().fid_v2_list.value.extend(fid_of(slot, value) for value in values)
    prices = batch.named_feature_list.add(name="price")
    for price in (0.5, 1.5):
        prices.feature.add().float_list.value.append(price)
    instances = []
    for user, item, price in ((7, 9, 0.5), (8, 7, 1.5)):
        instance = messages.Instance()
        for name, slot, value in (("user", 1, user), ("item", 2, item)):
            instance.feature.add(name=name).fid.append(fid_of(slot, value))
        instance.feature.add(name="price").float_value.append(price)
        instances.append(instance.SerializeToString())
    tf_examples = []
    for user, item, price in ((7, 9, 0.5), (8, 7, 1.5)):
        made = messages.TfExample()
        made.features.feature["user"].int64_list.value.append(user)
        made.features.feature["item"].int64_list.value.append(item)
        made.features.feature["price"].float_list.value.append(price)
        tf_examples.append(made.SerializeToString())
    examples = [example([7], [9], 0.5).SerializeToString(), example([8], [7], 1.5).SerializeToString()]
    wanted = [41.5, 33.5]
    assert servable.predict([batch.SerializeToString()], "example_batch")["score"].tolist() == wanted
    assert servable.predict(examples, "example")["score"].tolist() == wanted
    assert servable.predict(instances, "instance")["score"].tolist() == wanted
    assert servable.predict(tf_examples, "tf_example")["score"].tolist() == wanted


def test_no_records_give_no_scores(servable: Servable) -> None:
    assert servable.predict([], "example")["score"].shape == (0,)


def test_features_may_be_given_by_name(servable: Servable) -> None:
    columns = {"user": [7, [7, 8]], "item": [9, []], "price": [0.5, [0]]}
    assert servable.predict_features(columns)["score"].tolist() == [41.5, 3.0]
    rows = [{"user": {"fids": [fid_of(1, 7)]}, "item": 9, "price": 0.5}, {"price": 2}]
    assert servable.predict_features(rows)["score"].tolist() == [41.5, 2.0]
    assert servable.predict_features([])["score"].shape == (0,)
    assert servable.predict_features([{"user": "some text"}])["score"].tolist() == [0.0]
    assert servable.predict_features({"user": [7, None], "price": [None, 2]})["score"].tolist() == [
        servable.predict_features([{"user": 7}])["score"].item(),
        2.0,
    ]


@pytest.mark.parametrize(
    ("features", "reason"),
    [
        ([{"usr": 7}], "did you mean 'user'"),
        ([{"user": [[7]]}], "flat list"),
        ([{"user": [7, "7"]}], "of one type"),
        ([{"user": 2.5}], "2.5 of type float"),
        ([{"user": 2.0**60}], "2\\^53"),
        ([{"user": {"ids": [7]}}], "fids"),
        ([{"user": {"fids": ["7"]}}], "64-bit integers"),
        ([{"user": {"fids": [2**64]}}], "64-bit integers"),
        ([{"price": "cheap"}], "finite numbers"),
        ([{"price": float("nan")}], "finite numbers"),
        ([{"price": True}], "finite numbers"),
        ([{"price": [1.0, 2.0]}], "price"),
        ({"user": [7], "item": [1, 2]}, "one value per example"),
        ({"user": 7}, "one value per example"),
        ("user", "list of objects"),
        ([7], "list of objects"),
    ],
)
def test_features_that_do_not_fit_are_refused_by_name(servable: Servable, features: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        servable.predict_features(features)


def test_requests_that_cannot_be_answered_are_the_clients_fault(servable: Servable) -> None:
    good = example([7], [9], 0.5).SerializeToString()
    for call in (
        lambda: servable.predict([b"\xff\xff\xff"], "example"),
        lambda: servable.predict([good], "sentence"),  # type: ignore[arg-type]
        lambda: servable.predict([good], "example", "no_such"),
        lambda: servable.predict([good], "example", "lookup"),
        lambda: servable.predict([good], "example", outputs=["twice"]),
        lambda: servable.call("serving_default", {}),
    ):
        with pytest.raises(InvalidRequest) as caught:
            call()
        assert caught.value.at_fault == "client"
    assert servable.predict([good], "example")["score"].tolist() == [41.5]


def test_a_batch_without_a_declared_feature_is_refused(servable: Servable) -> None:
    with pytest.raises(Exception, match="price"):
        servable.predict_batch(Batch.from_arrays(ids={"user": [[7]], "item": [[7]]}))


# --- rows ---


def test_rows_can_be_looked_up_and_set(folder: Path) -> None:
    servable = Servable.load(folder)
    ids = [fid_of(1, 8), fid_of(1, 99)]
    assert servable.lookup("user", ids).tolist() == [[2], [0]]
    record = example([99], [], 0.0).SerializeToString()
    assert servable.predict([record], "example")["score"].tolist() == [0.0]
    servable.assign("user", [fid_of(1, 99)], [[6]])
    assert servable.predict([record], "example")["score"].tolist() == [6.0]
    with pytest.raises(InvalidRequest, match="no table 'shop'"):
        servable.lookup("shop", ids)
    with pytest.raises(InvalidRequest, match=r"dim|shape|columns"):
        servable.assign("user", ids, [[1, 2], [3, 4]])


def test_the_signatures_of_tables_take_and_give_flat_tensors(folder: Path) -> None:
    servable = Servable.load(folder)
    user, item = fid_of(1, 7), fid_of(2, 7)
    found = servable.call("lookup", {"user": [user], "item": [item, 5]})
    assert {name: rows.tolist() for name, rows in found.items()} == {"user": [[1]], "item": [[3], [0]]}
    assert servable.call("lookup", {"user": [user]})["user"].tolist() == [[1]]
    # Tables are in the order of their names: item before user.
    flat = servable.call("raw_lookup", {"id": [item, user], "id_split": [0, 1, 2]})
    assert flat["flat_emb"].tolist() == [3, 1]
    servable.call(
        "MonolithMultiHashTable_0/raw_assign", {"id": [item, user], "id_split": [0, 1, 2], "flat_value": [30.0, 10.0]}
    )
    servable.call("user/raw_assign", {"id": [fid_of(1, 8)], "id_split": [0, 1], "flat_value": [20.0]})
    assert servable.lookup("item", [item]).tolist() == [[30]]
    assert servable.lookup("user", [user, fid_of(1, 8)]).tolist() == [[10], [20]]
    result = servable.call("hashtable_assign", {"user_id": [user], "user_value": [[5.0]]})
    assert {name: int(count) for name, count in result.items()} == {"user_result": 1}
    assert servable.lookup("user", [user]).tolist() == [[5]]


@pytest.mark.parametrize(
    ("signature", "inputs", "reason"),
    [
        ("raw_lookup", {"id": [1]}, "lacks the input 'id_split'"),
        ("raw_lookup", {"id": [1.5], "id_split": [0, 1, 1]}, "expected int64"),
        ("raw_lookup", {"id": [1], "id_split": [0, 1]}, r"expected \[3\]"),
        ("raw_lookup", {"id": [1], "id_split": [0, 2, 1]}, "ascending numbers"),
        ("raw_lookup", {"id": [[1]], "id_split": [0, 1, 1]}, "shape"),
        ("lookup", {"shop": [1]}, "is 'shop', expected one of"),
        ("user/raw_assign", {"id": [1], "id_split": [0, 1], "flat_value": [1.0, 2.0]}, "expected 1"),
        ("hashtable_assign", {"user_id": [1]}, "expected both or neither"),
        ("hashtable_assign", {"user_id": [1], "user_value": [[1.0], [2.0]]}, "2 rows"),
        ("hashtable_assign", {"user_id": [1], "user_value": [[1.0, 2.0]]}, r"expected \[-1, 1\]"),
    ],
)
def test_tensors_that_do_not_fit_change_nothing(
    folder: Path, signature: str, inputs: Mapping[str, Any], reason: str
) -> None:
    servable = Servable.load(folder)
    with pytest.raises(InvalidRequest, match=reason):
        servable.call(signature, inputs)
    assert servable.lookup("user", [1, fid_of(1, 7)]).tolist() == [[0], [1]]


# --- cuts ---


class Change(Move):
    """A move that runs a function on the tables."""

    def __init__(self, act: Callable[[MultiTable], None]) -> None:
        super().__init__([], (0, 1))
        self._act = act

    def apply(self, tables: MultiTable) -> None:
        self._act(tables)


def test_dense_weights_and_rows_change_in_one_step(folder: Path) -> None:
    servable = Servable.load(folder)
    record = example([7], [], 0.0).SerializeToString()
    servable.apply(
        Change(lambda tables: tables["user"].assign([fid_of(1, 7)], [[2]])),
        weights={"w": np.array([[3.0], [0.0]], np.float32), "not.in.the.program": np.ones(3, np.float32)},
    )
    assert servable.predict([record], "example")["score"].tolist() == [6.0]
    with pytest.raises(DimensionMismatch, match="'w' has shape"):
        servable.apply(weights={"w": np.ones((3, 1), np.float32)})
    assert servable.predict([record], "example")["score"].tolist() == [6.0]


def test_a_prediction_sees_one_cut_and_never_a_mixture(folder: Path) -> None:
    servable = Servable.load(folder)
    record = example([7], [7], 0.0).SerializeToString()
    ids = {"user": [fid_of(1, 7)], "item": [fid_of(2, 7)]}
    stop = threading.Event()
    seen: list[float] = []

    def ask() -> None:
        while not stop.is_set():
            seen.append(float(servable.predict([record], "example")["score"][0]))

    def cut(number: int) -> None:
        def change(tables: MultiTable) -> None:
            for name, keys in ids.items():
                tables[name].assign(keys, [[float(number)]])

        weights = np.array([[1.0], [10.0 + number]], np.float32)
        servable.apply(Change(change), weights={"w": weights})

    cut(0)
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 20):
        cut(number)
    stop.set()
    for thread in threads:
        thread.join()
    assert set(seen) <= {number + number * (10.0 + number) for number in range(20)}


def test_after_a_move_that_fails_in_the_middle_calls_are_refused_until_new_tables_arrive(folder: Path) -> None:
    servable = Servable.load(folder)
    record = example([7], [7], 0.0).SerializeToString()
    before = servable.predict([record], "example")["score"].tolist()
    whole = servable.tables

    def fail(tables: MultiTable) -> None:
        tables["user"].assign([fid_of(1, 7)], [[99.0]])
        raise CapacityExceeded("table 'item' is full")

    with pytest.raises(CapacityExceeded):
        servable.apply(Change(fail))
    for call in (
        lambda: servable.predict([record], "example"),
        lambda: servable.lookup("user", [1]),
        lambda: servable.call("lookup", {"user": [1]}),
    ):
        with pytest.raises(ModelNotReady, match="incomplete after a failed update"):
            call()
    servable.apply(tables=Servable.load(folder).tables)
    assert servable.tables is not whole
    assert servable.predict([record], "example")["score"].tolist() == before


def test_a_lock_lets_readers_in_together_and_a_writer_alone() -> None:
    gate = ReadWriteLock()
    both = threading.Barrier(2, timeout=60)

    def read() -> None:
        with gate.shared():
            both.wait()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    order: list[str] = []

    def write() -> None:
        with gate.exclusive():
            order.append("writer")

    with gate.shared():
        writer = threading.Thread(target=write)
        writer.start()
        order.append("reader")
    writer.join()
    assert order == ["reader", "writer"]


# --- loading and closing ---


def test_a_closed_servable_refuses_calls(folder: Path) -> None:
    servable = Servable.load(folder)
    servable.close()
    for call in (
        lambda: servable.predict([], "example"),
        lambda: servable.lookup("user", [1]),
        lambda: servable.apply(),
        lambda: servable.call("lookup", {}),
    ):
        with pytest.raises(ModelNotReady, match="unloaded"):
            call()


def test_a_servable_closed_under_load_answers_or_refuses(folder: Path) -> None:
    servable = Servable.load(folder)
    record = example([7], [], 0.0).SerializeToString()
    seen: list[float] = []
    started = threading.Barrier(4, timeout=60)
    errors: list[BaseException] = []

    def ask() -> None:
        started.wait()
        try:
            while True:
                seen.append(float(servable.predict([record], "example")["score"][0]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    servable.close()
    for thread in threads:
        thread.join()
    assert set(seen) <= {1.0}
    assert [type(error) for error in errors] == [ModelNotReady] * 3


def test_a_damaged_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected an export"):
        Servable.load(tmp_path)
    export = make_export(tmp_path / "1")
    for name in (PROGRAM, WEIGHTS, next(path for path in (export / TABLES).glob("*.table")).relative_to(export)):
        content = (export / name).read_bytes()
        (export / name).write_bytes(content[:-1])
        with pytest.raises(ManifestInvalid, match="bytes, expected"):
            Servable.load(export)
        (export / name).write_bytes(content[:-20] + bytes(20))
        with pytest.raises(ManifestInvalid):
            Servable.load(export, verify="checksums")
        (export / name).unlink()
        with pytest.raises(ManifestInvalid, match="is missing"):
            Servable.load(export)
        (export / name).write_bytes(content)
    assert Servable.load(export).version == 12


def flip(path: Path, value: float) -> bytes:
    """Change one bit of the first such float in a file; return the content before."""
    content = path.read_bytes()
    at = content.index(np.float32(value).tobytes())
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    return content


def test_a_flipped_bit_of_the_dense_part_is_refused_by_every_load(tmp_path: Path) -> None:
    export = make_export(tmp_path / "1")
    flip(export / WEIGHTS, float(WEIGHT[1, 0]))
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        Servable.load(export)


def test_a_flipped_bit_of_a_row_is_found_by_a_load_into_memory_or_by_the_later_check(tmp_path: Path) -> None:
    export = make_export(tmp_path / "1")
    whole = Servable.load(export)
    whole.verify_tables(lambda: True)
    whole.close()
    row = np.float32(3.0)
    (table,) = (path for path in (export / TABLES).glob("*.table") if row.tobytes() in path.read_bytes())
    flip(table, 3.0)
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        Servable.load(export, in_memory=True)
    mapped = Servable.load(export)
    mapped.verify_tables(lambda: False)
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        mapped.verify_tables(lambda: True)
    mapped.close()


def test_a_write_to_a_mapped_file_is_noticed_once_and_the_rows_are_checked_again(tmp_path: Path) -> None:
    export = make_export(tmp_path / "1")
    servable = Servable.load(export)
    servable.verify_tables(lambda: True)
    assert not servable.notice_file_changes()
    damage_in_place(next((export / TABLES).glob("*.table")))  # as a copy over the file would
    assert servable.notice_file_changes()
    assert not servable.notice_file_changes()
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        servable.verify_tables(lambda: True)
    servable.close()


def damage_in_place(table: Path) -> None:
    with table.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        last = file.read(1)
        file.seek(-4, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    os.utime(table, ns=(1, 1))


def test_a_check_of_a_large_file_ends_soon_after_its_version_is_no_longer_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_PIECE_BYTES", 16)
    servable = Servable.load(make_export(tmp_path / "1"))
    damage_in_place(next((tmp_path / "1" / TABLES).glob("*.table")))
    answers = iter([True, True, False])
    servable.verify_tables(lambda: next(answers))
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        servable.verify_tables(lambda: True)
    servable.close()


def test_a_write_during_a_check_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_PIECE_BYTES", 16)
    servable = Servable.load(make_export(tmp_path / "1"))
    first, *_, last = sorted((tmp_path / "1" / TABLES).glob("*.table"))
    has_begun = False

    def is_wanted() -> bool:  # the check has passed the first file when it is damaged
        nonlocal has_begun
        if not has_begun and reading == [last]:
            has_begun = True
            damage_in_place(first)
            assert servable.notice_file_changes()
        return True

    reading: list[Path] = []
    verify_files = loading.verify_files

    def note(folder: Path, files: Any, **settings: Any) -> None:
        reading[:] = [folder / each.name for each in files.files]
        verify_files(folder, files, **settings)

    monkeypatch.setattr(loading, "verify_files", note)
    servable.verify_tables(is_wanted)
    assert has_begun
    with pytest.raises(ManifestInvalid, match="is corrupt"):
        servable.verify_tables(lambda: True)
    servable.close()


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("is_checked", [False, True])
def test_a_version_whose_folder_was_removed_or_replaced_is_not_damaged(
    tmp_path: Path, is_replaced: bool, is_checked: bool
) -> None:
    export = make_export(tmp_path / "1")
    servable = Servable.load(export)
    if is_checked:
        servable.verify_tables(lambda: True)
    scored = servable.predict([example([7], [9], 0.5).SerializeToString()], "example")["score"].tolist()
    export.rename(tmp_path / "bad-1")
    if is_replaced:
        flip(next((make_export(export) / TABLES).glob("*.table")), 3.0)
    assert not servable.notice_file_changes()
    servable.verify_tables(lambda: True)
    assert servable.predict([example([7], [9], 0.5).SerializeToString()], "example")["score"].tolist() == scored
    servable.close()


class Elsewhere:
    """Rows of another process."""

    def __init__(self, tables: MultiTable) -> None:
        self._tables = tables

    def pull(self, ids: Mapping[str, Ids]) -> Mapping[str, Rows]:
        return self._tables.lookup(ids)


def test_an_entry_asks_others_for_rows_and_for_the_dense_part(folder: Path, tmp_path: Path) -> None:
    whole = Servable.load(folder)
    assert whole.tables is not None
    rows = Elsewhere(whole.tables)
    entry = make_export(tmp_path / "entry", sub_model="entry", shard=(0, 1), has_tables=False)
    record = [example([7], [9], 0.5).SerializeToString()]
    with pytest.raises(ConfigError, match="rows="):
        Servable.load(entry)
    asking = Servable.load(entry, rows=rows)
    assert asking.predict(record, "example")["score"].tolist() == [41.5]
    with pytest.raises(InvalidRequest, match="has no tables"):
        asking.lookup("user", [1])
    with pytest.raises(ConfigError, match="no tables"):
        asking.apply(Change(lambda tables: None))
    bare = make_export(tmp_path / "bare", sub_model="entry", shard=(0, 1), has_tables=False, dense=None)
    with pytest.raises(ConfigError, match="dense="):
        Servable.load(bare, rows=rows)


class Caller:
    """The dense part over a call."""

    def __init__(self, dense: Servable) -> None:
        self._dense = dense

    def run(self, inputs: Mapping[str, Any], outputs: list[str]) -> dict[str, Any]:
        (name,) = self._dense.signatures
        wanted = {key: inputs[key] for key in self._dense.signatures[name].inputs}
        found = self._dense.call(name, wanted)
        return {key: found[key] for key in outputs}


def test_a_dense_sub_model_computes_for_an_entry(folder: Path, tmp_path: Path) -> None:
    whole = Servable.load(folder)
    assert whole.tables is not None
    assert whole.manifest.dense is not None
    signatures = dense_signatures(whole.manifest.dense.inputs, whole.manifest.dense.outputs)
    place = make_export(
        tmp_path / "dense", sub_model="dense", has_tables=False, declaration=None, tables=(), signatures=signatures
    )
    dense = Servable.load(place)
    entry = make_export(tmp_path / "entry", sub_model="entry", shard=(0, 1), has_tables=False, dense=None)
    asking = Servable.load(entry, rows=Elsewhere(whole.tables), dense=Caller(dense))
    record = [example([7], [9], 0.5).SerializeToString()]
    assert asking.predict(record, "example")["score"].tolist() == [41.5]
    (name,) = signatures
    with pytest.raises(InvalidRequest, match="is missing"):
        dense.call(name, {})
    inputs = {each: np.zeros((1, *info.shape[1:]), info.dtype) for each, info in signatures[name].inputs.items()}
    first = next(iter(inputs))
    for wrong in (np.array([[b"text"]], object), np.array([["text"]]), np.array([[None]])):
        with pytest.raises(InvalidRequest, match=f"type of input '{first}' is .*, expected float32"):
            dense.call(name, {**inputs, first: wrong})
    with pytest.raises(InvalidRequest, match="takes no records"):
        dense.predict(record, "example", name)
