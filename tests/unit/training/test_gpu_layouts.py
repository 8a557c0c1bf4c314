"""Training with rows on a GPU: rows, weights, losses and predictions are those of host memory, for every layout.

The stand-in of a GPU runs the kernels on the processor. On a machine with a GPU the same tests run there too.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from host_gpu import HostGpu
from monolith.core.errors import TrainingDiverged
from monolith.data import Ragged
from monolith.nn import GpuStore

Store = Callable[[Any], GpuStore]

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(
    params=[
        pytest.param("processor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")),
        pytest.param(
            "gpu",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")],
        ),
    ]
)
def open_store(request: pytest.FixtureRequest) -> Store:
    if request.param == "gpu":
        return GpuStore
    return lambda specs: GpuStore(specs, HostGpu())


class EveryLayout(mt.Model):
    """Sums, means, sequences, slices, shared tables, and every way to join them."""

    def __init__(self) -> None:
        super().__init__(labels=2)
        torch.manual_seed(1)
        self.embedding_feature("user", slot=1)
        self.embedding_feature("item", slot=2)
        self.embedding_feature("seen", shared_with="item", combiner="mean")
        self.embedding_feature("last", shared_with="item", max_sequence_length=3)
        self.embedding_feature("city", slot=4, combiner="mean")
        adagrad = mt.Adagrad(0.1)
        pooled = ["user", "item", "seen", "city"]
        self.wide = self.embedding_slice(pooled, "bias", 1, optimizer=mt.Ftrl(0.1), out="add_n")
        self.pairs = self.embedding_slice(["user", "item", "seen"], "vec", 5, optimizer=adagrad, out="stack")
        self.same = self.embedding_slice(["user", "seen"], "vec", 5, optimizer=adagrad, out="concat")
        self.sequence = self.embedding_slice("last", "vec", 5, optimizer=adagrad)
        self.apart = self.embedding_slice(["city", "item"], "side", 3, optimizer=mt.Sgd(0.1))
        self.unused = self.embedding_slice("city", "rest", 2, optimizer=mt.Sgd(0.1))
        self.top = torch.nn.Linear(15 + 10 + 15 + 6, 2)

    def forward(self, batch: Any) -> list[mt.Output]:
        self.unused(batch)
        city, item = self.apart(batch)
        parts = [self.pairs(batch).flatten(1), self.same(batch), self.sequence(batch).flatten(1), city * 2, item]
        logits = self.top(torch.cat(parts, dim=1)) + self.wide(batch)
        return [
            mt.Output(head=name, logits=logits[:, place], label=batch.label[:, place])
            for place, name in enumerate(("click", "buy"))
        ]


def draw_batches(count: int = 6, *, size: int = 24, seed: int = 3) -> list[mt.Batch]:
    """Return batches with bags of all lengths, empty ones too; bags of "user" have one id, that of "city" is shared."""
    random = np.random.default_rng(seed)
    batches = []
    for number in range(count):
        ids: dict[str, Any] = {"user": random.integers(0, 30, (size, 1)).tolist()}
        for name in ("item", "seen", "last"):
            ids[name] = [random.integers(0, 12, length).tolist() for length in random.integers(0, 5, size)]
        shared = random.integers(0, 5, 1 + number % 3)
        ids["city"] = Ragged(shared, np.array([0, len(shared)]), shared=True)
        label = random.integers(0, 2, (size, 2)).astype(np.float32)
        times = np.full(size, 1_600_000_000 + number)
        batches.append(mt.Batch.from_arrays(ids=ids, label=label, event_time_s=times))
    return batches


def make(model: Callable[[], mt.Model], store: Store | None, **options: Any) -> mt.Estimator:
    quiet = {"log_step_count_steps": 0, "save_summary_steps": 0, "threads": 1, "progress": False}
    return mt.Estimator(model, mt.RunConfig(**{**quiet, **options}), store=store)


def rows_of(store: Any) -> dict[str, tuple[Any, Any]]:
    """Return ids and rows of every table, in the order of the ids."""
    tables = store.host_tables() if isinstance(store, GpuStore) else store
    rows = {}
    for name in tables:
        ids, _, values = (np.concatenate(each) for each in zip(*tables[name].export_entries(), strict=True))
        order = np.argsort(ids)
        rows[name] = (ids[order], values[order])
    return rows


def train_both(open_store: Store, model: Callable[[], mt.Model] = EveryLayout, **options: Any) -> list[mt.Estimator]:
    made = [make(model, store, **options) for store in (None, open_store)]
    for each in made:
        each.train(draw_batches())
    return made


def assert_same(host: mt.Estimator, gpu: mt.Estimator, *, is_exact: bool) -> None:
    assert isinstance(gpu.store, GpuStore)
    ours, theirs = rows_of(gpu.store), rows_of(host.store)
    assert ours.keys() == theirs.keys()
    tolerance = {"rtol": 0, "atol": 0} if is_exact else {"rtol": 1e-5, "atol": 1e-6}
    for name in theirs:
        np.testing.assert_array_equal(ours[name][0], theirs[name][0])
        np.testing.assert_allclose(ours[name][1], theirs[name][1], **tolerance)
    for one, other in zip(gpu.model.parameters(), host.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def test_every_layout_trains_to_the_bits_of_host_memory(open_store: Store) -> None:
    host, gpu = train_both(open_store, deterministic=True)
    assert_same(host, gpu, is_exact=True)
    assert len(rows_of(host.store)["item"][0]) == 12


def test_training_does_not_copy_rows_and_gradients_to_the_host(
    open_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("rows visit the host")

    for name in ("pull", "push"):
        monkeypatch.setattr(GpuStore, name, refuse)
    gpu = make(EveryLayout, open_store)
    gpu.train(draw_batches(2))
    assert gpu.step == 2


def test_sums_without_an_order_train_to_the_values_of_host_memory(open_store: Store) -> None:
    assert_same(*train_both(open_store), is_exact=False)


def test_clipped_gradients_train_to_the_values_of_host_memory(open_store: Store) -> None:
    free, _ = train_both(open_store)
    for rule, bound in (("global_norm", 0.5), ("value", 0.01), ("norm", 0.1)):
        host, gpu = train_both(open_store, deterministic=True, clip_type=rule, clip_norm=bound)
        assert_same(host, gpu, is_exact=False)
        assert not np.allclose(rows_of(host.store)["user"][1], rows_of(free.store)["user"][1])


def test_late_updates_and_rows_pulled_ahead_are_those_of_host_memory(open_store: Store) -> None:
    late = {"embedding_prefetch_capacity": 2, "enable_embedding_postpush": True, "enable_variable_postpush": True}
    host, gpu = train_both(open_store, deterministic=True, **late)
    assert_same(host, gpu, is_exact=True)


def test_predictions_are_those_of_host_memory(open_store: Store) -> None:
    host, gpu = train_both(open_store, deterministic=True)
    rows = rows_of(gpu.store)
    batch = draw_batches(1, seed=9)
    ours, theirs = (list(each.predict(batch)) for each in (gpu, host))
    assert ours[0].keys() == theirs[0].keys()
    for name in theirs[0]:
        np.testing.assert_array_equal(ours[0][name], theirs[0][name])
    np.testing.assert_array_equal(rows_of(gpu.store)["user"][0], rows["user"][0])  # a prediction inserts nothing


def test_updates_of_dropped_ids_are_left_out(open_store: Store) -> None:
    made = [make(EveryLayout, store, deterministic=True) for store in (None, open_store)]
    dropped = np.array([3])
    for each in made:
        batches = draw_batches(2)
        each.train(batches[:1])
        each._stepper.embedder.blocked = lambda: {"item": dropped}  # type: ignore[attr-defined]
        before = each.store.pull({"item": dropped})["item"].copy()
        each.train(batches[1:], resume_data=False)
        np.testing.assert_array_equal(each.store.pull({"item": dropped})["item"], before)
    assert_same(*made, is_exact=True)


class Diverging(EveryLayout):
    """The loss of its third batch is not a number."""

    def forward(self, batch: Any) -> list[mt.Output]:
        outputs = super().forward(batch)
        factor = float("nan") if int(batch.event_time_s[0]) == 1_600_000_002 else 1.0
        return [mt.Output(head=each.head, logits=each.logits * factor, label=each.label) for each in outputs]


def test_a_step_whose_loss_is_not_finite_changes_nothing(open_store: Store) -> None:
    gpu, host = make(Diverging, open_store, deterministic=True), make(EveryLayout, None, deterministic=True)
    host.train(draw_batches()[:2])
    with pytest.raises(TrainingDiverged, match="step 3"):
        gpu.train(draw_batches())
    assert_same(host, gpu, is_exact=True)


class Filtered(mt.Model):
    """A table with an admission filter and an expiry."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding_feature("user", slot=1, occurrence_threshold=3, admission=mt.SlidingHashFilter(3000))
        self.embedding_feature("item", slot=2, expire_days=1)
        self.vectors = self.embedding_slice(["user", "item"], "vec", 4, optimizer=mt.Adam(0.1), out="add_n")

    def forward(self, batch: Any) -> mt.Output:
        return mt.Output(logits=self.vectors(batch).sum(1), label=batch.label[:, 0])


def test_admission_counts_and_event_times_are_those_of_host_memory(open_store: Store) -> None:
    host, gpu = train_both(open_store, Filtered, deterministic=True)
    assert_same(host, gpu, is_exact=True)
    assert 0 < len(rows_of(host.store)["user"][0]) < 30
    times = [
        np.concatenate([each for _, each, _ in tables["item"].export_entries()])
        for tables in (host.store, gpu.store.host_tables())
    ]
    assert sorted(times[0]) == sorted(times[1])
    assert len(set(times[0])) > 1


def test_a_model_without_a_gradient_of_rows_trains(open_store: Store) -> None:
    class Constant(EveryLayout):
        def forward(self, batch: Any) -> list[mt.Output]:
            outputs = super().forward(batch)
            return [
                mt.Output(head=each.head, logits=each.logits.detach() + self.top.bias[0], label=each.label)
                for each in outputs
            ]

    host, gpu = train_both(open_store, Constant, deterministic=True)
    assert_same(host, gpu, is_exact=True)
