"""64-bit ids keep their rows and scores from a file through training, checkpoint, export, servers and clients."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import monolith as mt
from monolith.core.errors import ConfigError, InvalidRequest, SchemaMismatch
from monolith.ps import RemoteStore
from monolith.serving import Client, ModelConfig, ModelServer, ServingConfig
from monolith.serving.servable.features import records_of_features
from monolith.serving.servable.servable import Servable
from monolith.testing.processes.ps_servers import PsServers

NEWCOMER = [user << 48 for user in range(4096, 4096 + 184)]
OLD_MODELS = Path(__file__).with_name("models_before_value_types.zip")


class Ranker(mt.Model):
    """The score of a row is the bias of its user, so equal scores need equal rows."""

    def __init__(self, **feature: Any) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1, **feature)
        self.bias = self.embedding_slice(
            ["user"],
            "bias",
            dim=1,
            optimizer=mt.Sgd(learning_rate=0.1),
            initializer=mt.RandomUniform(-1, 1),
            compressor=mt.Fp32(),
            out="add_n",
        )

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(head="click", logits=self.bias(batch).squeeze(1), label=batch.label[:, 0])


def run_config(folder: Path) -> mt.RunConfig:
    return mt.RunConfig(model_dir=str(folder), save_summary_steps=0, log_step_count_steps=0)


def dataset(data: Any, **feature: Any) -> Any:
    schema = Ranker(**feature).declaration.schema(label_features=["click"])
    opened = mt.data.parquet(data, schema=schema) if isinstance(data, Path) else mt.data.frame(data, schema=schema)
    return opened.batch(64)


def labelled(users: Any) -> dict[str, Any]:
    return {"user": users, "click": np.arange(len(users)) % 2.0}


def scores(estimator: mt.Estimator, data: Any) -> list[float]:
    return np.concatenate([each["click"] for each in estimator.predict(data)]).tolist()


@contextmanager
def served(exports: Path) -> Iterator[dict[str, Client]]:
    server = ModelServer(
        ServingConfig(port=0, rest_port=0, models=[ModelConfig(name="ranker", base_path=exports)], version_poll_s=0.0),
        Servable.load,
    )
    server.start()
    try:
        assert server.models.wait_until_settled(60)
        with (
            Client(server.address, model="ranker") as grpc,
            Client(f"http://{server.rest_address}", model="ranker") as rest,
        ):
            yield {"grpc": grpc, "rest": rest}
    finally:
        server.stop(0.0)


def train(folder: Path, data: Any, **options: Any) -> mt.Estimator:
    estimator = mt.Estimator(Ranker, run_config(folder / "model"), **options)
    estimator.train(data)
    estimator.close()
    return estimator


def check_everywhere(folder: Path, users: Sequence[Any]) -> None:
    """Train on a Parquet file of the users, and compare the scores of every way to ask for them."""
    pq.write_table(pa.table(labelled(users)), folder / "users.parquet")
    estimator = train(folder, dataset(folder / "users.parquet"))
    assert len(estimator.store["user"]) == len(set(users))
    expected = scores(estimator, dataset(folder / "users.parquet"))
    assert len(set(expected)) == len(set(users))

    restored = mt.Estimator(Ranker, run_config(folder / "model"))
    assert scores(restored, dataset(labelled(users))) == expected
    restored.export(folder / "exports", version=1)
    restored.close()
    with served(folder / "exports") as clients:
        for transport, client in clients.items():
            answers = {
                "values": client.predict({"user": list(users)})["click"],
                "lists": client.predict({"user": [[user] for user in users]})["click"],
                "arrow": client.predict({"user": pa.array(users)})["click"],
            }
            for form, answer in answers.items():
                assert answer.tolist() == pytest.approx(expected, abs=1e-6), (transport, form)

    with PsServers(2) as servers:
        trained = train(folder / "ps", dataset(folder / "users.parquet"), store=lambda specs: remote(servers, specs))
        assert scores(trained, dataset(folder / "users.parquet")) == expected


def remote(servers: PsServers, specs: Any) -> RemoteStore:
    return RemoteStore(servers.addresses, specs)


def random_integers(seed: int) -> list[int]:
    """Return distinct 64-bit integers: random bits, few bits, values that differ in their high bits only, the ends."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(-(2**63), 2**63 - 1, 20, dtype=np.int64, endpoint=True).tolist()
    low = int(rng.integers(0, 2**48))
    high = [low + (int(each) << 48) for each in rng.integers(-(2**15), 2**15, 10)]
    return sorted({*bits, *high, *rng.integers(-50, 50, 10).tolist(), -(2**63), -1, 0, 2**63 - 1})


def random_texts(seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    letters = list("abc07-\u00e9\u4e2d\N{GRINNING FACE} ")
    return sorted({"".join(rng.choice(letters, rng.integers(0, 8))) for _ in range(40)})


def test_every_64_bit_integer_has_its_row_and_one_score_everywhere(tmp_path: Path) -> None:
    check_everywhere(tmp_path, random_integers(seed=1))


def test_every_text_has_its_row_and_one_score_everywhere(tmp_path: Path) -> None:
    check_everywhere(tmp_path, random_texts(seed=1))


@pytest.mark.parametrize("users", [NEWCOMER, [user << 2 | 7 for user in NEWCOMER]], ids=["shifted by 48", "by 50"])
def test_184_users_with_high_bits_are_184_rows(tmp_path: Path, users: list[int]) -> None:
    estimator = train(tmp_path, dataset(labelled(users)))
    assert len(estimator.store["user"]) == 184


def test_a_null_in_a_column_of_integers_changes_no_id(tmp_path: Path) -> None:
    users = [*range(4096, 4096 + 184)]
    estimator = train(tmp_path, dataset(labelled(users)))
    expected = scores(estimator, dataset(labelled(users)))
    floats = pa.table(labelled(pa.array([*map(float, users), None], pa.float64())))
    assert scores(estimator, dataset(floats))[:-1] == expected
    assert estimator.model.declaration.value_types == {"user": "integer"}


@pytest.mark.parametrize("users", [[1.0, 2.5], [1.0, 2.0**60], [1.0, float("nan")]], ids=["part", "large", "nan"])
def test_a_float_that_is_not_an_exact_integer_is_refused_with_feature_and_row(
    tmp_path: Path, users: list[float]
) -> None:
    with pytest.raises(SchemaMismatch, match="feature 'user', row 1 of the batch: float is"):
        train(tmp_path, dataset(labelled(np.array(users))))


def test_7_and_text_7_are_one_user_of_an_integer_model_and_of_a_text_model(tmp_path: Path) -> None:
    for name, users, others in (("integer", [7, 8], ["7", "8"]), ("text", ["7", "8"], [7, 8])):
        estimator = train(tmp_path / name, dataset(labelled(users)))
        assert estimator.model.declaration.value_types == {"user": name}
        assert scores(estimator, dataset(labelled(others))) == scores(estimator, dataset(labelled(users)))
        assert len(estimator.store["user"]) == 2


def test_a_file_of_another_type_is_refused_by_a_trained_model(tmp_path: Path) -> None:
    train(tmp_path, dataset(labelled([7, 8])))
    restored = mt.Estimator(Ranker, run_config(tmp_path / "model"))
    with pytest.raises(SchemaMismatch, match="text is 'ada', expected an integer"):
        scores(restored, dataset(labelled(["ada", "grace"])))
    with pytest.raises(ConfigError, match="value_type of feature 'user' is 'text' in the schema, expected 'integer'"):
        scores(restored, dataset(labelled(["ada", "grace"]), value_type="text"))
    with pytest.raises(SchemaMismatch, match=r"value_type of feature 'user' is 'integer' in .*expected 'text'"):
        mt.Estimator(lambda: Ranker(value_type="text"), run_config(tmp_path / "model")).load()


def test_an_integer_beside_a_slot_is_refused_or_hashed_but_never_cut(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match=r"integer is 1125899906842625, expected 0 to 2\^48 - 1 beside slot 1"):
        train(tmp_path, dataset(labelled([1, 2**50 + 1]), value_type="fid"))
    hashed = dataset(labelled([1, 2**50 + 1, 2**48 + 1]), value_type="fid", hash_wide=True)
    estimator = mt.Estimator(lambda: Ranker(value_type="fid", hash_wide=True))
    estimator.train(hashed)
    assert len(estimator.store["user"]) == 3


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_request_is_converted_to_the_type_of_training_or_refused(tmp_path: Path, transport: str) -> None:
    users = [1, 2**48 + 1, 2**50 + 1, 1 - 2**48, 25]
    estimator = train(tmp_path, dataset(labelled(users)))
    expected = pytest.approx(scores(estimator, dataset(labelled(users))), abs=1e-6)
    estimator.export(tmp_path / "exports", version=1)
    with served(tmp_path / "exports") as clients:
        client = clients[transport]

        def ask(value: Any) -> list[float]:
            return client.predict({"user": value})["click"].tolist()

        assert len(set(ask(users))) == len(users)
        assert ask(users) == ask([str(user) for user in users]) == expected
        assert ask([25.0]) == ask([25]) == ask(["25"])
        nobody = ask([[]])
        assert ask([[1], [], [1, 25]])[1:2] == ask([None]) == nobody
        assert ask(mt.data.Ragged.from_lists([[1], [], [1, 25]])) == ask([[1], [], [1, 25]])
        for bad in ([2.5], ["ada"], [2.0**60]):
            with pytest.raises(InvalidRequest, match="user"):
                ask(bad)
        for bad in ([{"id": 1}], [object()], [[[1]]], [1, "1"], [2**64], np.array([{"a": 1}], object)):
            with pytest.raises(InvalidRequest, match="input 'user'"):
                ask(bad)


def test_metadata_lists_the_features_with_their_types(tmp_path: Path) -> None:
    estimator = train(tmp_path, dataset(labelled(["ada", "grace"])))
    estimator.export(tmp_path / "exports", version=1)
    with served(tmp_path / "exports") as clients:
        address = clients["rest"].address
        assert get(f"{address}/v1/models/ranker/metadata")["metadata"]["features"] == [
            {"name": "user", "kind": "sparse", "value_type": "text"}
        ]
        (listed,) = get(f"{address}/v1/models")["models"]
        assert listed["name"] == "ranker"
        assert [each["state"] for each in listed["model_version_status"]] == ["AVAILABLE"]
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(f"{address}/v1/models", b"{}"), timeout=60)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.loads(answer.read())


def test_ids_of_arrays_are_ready_made_and_plain_values_share_them_with_the_slot() -> None:
    estimator = mt.Estimator(Ranker)
    ids = [[mt.fid.make_v2(1, user)] for user in (7, 8)]
    batch = mt.data.Batch.from_arrays(ids={"user": ids}, label=[1, 0])
    estimator.train([batch])
    assert estimator.model.declaration.value_types == {"user": "fid"}
    assert scores(estimator, dataset(labelled([7, 8]))) == scores(estimator, [batch])


def test_a_server_of_an_untrained_model_reads_each_request_by_itself(tmp_path: Path) -> None:
    mt.Estimator(Ranker).export(tmp_path, version=1)
    servable = Servable.load(tmp_path / "1")
    declaration = Ranker().declaration
    for user, expected in (("ada", mt.fid.id_of("ada")), (2**50 + 1, 2**50 + 1), ("7", mt.fid.id_of("7")), (7, 7)):
        batch = servable.read(records_of_features(declaration, {"user": [user]}), "example")
        assert batch.ids["user"].tolist() == [[expected]]
    assert [each.value_type for each in servable.features] == ["unknown"]
    servable.close()


# --- models of the release before types were recorded ---


class OldRanker(mt.Model):
    """The model whose checkpoint and export the archive holds."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.embedding_feature("city", slot=2)
        self.bias = self.embedding_slice(
            ["user", "city"],
            "bias",
            dim=1,
            optimizer=mt.Sgd(learning_rate=0.5),
            initializer=mt.Zeros(),
            compressor=mt.Fp32(),
            out="add_n",
        )

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(head="click", logits=self.bias(batch).squeeze(1), label=batch.label[:, 0])


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, Mapping[str, Any]]:
    with zipfile.ZipFile(OLD_MODELS) as archive:
        archive.extractall(tmp_path)
    return tmp_path, json.loads((tmp_path / "expected.json").read_bytes())


def old_data(expected: Mapping[str, Any]) -> Any:
    columns = {name: expected[name] for name in ("user", "city", "click")}
    schema = OldRanker().declaration.schema(label_features=["click"])
    return mt.data.frame(columns, schema=schema).batch(6)


def test_a_checkpoint_of_before_keeps_its_ids_and_trains_on(
    old: tuple[Path, Mapping[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    folder, expected = old
    estimator = mt.Estimator(OldRanker, run_config(folder / "model"))
    with caplog.at_level(logging.WARNING):
        assert scores(estimator, old_data(expected)) == pytest.approx(expected["scores"], abs=1e-6)
    assert "old rule of ids kept" in caplog.text
    assert estimator.model.declaration.value_types == {"user": "slot48", "city": "slot48"}
    estimator.train(old_data(expected), resume_data=False)
    assert len(estimator.store["user"]) == expected["users"]
    assert len(estimator.store["city"]) == expected["cities"]
    estimator.close()
    again = mt.Estimator(OldRanker, run_config(folder / "model"))
    assert scores(again, old_data(expected)) == scores(estimator, old_data(expected))
    assert again.model.declaration.value_types == {"user": "slot48", "city": "slot48"}


def test_an_export_of_before_gives_the_scores_of_before(old: tuple[Path, Mapping[str, Any]]) -> None:
    folder, expected = old
    servable = Servable.load(folder / "export" / "1")
    asked = {"user": expected["user"], "city": expected["city"]}
    assert servable.predict_features(asked)["click"].tolist() == pytest.approx(expected["scores"], abs=1e-6)
    servable.close()
    with served(folder / "export") as clients:
        for client in clients.values():
            assert client.predict(asked)["click"].tolist() == pytest.approx(expected["scores"], abs=1e-6)
