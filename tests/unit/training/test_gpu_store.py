"""Training with the rows of a model on a GPU: the same rows, checkpoints, cuts and exports as in host memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.embedding import MultiTable, TableSpec
from monolith.nn import GpuStore

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]


class Ranker(mt.Model):
    """Two tables of two slices, one of them with an admission filter, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding_feature("user", slot=1, expire_days=30)
        self.embedding_feature("item", slot=2, occurrence_threshold=2, admission=mt.SlidingHashFilter(3000))
        self.vectors = self.embedding_slice(["user", "item"], "vec", 4, optimizer=mt.Adagrad(0.1), out="concat")
        self.bias = self.embedding_slice(["user", "item"], "bias", 1, optimizer=mt.Ftrl(0.1), out="add_n")
        self.top = torch.nn.Linear(8, 1)

    def forward(self, batch: Any) -> mt.Output:
        logits = self.top(self.vectors(batch)).squeeze(1) + self.bias(batch).squeeze(1)
        return mt.Output(logits=logits, label=batch.label[:, 0])


def draw_batches(seed: int, count: int = 12, *, known: int = 300, days: int = 1) -> list[mt.Batch]:
    random = np.random.default_rng(seed)
    batches = []
    for number in range(count):
        ids = {name: random.integers(0, known, (64, 2)).tolist() for name in ("user", "item")}
        label = random.integers(0, 2, 64).astype(np.float32)
        times = np.full(64, 1_600_000_000 + 86400 * (number * days + seed))
        batches.append(mt.Batch.from_arrays(ids=ids, label=label, event_time_s=times))
    return batches


def make(
    folder: Path, store: Callable[[list[TableSpec]], Any] | None, accelerator: str = "cpu", **options: Any
) -> mt.Estimator:
    quiet = {"log_step_count_steps": 0, "save_summary_steps": 0, "deterministic": True, "threads": 1}
    config = mt.RunConfig(model_dir=str(folder), accelerator=accelerator, **{**quiet, **options})
    return mt.Estimator(Ranker, config, store=store)


def rows_of(store: Any) -> dict[str, list[Any]]:
    """Return ids, times and rows of every table, in the order of the ids."""
    tables = store.host_tables() if isinstance(store, GpuStore) else store
    rows = {}
    for name in tables:
        if not len(tables[name]):
            continue
        columns = [np.concatenate(each) for each in zip(*tables[name].export_entries(), strict=True)]
        order = np.argsort(columns[0])
        rows[name] = [each[order] for each in columns]
    return rows


def assert_same(one: Any, other: Any, *, is_exact: bool = True) -> None:
    ours, theirs = rows_of(one), rows_of(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name][0], theirs[name][0])
        if one.specs[name].expire_days < 365:  # rows that cannot expire have no times
            np.testing.assert_array_equal(ours[name][1], theirs[name][1])
        if is_exact:
            np.testing.assert_array_equal(ours[name][2].view(np.uint32), theirs[name][2].view(np.uint32))
        else:
            np.testing.assert_allclose(ours[name][2], theirs[name][2], rtol=1e-4, atol=1e-5)


def test_rows_on_a_gpu_train_to_the_bits_of_rows_in_host_memory(tmp_path: Path) -> None:
    host, gpu = make(tmp_path / "host", None), make(tmp_path / "gpu", GpuStore)
    for each in (host, gpu):
        each.train(draw_batches(1))
    assert isinstance(gpu.store, GpuStore)
    assert_same(gpu.store, host.store)
    for one, other in zip(host.model.parameters(), gpu.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_model_trains_on_the_gpu_from_end_to_end(tmp_path: Path) -> None:
    host = make(tmp_path / "host", None)
    gpu = make(tmp_path / "gpu", GpuStore, accelerator="cuda")
    for each in (host, gpu):
        each.train(draw_batches(1))
    assert next(gpu.model.parameters()).is_cuda
    assert_same(gpu.store, host.store, is_exact=False)


def test_rows_on_a_gpu_train_while_other_threads_pull_and_push(tmp_path: Path) -> None:
    late = {"embedding_prefetch_capacity": 2, "enable_embedding_postpush": True, "enable_variable_postpush": True}
    host, gpu = make(tmp_path / "host", None, **late), make(tmp_path / "gpu", GpuStore, **late)
    for each in (host, gpu):
        each.train(draw_batches(1, 60, known=200_000, days=0))
    ours, theirs = rows_of(gpu.store), rows_of(host.store)
    np.testing.assert_array_equal(ours["user"][0], theirs["user"][0])
    assert len(ours["user"][0]) > 7000
    assert all(np.isfinite(rows[:, :5]).all() for _, _, rows in ours.values())


def test_a_checkpoint_of_a_gpu_resumes_in_host_memory_and_back(tmp_path: Path) -> None:
    gpu = make(tmp_path / "run", GpuStore)
    gpu.train(draw_batches(1))
    gpu.close()
    host = make(tmp_path / "run", None)
    assert host.step == 12
    assert_same(gpu.store, host.store)
    host.train(draw_batches(20))
    host.close()
    again = make(tmp_path / "run", GpuStore)
    assert again.step == 24
    assert_same(again.store, host.store)
    twin = make(tmp_path / "twin", None)
    for seed in (1, 20, 40):
        twin.train(draw_batches(seed), resume_data=False)
    again.train(draw_batches(40))
    assert_same(again.store, twin.store)


def test_a_server_follows_the_cuts_of_rows_on_a_gpu(tmp_path: Path) -> None:
    from monolith.export import export_model
    from monolith.serving import Servable
    from monolith.sync import Follower
    from monolith.testing.fakes.clock import FakeClock

    options = {"publish_dir": tmp_path / "published", "publish_interval_s": 3600.0}
    made = make(tmp_path / "run", GpuStore, **options)
    servable = Servable.load(export_model(made.model, made.store, tmp_path / "export", name="ranker", step=0))
    try:
        follower = Follower(tmp_path / "published", servable, clock=FakeClock())
        probe = draw_batches(1, 1)[0]
        for seed in (1, 20):
            made.train(draw_batches(seed), resume_data=False)
            assert follower.step()
            stepper = made._stepper
            heads = stepper.predict(stepper.embedder.pull(probe))
            expected = next(iter(heads.results().values())).predictions
            actual = next(iter(servable.predict_batch(probe).values()))
            np.testing.assert_allclose(actual, expected, atol=2e-3, rtol=0)  # served rows are of half precision
    finally:
        servable.close()


def test_an_export_of_rows_on_a_gpu_scores_as_one_of_host_memory(tmp_path: Path) -> None:
    from monolith.export import export_model
    from monolith.serving import Servable

    scores = []
    for name, store in (("host", None), ("gpu", GpuStore)):
        made = make(tmp_path / name, store)
        made.train(draw_batches(1))
        folder = export_model(made.model, made.store, tmp_path / f"{name}_export", name="ranker", step=12)
        servable = Servable.load(folder)
        scores.append(next(iter(servable.predict_batch(draw_batches(1, 1)[0]).values())))
        servable.close()
    np.testing.assert_array_equal(scores[0], scores[1])


def test_expired_rows_of_a_model_leave_the_gpu(tmp_path: Path) -> None:
    host, gpu = make(tmp_path / "host", None), make(tmp_path / "gpu", GpuStore)
    for each in (host, gpu):
        each.train(draw_batches(1, known=3000, days=4))
    now_s = 1_600_000_000 + 86400 * 45
    assert isinstance(host.store, MultiTable)
    assert isinstance(gpu.store, GpuStore)
    assert host.store.evict(now_s, force=True) == gpu.store.evict(now_s, force=True) > 0
    assert_same(gpu.store, host.store)
