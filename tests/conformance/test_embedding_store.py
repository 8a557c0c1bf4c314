"""One suite for everything that a model can train against: each backend and its fake pass the same tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from host_gpu import HostGpu
from monolith.core.errors import MonolithError
from monolith.embedding import MultiTable
from monolith.embedding.admission import SlidingHashFilter
from monolith.embedding.initializers import Constant
from monolith.embedding.optimizers import Adagrad, Sgd
from monolith.embedding.specs import SliceSpec, TableSpec
from monolith.embedding.store import EmbeddingStore
from monolith.nn import GpuStore
from monolith.ps import RemoteStore
from monolith.testing import ReferenceStore
from monolith.testing.processes.ps_servers import PsServers

USER = TableSpec(
    "user", [SliceSpec(1, optimizer=Sgd(1.0)), SliceSpec(2, optimizer=Sgd(2.0), initializer=Constant(8.0))]
)
ITEM = TableSpec("item", [SliceSpec(2, optimizer=Adagrad(1.0, initial_accumulator_value=1.0))])


# gRPC is built without sanitizers, and its threads would be reported.
IS_SANITIZED = "MONOLITH_SANITIZED" in os.environ
REMOTE = [f"{transport}-{count}" for transport in ("grpc", "data_plane") for count in (1, 3) if not IS_SANITIZED]


RANKS = [] if IS_SANITIZED else ["ranks"]


NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
GPU = pytest.param("gpu", marks=[pytest.mark.gpu, NO_GPU])
NO_COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
GPU_KERNELS = pytest.param("gpu_kernels", marks=NO_COMPILER)
"""The kernels of a GPU on the processor, by the stand-in of ``host_gpu``."""


@pytest.fixture(params=["native", "reference", GPU, GPU_KERNELS, *RANKS, *REMOTE])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[[list[TableSpec]], Any]]:
    if request.param == "reference":
        yield ReferenceStore
    elif request.param == "native":
        yield MultiTable
    elif request.param == "gpu":
        yield GpuStore
    elif request.param == "gpu_kernels":
        yield lambda specs: GpuStore(specs, HostGpu())
    elif request.param == "ranks":  # several ranks are in tests/integration/test_synchronous_training.py
        from monolith.training.groups.ranks import RankConnection, RankInfo, RankStore

        with RankConnection(RankInfo()) as connection:
            yield lambda specs: RankStore(connection, specs)
    else:
        transport, count = request.param.split("-")
        with PsServers(int(count)) as servers, ExitStack() as stores:

            def connect(specs: list[TableSpec]) -> RemoteStore:
                return stores.enter_context(RemoteStore(servers.addresses, specs, transport=transport))

            yield connect


@pytest.fixture
def store(make: Any) -> Any:
    return make([USER, ITEM])


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def rows(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float32)


def test_a_store_is_an_embedding_store(store: Any) -> None:
    assert isinstance(store, EmbeddingStore)


def test_specs_are_in_the_order_of_their_names(store: Any) -> None:
    assert list(store.specs) == ["item", "user"]
    assert store.specs["user"] == USER


def test_a_pull_gives_one_row_per_id_and_inserts_nothing(store: Any) -> None:
    pulled = store.pull({"user": ids(1, -2), "item": ids(5)})
    assert pulled["user"].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert pulled["item"].tolist() == [[0, 0]]
    assert store.pull({"item": ids(5)})["item"].tolist() == [[0, 0]]


def test_a_pull_may_name_only_some_tables_and_no_ids(store: Any) -> None:
    assert store.pull({}) == {}
    pulled = store.pull({"item": ids()})
    assert list(pulled) == ["item"]
    assert pulled["item"].shape == (0, 2)


def test_a_push_steps_each_row_with_the_rate_of_its_slice(store: Any) -> None:
    store.push({"user": ids(1, 2)}, {"user": rows([1, 1, 1], [2, 2, 2])}, time_s=3, step=0)
    assert store.pull({"user": ids(1, 2)})["user"].tolist() == [[-1, 6, 6], [-2, 4, 4]]


def test_a_push_reaches_every_table_it_names_and_no_other(store: Any) -> None:
    store.push({"user": ids(1), "item": ids(1)}, {"user": rows([1, 0, 0]), "item": rows([0, 0])})
    assert store.pull({"user": ids(1)})["user"].tolist() == [[-1, 8, 8]]
    assert store.pull({"item": ids(1)})["item"].tolist() == [[0, 0]]


def test_learning_rates_may_be_given_for_some_tables(store: Any) -> None:
    grads = {"user": rows([1, 1, 1]), "item": rows([0, 0])}
    store.push({"user": ids(1), "item": ids(1)}, grads, learning_rates={"user": [10.0, 0.0]})
    assert store.pull({"user": ids(1)})["user"].tolist() == [[-10, 8, 8]]


def test_admission_uses_the_counts(make: Any) -> None:
    spec = TableSpec("t", [SliceSpec(1, optimizer=Sgd(1.0))], admission=SlidingHashFilter(300), slot_thresholds={0: 3})
    store = make([spec])
    store.push({"t": ids(1, 2)}, {"t": rows([1], [1])}, counts={"t": np.array([3, 1])})
    assert store.pull({"t": ids(1, 2)})["t"].tolist() == [[0], [0]]
    store.push({"t": ids(1, 2)}, {"t": rows([1], [1])})
    assert store.pull({"t": ids(1, 2)})["t"].tolist() == [[-1], [0]]


def test_a_snapshot_brings_back_values_and_optimizer_state(make: Any, tmp_path: Path) -> None:
    store = make([USER, ITEM])
    store.push({"item": ids(1, 2)}, {"item": rows([1, 2], [3, 4])}, time_s=9)
    manifest = store.snapshot(tmp_path / "s")
    assert dict(manifest.rows) == {"item": 2, "user": 0}
    expected = store.pull({"item": ids(1, 2)})["item"].tolist()
    store.push({"item": ids(1, 3)}, {"item": rows([1, 2], [3, 4])}, time_s=10)
    after_one_more = store.pull({"item": ids(1)})["item"].tolist()
    store.restore(tmp_path / "s")
    assert store.pull({"item": ids(1, 2, 3)})["item"].tolist() == [*expected, [0, 0]]
    store.push({"item": ids(1)}, {"item": rows([1, 2])}, time_s=10)
    assert store.pull({"item": ids(1)})["item"].tolist() == after_one_more


def test_a_restore_of_nothing_is_refused(store: Any, tmp_path: Path) -> None:
    with pytest.raises(MonolithError, match="nowhere"):
        store.restore(tmp_path / "nowhere")


def test_unknown_tables_are_refused_by_name(store: Any) -> None:
    with pytest.raises(MonolithError, match="'usr'"):
        store.pull({"usr": ids(1)})
    with pytest.raises(MonolithError, match="'usr'"):
        store.push({"usr": ids(1)}, {"usr": rows([1, 1, 1])})


@pytest.mark.parametrize("argument", ["counts", "learning_rates"])
def test_counts_and_rates_of_an_unknown_table_are_refused_and_nothing_is_applied(store: Any, argument: str) -> None:
    with pytest.raises(MonolithError, match=f"{argument} name 'usr'"):
        store.push({"user": ids(1)}, {"user": rows([1, 1, 1])}, **{argument: {"usr": [1]}})
    assert store.pull({"user": ids(1)})["user"].tolist() == [[0, 0, 0]]


def test_ids_and_gradients_must_name_the_same_tables(store: Any) -> None:
    with pytest.raises(MonolithError, match="item"):
        store.push({"user": ids(1), "item": ids(1)}, {"user": rows([1, 1, 1])})
    assert store.pull({"user": ids(1)})["user"].tolist() == [[0, 0, 0]]


def test_a_gradient_of_the_wrong_width_is_refused_and_nothing_is_applied(store: Any) -> None:
    grads = {"item": rows([1, 1]), "user": rows([1, 1])}
    with pytest.raises(MonolithError, match="'user'"):
        store.push({"item": ids(1), "user": ids(1)}, grads)
    assert store.pull({"item": ids(1)})["item"].tolist() == [[0, 0]]
