"""An entry and the servers of its sub-models, all in this process, with real connections between them."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith.artifacts.export_folder import ExportFolder
from monolith.artifacts.export_manifest import read_export_manifest
from monolith.core.errors import ConfigError, ModelNotReady, RpcTimeout, ShardUnavailable
from monolith.discovery import MemoryDiscovery, ServiceInfo
from monolith.export import ExportOptions, export_model, exporter
from monolith.export.dense_part import DensePart
from monolith.serving import (
    Client,
    DegradedOutputs,
    DiscoveredAddresses,
    FileAddresses,
    GivenAddresses,
    ModelConfig,
    ModelServer,
    RemoteCalls,
    RemoteSettings,
    Servable,
    ServingConfig,
    VersionPolicy,
    servable_loader,
)
from monolith.serving.metrics import ServingMetrics
from monolith.serving.remote.addresses import Addresses, Place, parse_remotes
from monolith.serving.remote.rows import PsRowClient
from monolith.serving.requests.request_deadline import deadline
from monolith.serving.versions.loaded_model import Loader
from monolith.telemetry.names import SERVING_REMOTE_CALLS_TOTAL

LONG_S = 60.0
SHARDS = 2
FEATURES = {
    "user": [{"fids": [3]}, {"fids": [4]}, {"fids": [9]}],
    "item": [{"fids": [1, 2]}, {"fids": []}, {"fids": [7, 8, 9]}],
}


class Scorer(mt.Model):
    def __init__(self) -> None:
        super().__init__()
        self.embedding_feature("user", slot=1)
        self.embedding_feature("item", slot=2)
        options: dict[str, Any] = {"initializer": mt.RandomUniform(-1, 1), "compressor": mt.Fp32()}
        self.vec = self.embedding_slice(["user", "item"], "vec", 4, **options)

    def forward(self, batch: mt.Batch) -> mt.Output:
        user, item = self.vec(batch)
        return mt.Output(head="click", logits=(user * item).sum(dim=1) + user.sum(dim=1), label=batch.label[:, 0])


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``whole/2``; in ``parts`` the versions 1 and 2, and a 3 without tables, whose dense part is in ``dense_0``."""
    folder = tmp_path_factory.mktemp("exports")
    random = np.random.default_rng(3)
    estimator = mt.Estimator(Scorer, mt.RunConfig(seed=5))

    part = DensePart(estimator.model)  # it has no weights, so it is the same in every version

    def export(name: str, version: int, **options: Any) -> None:
        chosen = ExportOptions(**options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exporter, "DensePart", lambda model: part)
            export_model(
                estimator.model, estimator.store, folder / name, name="m", step=version, version=version, options=chosen
            )

    for version in (1, 2):
        given = mt.Batch.from_arrays(
            ids={name: [[int(each)] for each in random.integers(1, 10, 64)] for name in ("user", "item")},
            label=random.integers(0, 2, 64),
        )
        estimator.train([given] * 3)
        export("parts", version, layout="distributed", shards=SHARDS)
    export("whole", 2)
    export("parts", 3, layout="distributed", shards=SHARDS, is_dense_only=True, has_remote_dense=True)
    return folder


def expected(exports: Path, version: int = 2) -> list[float]:
    """Return the scores of the standalone export; of version 1, those of its parts put together in this process."""
    if version == 2:
        servable = Servable.load(exports / "whole" / "2")
    else:
        shards = [Servable.load(exports / "parts" / f"ps_{index}" / str(version)) for index in range(SHARDS)]
        servable = Servable.load(exports / "parts" / "entry" / str(version), rows=_Local(shards))
    found: list[float] = servable.predict_features(FEATURES)["click"].tolist()
    return found


class _Local:
    def __init__(self, shards: list[Servable]) -> None:
        self._shards = shards

    def pull(self, ids: Any) -> Any:
        return {
            name: np.concatenate(
                [np.empty((0, 4), np.float32)] + [self._shards[int(key) % SHARDS].lookup(name, [key]) for key in keys]
            )
            for name, keys in ids.items()
        }


class Fleet:
    """Servers, by the names that a test gives them."""

    def __init__(self, exports: Path, stack: ExitStack) -> None:
        self.exports = exports
        self._stack = stack

    def serve(self, name: str, *, loader: Loader | None = None, **policy: Any) -> ModelServer:
        """Serve a sub-model on a free port, and wait for it."""
        config = ModelConfig(name=name, base_path=self.exports / "parts" / name, policy=VersionPolicy(**policy))
        return self.start(config, loader or servable_loader())

    def start(self, config: ModelConfig, loader: Loader, metrics: ServingMetrics | None = None) -> ModelServer:
        server = ModelServer(
            ServingConfig(models=[config], port=0, rest_port=0, version_poll_s=0.0, load_retry_interval_s=0.0),
            loader,
            metrics=metrics,
        )
        self._stack.callback(server.stop, 0.0)
        server.start()
        assert server.models.wait_until_settled(LONG_S)
        return server

    def calls(self, addresses: Addresses | dict[str, list[str]], **settings: Any) -> tuple[RemoteCalls, ServingMetrics]:
        metrics = ServingMetrics()
        where = GivenAddresses(addresses) if isinstance(addresses, dict) else addresses
        made = RemoteCalls(where, RemoteSettings(**{"timeout_s": LONG_S, **settings}), on_call=metrics.remote_call)
        self._stack.callback(made.close)
        return made, metrics

    def entry(
        self, addresses: Addresses | dict[str, list[str]], version: int = 2, **settings: Any
    ) -> tuple[ModelServer, Client]:
        """Serve an entry that asks the servers at these addresses."""
        calls, metrics = self.calls(addresses, **settings)
        policy = VersionPolicy(kind="specific", versions=[version])
        config = ModelConfig(name="m", base_path=self.exports / "parts" / "entry", policy=policy)
        server = self.start(config, servable_loader(calls), metrics)
        client = Client(server.address, model="m", timeout_s=LONG_S)
        self._stack.callback(client.close)
        return server, client


@pytest.fixture
def fleet(exports: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(exports, stack)


class Slow:
    """Loads sub-models whose lookups wait for an event."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.is_slow = False

    def __call__(self, folder: Path) -> Any:
        servable = Servable.load(folder)
        answer = servable.call

        def call(signature: str, inputs: Any) -> Any:
            if self.is_slow:
                self.may_go_on.wait(LONG_S)
            return answer(signature, inputs)

        servable.call = call  # type: ignore[method-assign]
        return servable


@pytest.fixture
def slow() -> Iterator[Slow]:
    made = Slow()
    yield made
    made.may_go_on.set()


def ask(client: Client) -> list[float]:
    found: list[float] = client.predict(
        {
            name: np.array([[each["fids"][0]] if each["fids"] else [0] for each in rows])
            for name, rows in FEATURES.items()
        }
    )["click"].tolist()
    return found


def ask_rest(server: ModelServer) -> tuple[list[float], str]:
    body = json.dumps({"inputs": FEATURES}).encode()
    with urllib.request.urlopen(f"http://{server.rest_address}/v1/models/m:predict", body, timeout=LONG_S) as answer:
        return json.loads(answer.read())["outputs"], answer.headers.get("Monolith-Degraded", "")


def page(server: ModelServer) -> str:
    with urllib.request.urlopen(f"http://{server.rest_address}/metrics", timeout=LONG_S) as answer:
        return str(answer.read().decode())


def test_remote_rows_give_the_scores_of_a_standalone_export(fleet: Fleet, exports: Path) -> None:
    parts = {name: [fleet.serve(name).address] for name in ("ps_0", "ps_1")}
    server, _ = fleet.entry(parts)
    scores, mark = ask_rest(server)
    assert np.float32(scores).tolist() == expected(exports)
    assert mark == ""
    assert 'monolith_serving_remote_calls_total{part="ps_1",outcome="ok"}' in page(server)


def test_an_entry_without_tables_asks_for_those_of_before_and_for_its_own_dense_part(
    fleet: Fleet, exports: Path
) -> None:
    assert ExportFolder(exports / "parts").versions("ps_0") == [1, 2]
    assert read_export_manifest(exports / "parts" / "entry" / "3").tables_version == 2
    parts = {name: [fleet.serve(name).address] for name in ("ps_0", "ps_1", "dense_0")}
    server, _ = fleet.entry(parts, version=3)
    assert np.float32(ask_rest(server)[0]).tolist() == expected(exports)


def test_a_version_that_was_copied_to_another_number_uses_the_parts_of_that_number(
    fleet: Fleet, exports: Path, tmp_path: Path
) -> None:
    parts = ("entry", "ps_0", "ps_1")
    for name in parts:
        shutil.copytree(exports / "parts" / name / "1", tmp_path / "parts" / name / "7")
    fleet.exports = tmp_path  # no server has the version of the manifests
    server, _ = fleet.entry({name: [fleet.serve(name).address] for name in parts[1:]}, version=7)
    assert np.float32(ask_rest(server)[0]).tolist() == expected(exports, 1)


def test_a_batch_makes_one_call_per_shard_and_no_call_where_no_id_is(fleet: Fleet, exports: Path) -> None:
    parts = {name: [fleet.serve(name).address] for name in ("ps_0", "ps_1")}
    calls, metrics = fleet.calls(parts)
    rows = PsRowClient(read_export_manifest(exports / "parts" / "entry" / "2"), calls)

    def counts() -> dict[tuple[str, str], int]:
        outcomes = dict(metrics.registry.samples())[SERVING_REMOTE_CALLS_TOTAL]
        return {(part, outcome): count for (part, outcome), count in outcomes}

    found = rows.pull({"item": np.array([7, 1, 9]), "user": np.array([3])})
    assert counts() == {("ps_1", "ok"): 1}
    whole = Servable.load(exports / "whole" / "2")
    assert found["item"].tolist() == whole.lookup("item", [7, 1, 9]).tolist()
    assert found["user"].tolist() == whole.lookup("user", [3]).tolist()
    found = rows.pull({"user": np.array([2, -1, 3, 4], np.int64)})
    assert found["user"].tolist() == whole.lookup("user", [2, -1, 3, 4]).tolist()
    assert counts() == {("ps_0", "ok"): 1, ("ps_1", "ok"): 2}


def test_a_replica_that_ends_is_survived_and_then_asked_last(fleet: Fleet, exports: Path) -> None:
    replicas = [fleet.serve("ps_1"), fleet.serve("ps_1")]
    parts = {"ps_0": [fleet.serve("ps_0").address], "ps_1": [each.address for each in replicas]}
    server, _ = fleet.entry(parts, cool_down_s=3600.0)
    replicas[0].stop(0.0)
    for _ in range(6):
        assert np.float32(ask_rest(server)[0]).tolist() == expected(exports)
    failed = [line for line in page(server).splitlines() if 'part="ps_1",outcome="failed"' in line]
    assert [line.split()[-1] for line in failed] == ["1"]


def test_a_shard_without_servers_is_an_error_that_names_it(fleet: Fleet) -> None:
    lost = fleet.serve("ps_1")
    server, client = fleet.entry({"ps_0": [fleet.serve("ps_0").address], "ps_1": [lost.address]})
    lost.stop(0.0)
    with pytest.raises(ModelNotReady) as caught:
        ask(client)
    for word in ("UNAVAILABLE", "ps_1", "'user'", lost.address, "version 2"):
        assert word in str(caught.value)
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask_rest(server)
    assert refused.value.code == 503
    refused.value.close()


def test_a_degraded_answer_is_marked_and_counted(fleet: Fleet, exports: Path) -> None:
    lost = fleet.serve("ps_1")
    parts = {"ps_0": [fleet.serve("ps_0").address], "ps_1": [lost.address]}
    server, client = fleet.entry(parts, allow_degraded=True)
    assert not isinstance(client.predict({"user": [[3]]}), DegradedOutputs)
    lost.stop(0.0)
    scores, mark = ask_rest(server)
    assert mark == "ps_1"
    # The second row has ids of the other shard only.
    assert np.float32(scores)[1] == np.float32(expected(exports)[1])
    assert np.float32(scores)[0] != np.float32(expected(exports)[0])
    found = client.predict({"user": [[3]]})
    assert isinstance(found, DegradedOutputs)
    assert found.missing == ("ps_1",)
    assert not isinstance(client.predict({"user": [[4]]}), DegradedOutputs)
    assert 'monolith_serving_degraded_total{model="m"} 2' in page(server)


def test_the_deadline_of_a_call_is_honoured(fleet: Fleet, exports: Path, slow: Slow) -> None:
    parts = {"ps_0": [fleet.serve("ps_0").address], "ps_1": [fleet.serve("ps_1", loader=slow).address]}
    manifest = read_export_manifest(exports / "parts" / "entry" / "2")
    rows = PsRowClient(manifest, fleet.calls(parts, timeout_s=0.2)[0])
    slow.is_slow = True
    with pytest.raises(RpcTimeout, match="ps_1 did not return rows of 'user'"):
        rows.pull({"user": np.array([3])})
    # A request's own deadline comes first: otherwise this would take a minute.
    patient, metrics = fleet.calls(parts, timeout_s=60.0)
    begun_s = time.monotonic()
    with deadline(begun_s + 0.2), pytest.raises(RpcTimeout):
        PsRowClient(manifest, patient).pull({"user": np.array([3])})
    assert time.monotonic() - begun_s < 30
    assert metrics.registry.value(SERVING_REMOTE_CALLS_TOTAL, ("ps_1", "ok")) is None


def test_a_hedged_call_takes_the_faster_answer(fleet: Fleet, exports: Path, slow: Slow) -> None:
    parts = {
        "ps_0": [fleet.serve("ps_0").address],
        "ps_1": [fleet.serve("ps_1", loader=slow).address, fleet.serve("ps_1").address],
    }
    server, _ = fleet.entry(parts, hedge_s=0.02)
    slow.is_slow = True
    for _ in range(4):
        assert np.float32(ask_rest(server)[0]).tolist() == expected(exports)
    assert 'part="ps_1",outcome="dropped"' in page(server)
    assert 'part="ps_1",outcome="failed"' not in page(server)


def test_a_silent_replica_does_not_use_up_the_time(fleet: Fleet, exports: Path, slow: Slow) -> None:
    parts = {
        "ps_0": [fleet.serve("ps_0").address],
        "ps_1": [fleet.serve("ps_1", loader=slow).address, fleet.serve("ps_1").address],
    }
    calls, _ = fleet.calls(parts, timeout_s=2.0, cool_down_s=3600.0)
    rows = PsRowClient(read_export_manifest(exports / "parts" / "entry" / "2"), calls)
    slow.is_slow = True
    for _ in range(4):
        assert rows.pull({"user": np.array([3])})["user"].shape == (1, 4)


def test_an_entry_waits_for_its_version_of_the_tables_while_the_old_one_serves(fleet: Fleet, exports: Path) -> None:
    old = {"kind": "specific", "versions": [1]}
    shards = [fleet.serve(f"ps_{index}", **old) for index in range(SHARDS)]
    calls, _ = fleet.calls({f"ps_{index}": [server.address] for index, server in enumerate(shards)})
    base = exports / "parts" / "entry"
    first = ModelConfig(name="m", base_path=base, policy=VersionPolicy(**old))
    server = fleet.start(first, servable_loader(calls))
    newest = ModelConfig(name="m", base_path=base, policy=VersionPolicy(kind="specific", versions=[2]))
    with pytest.raises(ModelNotReady, match=r"version 2.*ps_0"):
        server.configure([newest], LONG_S)
    assert np.float32(ask_rest(server)[0]).tolist() == expected(exports, 1)
    for index, shard in enumerate(shards):
        both = VersionPolicy(count=2)
        shard.configure(
            [ModelConfig(name=f"ps_{index}", base_path=exports / "parts" / f"ps_{index}", policy=both)], LONG_S
        )
        assert np.float32(ask_rest(server)[0]).tolist() == expected(exports, 1)
    server.configure([newest], LONG_S)
    assert np.float32(ask_rest(server)[0]).tolist() == expected(exports, 2)


def test_an_entry_without_servers_of_its_rows_is_refused_with_the_remedy(exports: Path) -> None:
    with pytest.raises(ConfigError, match="--remote"):
        servable_loader()(exports / "parts" / "entry" / "2")


def test_a_shard_without_a_server_is_named(fleet: Fleet, exports: Path) -> None:
    calls, _ = fleet.calls({"ps_0": [fleet.serve("ps_0").address]})
    with pytest.raises(ShardUnavailable, match="ps_1 has no address"):
        servable_loader(calls)(exports / "parts" / "entry" / "2")


def test_tables_of_another_model_are_refused(fleet: Fleet, exports: Path) -> None:
    wrong = fleet.start(
        ModelConfig(name="ps_0", base_path=exports / "parts" / "ps_0"),
        lambda folder: _Narrow(Servable.load(folder)),  # type: ignore[arg-type, return-value]
    )
    calls, _ = fleet.calls({"ps_0": [wrong.address], "ps_1": [wrong.address]})
    rows = PsRowClient(read_export_manifest(exports / "parts" / "entry" / "2"), calls)
    with pytest.raises(ShardUnavailable, match="returned 1 numbers, expected 4"):
        rows.pull({"user": np.array([2])})


class _Narrow:
    def __init__(self, servable: Servable) -> None:
        self._servable = servable
        self.call: Callable[..., Any] = lambda signature, inputs: {"flat_emb": np.zeros(1, np.float32)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._servable, name)


def test_addresses_come_from_discovery_as_servers_come_and_go(fleet: Fleet, exports: Path) -> None:
    with_discovery = MemoryDiscovery()
    with_discovery.connect()
    addresses = DiscoveredAddresses(with_discovery)
    for name in ("ps_0", "ps_1"):
        host, port = fleet.serve(name).address.split(":")
        with_discovery.register(ServiceInfo(service_type=name, index=0, host=host, port=int(port)))
    server, _ = fleet.entry(addresses)
    assert np.float32(ask_rest(server)[0]).tolist() == expected(exports)
    with_discovery.register(ServiceInfo(service_type="ps_0", index=1, host="127.0.0.1", port=1))
    assert len(addresses.find("m", "ps_0").addresses) == 2
    with_discovery.deregister("ps_0-1")
    assert len(addresses.find("m", "ps_0").addresses) == 1
    addresses.close()
    with_discovery.close()


def test_a_file_of_addresses_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "addresses.json"
    file.write_text('{"ps:0": ["a:1"], "clicks:ps_1": ["b:1", "c:1"]}')
    addresses = FileAddresses(file)
    assert addresses.find("clicks", "ps_0") == Place("ps_0", ("a:1",))
    assert addresses.find("clicks", "ps_1") == Place("clicks:ps_1", ("b:1", "c:1"))
    assert addresses.find("likes", "ps_1") == Place("ps_1", ())
    file.write_text('{"ps_0": ["a:1", "a:22"]}')
    assert addresses.find("clicks", "ps_0").addresses == ("a:1", "a:22")
    file.write_text("{")
    assert addresses.find("clicks", "ps_0").addresses == ("a:1", "a:22")
    for text in ("{", "[]", '{"ps_0": "a:1"}', '{"ps_0": [["a:1"]]}', '{"ps_0": ["a"]}'):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"addresses\.json"):
            FileAddresses(file)


def test_a_file_of_addresses_is_read_again_after_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "addresses.json"
    file.write_text('{"ps_0": ["a:1"]}')
    addresses = FileAddresses(file)
    file.write_text('{"ps_0": ["b:22"]}')
    with monkeypatch.context() as patched:

        def fail(*args: object, **named: object) -> str:
            raise OSError(errno.EMFILE, "too many open files")

        patched.setattr(Path, "read_text", fail)
        for _ in range(3):
            assert addresses.find("clicks", "ps_0").addresses == ("a:1",)
    assert len(caplog.messages) == 1
    assert addresses.find("clicks", "ps_0").addresses == ("b:22",)


@pytest.mark.parametrize("texts", [["ps_0"], ["ps_0="], ["=a:1"], ["ps_0=a"], ["ps_0=a:1", "ps_0=b:1"], ["ps_0=a:1,"]])
def test_invalid_remotes_are_refused(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="--remote"):
        parse_remotes(texts)


@pytest.mark.parametrize(
    "settings", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"hedge_s": 0}, {"hedge_s": 2.0}, {"cool_down_s": -1}]
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RemoteSettings(**settings)  # type: ignore[arg-type]
