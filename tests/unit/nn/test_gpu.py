"""Tables on a GPU against those in host memory: the same rows for the same calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from monolith.core.errors import CapacityExceeded, ConfigError, DimensionMismatch, ExpiryRefused
from monolith.nn.gpu import GpuTable
from monolith.nn.gpu.event_stamps import EventStamps
from rule_choices import CHOICES

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]

OPTIMIZERS = [*CHOICES, mt.StochasticRoundingFp16(mt.Adagrad(0.1)), mt.StochasticRoundingFp16(mt.GroupFtrl(0.1))]
INITIALIZERS = [mt.Zeros(), mt.Constant(0.25), mt.RandomUniform(-0.5, 0.5)]


def make_spec(dim: int, optimizer: Any, initializer: Any = None, **settings: Any) -> mt.TableSpec:
    piece = mt.SliceSpec(dim, optimizer=optimizer, initializer=initializer or mt.RandomUniform(-1, 1))
    return mt.TableSpec("user", [piece], on_miss="initial", seed=3, **settings)


def on_gpu(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(array)).cuda()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
@pytest.mark.parametrize("dim", [1, 3, 16, 130])
def test_distinct_ids_give_equal_bits(optimizer: Any, dim: int) -> None:
    if optimizer.base.kind == "batch_softmax" and dim != 1:
        pytest.skip("batch_softmax has one column")
    rng = np.random.default_rng(0)
    host, gpu = mt.Table(make_spec(dim, optimizer)), GpuTable(make_spec(dim, optimizer))
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, 20_000))
    ids[0] = -(2**63)
    for step in range(3):
        some = rng.choice(ids, 10_000, replace=False)
        grads = rng.standard_normal((len(some), dim)).astype(np.float32)
        host.apply_gradients(some, grads, step=step, time_s=100 + step)
        gpu.apply_gradients(on_gpu(some), on_gpu(grads), time_s=100 + step)
    actual, expected = gpu.lookup(on_gpu(ids)).cpu().numpy(), host.lookup(ids)
    if optimizer.base.kind == "dynamic_wd_adagrad":  # exp() of the GPU may differ in its last bit
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-7)
    else:
        np.testing.assert_array_equal(actual, expected)
    assert len(gpu) == len(host)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_a_deterministic_table_gives_the_same_bits_in_each_run(mode: Any) -> None:
    rng = np.random.default_rng(4)
    spec = make_spec(6, mt.Adagrad(0.1), deterministic=True)
    tables = [GpuTable(spec) for _ in range(3)]
    host = mt.Table(spec)
    for step in range(4):
        ids = rng.zipf(1.3, 20_000) % 1000
        offsets = np.arange(0, 20_001, 4)
        grads = rng.standard_normal((5000, 6)).astype(np.float32)
        host.apply_pooled_gradients(ids, offsets, grads, mode, step=step)
        for table in tables:
            table.apply_pooled_gradients(on_gpu(ids), on_gpu(offsets), on_gpu(grads), mode)
    every = on_gpu(np.arange(1000))
    rows = [table.lookup(every).cpu().numpy() for table in tables]
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows[0], rows[2])
    np.testing.assert_allclose(rows[0], host.lookup(np.arange(1000)), rtol=1e-3, atol=1e-4)


def test_expired_rows_leave_and_the_others_stay() -> None:
    rng = np.random.default_rng(5)
    days = 86400
    ids = np.unique(rng.integers(0, 2**46, 50_000))
    ids |= rng.integers(0, 3, len(ids)) << 48
    ids = np.concatenate([ids, [-(2**63)]])
    spec = make_spec(5, mt.Adam(0.1), expire_days=10, slot_expire_days={1: 2})
    host, gpu = mt.Table(spec), GpuTable(spec)
    for step in range(6):
        some = rng.choice(ids, 15_000, replace=False)
        grads = rng.standard_normal((len(some), 5)).astype(np.float32)
        now = 1_600_000_000 + step * 3 * days
        host.apply_gradients(some, grads, step=step, time_s=now)
        gpu.apply_gradients(on_gpu(some), on_gpu(grads), time_s=now)
    assert gpu.max_time_s == host.max_time_s
    assert gpu.evict(now) == host.evict(now) > 0
    assert len(gpu) == len(host)
    np.testing.assert_array_equal(gpu.lookup(on_gpu(ids)).cpu().numpy(), host.lookup(ids))
    grads = rng.standard_normal((len(ids), 5)).astype(np.float32)
    host.apply_gradients(ids, grads, step=6, time_s=now)
    gpu.apply_gradients(on_gpu(ids), on_gpu(grads), time_s=now, step=6)
    np.testing.assert_array_equal(gpu.lookup(on_gpu(ids)).cpu().numpy(), host.lookup(ids))
    with pytest.raises(ExpiryRefused, match="force"):
        gpu.evict(now + 100 * days)
    assert len(gpu) == len(host) == len(ids)
    assert gpu.evict(now + 100 * days, force=True) == len(ids)
    assert len(gpu) == 0


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    gpu = GpuTable(make_spec(6, mt.Adagrad(0.5)))
    ids = torch.arange(4, device="cuda")
    gpu.apply_gradients(ids, torch.ones((4, 6), device="cuda"))
    before = gpu.lookup(ids)
    grads = torch.ones((4, 6), device="cuda")
    grads[1, 5], grads[2, 0] = float("nan"), float("inf")
    gpu.apply_gradients(ids, grads)
    changed = (gpu.lookup(ids) != before).any(dim=1).tolist()
    assert changed == [True, False, False, True]


def test_find_or_insert_gives_rows_to_new_ids() -> None:
    gpu = GpuTable(make_spec(5, mt.Adagrad(0.5)))
    ids = torch.tensor([5, -(2**63), 5, 9], device="cuda")
    rows = gpu.find_or_insert(ids)
    assert len(gpu) == 3
    torch.testing.assert_close(rows, gpu.lookup(ids), rtol=0, atol=0)
    some = torch.randint(-1000, 1000, (4001,), device="cuda")
    torch.testing.assert_close(gpu.find_or_insert(some), gpu.lookup(some), rtol=0, atol=0)


@pytest.mark.parametrize("initializer", INITIALIZERS, ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_with_repeated_ids_are_close(initializer: Any, mode: Any) -> None:
    rng = np.random.default_rng(1)
    spec = make_spec(16, mt.Sgd(0.1), initializer)
    host, gpu = mt.Table(spec), GpuTable(spec)
    for step in range(5):
        ids = rng.integers(0, 500, 4000)
        offsets = np.sort(np.concatenate([[0, 4000], rng.integers(0, 4000, 300)]))
        grads = rng.standard_normal((len(offsets) - 1, 16)).astype(np.float32)
        expected = host.lookup_pooled(ids, offsets, mode)
        np.testing.assert_allclose(
            gpu.lookup_pooled(on_gpu(ids), on_gpu(offsets), mode).cpu().numpy(), expected, rtol=1e-4, atol=1e-4
        )
        host.apply_pooled_gradients(ids, offsets, grads, mode, step=step)
        gpu.apply_pooled_gradients(on_gpu(ids), on_gpu(offsets), on_gpu(grads), mode)
    every = np.arange(600)
    np.testing.assert_allclose(gpu.lookup(on_gpu(every)).cpu().numpy(), host.lookup(every), rtol=1e-3, atol=1e-3)


def test_a_table_grows_from_nothing_to_millions_of_rows() -> None:
    gpu = GpuTable(make_spec(4, mt.Sgd(1.0), mt.Zeros()))
    total, batch = 3_000_000, 100_000
    for first in range(0, total, batch):
        ids = torch.arange(first, first + batch, device="cuda") * 7919
        gpu.apply_gradients(ids, torch.full((batch, 4), float(first // batch + 1), device="cuda"))
    assert len(gpu) == total
    ids = torch.arange(0, total, device="cuda") * 7919
    expected = -(torch.arange(0, total, device="cuda") // batch + 1).float()
    assert torch.equal(gpu.lookup(ids)[:, 0], expected)
    assert not gpu.lookup(ids + 1).any()


def test_rows_and_state_move_to_the_host_and_back() -> None:
    rng = np.random.default_rng(2)
    spec = make_spec(6, mt.Adam(0.1), expire_days=30)
    gpu = GpuTable(spec)
    ids = np.unique(rng.integers(-(2**62), 2**62, 5000))
    gpu.apply_gradients(on_gpu(ids), on_gpu(rng.standard_normal((len(ids), 6)).astype(np.float32)), time_s=77)
    host = gpu.to_host()
    entry = host.entry(int(ids[0]))
    assert entry is not None
    assert entry.time_s == 77
    again = GpuTable(spec)
    again.add_rows_of(host)
    grads = rng.standard_normal((len(ids), 6)).astype(np.float32)
    host.apply_gradients(ids, grads, step=1)
    for each in (gpu, again):
        each.step = 1
        each.apply_gradients(on_gpu(ids), on_gpu(grads))
        np.testing.assert_array_equal(each.lookup(on_gpu(ids)).cpu().numpy(), host.lookup(ids))


def test_a_captured_graph_repeats_the_step() -> None:
    gpu, twin = (GpuTable(make_spec(8, mt.Sgd(0.5))) for _ in range(2))
    ids, offsets = torch.arange(64, device="cuda"), torch.arange(0, 65, 4, device="cuda")
    grads = torch.ones((16, 8), device="cuda")

    def step(table: GpuTable) -> None:
        table.lookup_pooled(ids, offsets)
        table.apply_pooled_gradients(ids, offsets, grads)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step(gpu)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(gpu)
    for _ in range(3):
        graph.replay()
    for _ in range(4):
        step(twin)
    torch.testing.assert_close(gpu.lookup(ids), twin.lookup(ids))


def test_the_budget_is_kept() -> None:
    gpu = GpuTable(make_spec(64, mt.Adagrad(0.1), max_bytes=200 << 20))

    def fill() -> None:
        for first in range(100):
            ids = torch.arange(100_000, device="cuda") + first * 100_000
            gpu.apply_gradients(ids, torch.ones((100_000, 64), device="cuda"))

    with pytest.raises(CapacityExceeded, match="max_bytes"):
        fill()
    assert gpu.memory_bytes <= 200 << 20


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_module_on_the_gpu_equals_the_one_in_host_memory(mode: Any) -> None:
    host, gpu = (mt.nn.EmbeddingBag(8, optimizer=mt.Sgd(0.5), mode=mode, device=device) for device in ("cpu", "cuda"))
    for ids in (torch.tensor([[1, 2], [2, 3]]), torch.tensor([[4, 4], [1, 9]])):
        expected, actual = host(ids), gpu(ids.cuda())
        assert actual.is_cuda
        torch.testing.assert_close(actual.cpu(), expected)
        expected.square().sum().backward()
        actual.square().sum().backward()
    assert gpu.table_set.row_counts() == host.table_set.row_counts()


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("is_explicit", [False, True])
def test_padding_ids_count_nowhere_on_the_gpu(mode: Any, is_explicit: bool) -> None:
    settings: dict[str, Any] = {"optimizer": mt.Adagrad(0.5), "mode": mode, "padding_idx": 7}
    host, gpu = (mt.nn.EmbeddingBag(5, device=device, **settings) for device in ("cpu", "cuda"))
    optimizers = [mt.nn.TableOptimizer(each) for each in (host, gpu)] if is_explicit else []
    for ids in (torch.tensor([[1, 7, 2], [7, 7, 7]]), torch.tensor([[2, 2, 7], [1, 4, 9]])):
        expected, actual = host(ids), gpu(ids.cuda())
        torch.testing.assert_close(actual.cpu(), expected)
        for each in (expected, actual):
            each.square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert gpu.table_set.row_counts() == host.table_set.row_counts() == {"table": 4}
    rows = mt.nn.Embedding(3, padding_idx=7, device="cuda")
    assert not rows(torch.tensor([7], device="cuda")).any()


def test_a_collection_on_the_gpu_shares_tables_and_mixes_modes() -> None:
    def make(device: str) -> mt.nn.EmbeddingBagCollection:
        settings = {"table": "item", "optimizer": mt.Sgd(0.5)}
        features = [
            mt.nn.Feature("seen", 4, mode="mean", **settings),
            mt.nn.Feature("liked", 4, **settings),
            mt.nn.Feature("user", 2, optimizer=mt.Adagrad(0.5)),
        ]
        return mt.nn.EmbeddingBagCollection(features, device=device)

    host, gpu = make("cpu"), make("cuda")
    bags = {
        "seen": (torch.tensor([1, 2, 3]), torch.tensor([0, 2, 3])),
        "liked": (torch.tensor([2, 9]), torch.tensor([0, 0, 2])),
        "user": (torch.tensor([5, 6]), torch.tensor([0, 1, 2])),
    }
    moved = {name: (values.cuda(), offsets.cuda()) for name, (values, offsets) in bags.items()}
    for _ in range(3):
        expected, actual = host(bags), gpu(moved)
        for name in bags:
            torch.testing.assert_close(actual[name].cpu(), expected[name])
        sum(each.square().sum() for each in expected.values()).backward()
        sum(each.square().sum() for each in actual.values()).backward()
    assert gpu.steps == 3


def test_explicit_updates_on_the_gpu_equal_those_in_host_memory() -> None:
    modules = [mt.nn.EmbeddingBag(4, optimizer=mt.Adagrad(0.5), mode="sum", device=each) for each in ("cpu", "cuda")]
    for module in modules:
        optimizer = mt.nn.TableOptimizer(module)
        for ids in ([[1, 2]], [[2, 2]]):
            module(torch.tensor(ids, device=module.table_set.device)).square().sum().backward()
        torch.nn.utils.clip_grad_norm_(optimizer.parameters, 0.5)
        optimizer.step()
    host, gpu = (module.eval()(torch.tensor([[1], [2]])) for module in modules)
    torch.testing.assert_close(gpu.cpu(), host)


def test_a_snapshot_of_the_gpu_is_read_in_host_memory_and_back(tmp_path: Path) -> None:
    def make(device: str) -> mt.nn.EmbeddingBag:
        return mt.nn.EmbeddingBag(4, optimizer=mt.Adagrad(0.5), mode="sum", device=device)

    ids = torch.tensor([[1, 2], [2**62, -1]])
    gpu = make("cuda")
    gpu(ids).square().sum().backward()
    mt.nn.save(gpu, tmp_path / "from_gpu")
    host = make("cpu")
    mt.nn.load(host, tmp_path / "from_gpu")
    torch.testing.assert_close(host.eval()(ids), gpu.eval()(ids).cpu(), rtol=0, atol=0)
    mt.nn.save(host, tmp_path / "from_host")
    again = make("cuda")
    mt.nn.load(again, tmp_path / "from_host")
    torch.testing.assert_close(again.eval()(ids).cpu(), host(ids), rtol=0, atol=0)


SLICES = [
    [mt.SliceSpec(1, optimizer=mt.Ftrl(0.1)), mt.SliceSpec(16, optimizer=mt.Adam(0.1))],
    [
        mt.SliceSpec(3, optimizer=mt.Sgd(0.1)),
        mt.SliceSpec(2, optimizer=mt.Adagrad(0.1)),
        mt.SliceSpec(1, optimizer=mt.BatchSoftmax(0.1)),
    ],
    [mt.SliceSpec(5, optimizer=mt.GroupAdagrad(0.1)), mt.SliceSpec(9, optimizer=mt.Amsgrad(0.1))],
    [
        mt.SliceSpec(70, optimizer=mt.StochasticRoundingFp16(mt.Adagrad(0.1))),
        mt.SliceSpec(71, optimizer=mt.StochasticRoundingFp16(mt.GroupFtrl(0.1))),
    ],
]


@pytest.mark.parametrize("slices", SLICES, ids=lambda slices: "-".join(each.optimizer.base.kind for each in slices))
def test_rows_of_several_slices_have_the_bits_of_the_host(slices: Any, tmp_path: Path) -> None:
    first = [mt.RandomUniform(-1, 1), mt.Constant(0.5), mt.RandomUniform(0, 2)]
    slices = [replace(each, initializer=initializer) for each, initializer in zip(slices, first, strict=False)]
    spec = mt.TableSpec("user", slices, on_miss="initial", seed=3, expire_days=10)
    rng = np.random.default_rng(8)
    host, gpu = mt.Table(spec), GpuTable(spec)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, 6_000))
    np.testing.assert_array_equal(gpu.lookup(on_gpu(ids)).cpu().numpy(), host.lookup(ids))
    for step in range(3):
        some = rng.choice(ids, 3_000, replace=False)
        grads = rng.standard_normal((len(some), spec.dim)).astype(np.float32)
        rates = [0.1 * (number + 1) for number in range(len(slices))]
        host.apply_gradients(some, grads, rates, step=step, time_s=100 + step)
        gpu.apply_gradients(on_gpu(some), on_gpu(grads), learning_rates=rates, step=step, time_s=100 + step)
    np.testing.assert_array_equal(gpu.lookup(on_gpu(ids)).cpu().numpy(), host.lookup(ids))
    assert_equal_rows(gpu.to_host(), host)


def assert_equal_rows(actual: mt.Table, expected: mt.Table) -> None:
    """Compare all rows, with state and times."""

    def sort(table: mt.Table) -> list[Any]:
        columns = [np.concatenate(each) for each in zip(*table.export_entries(), strict=True)]
        order = np.argsort(columns[0])
        return [each[order] for each in columns]

    for one, other in zip(sort(actual), sort(expected), strict=True):
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def test_wrong_numbers_of_rates_are_refused() -> None:
    with pytest.raises(DimensionMismatch, match="one per slice"):
        GpuTable(make_spec(4, mt.Sgd(0.1))).apply_gradients(on_gpu([1]), torch.ones((1, 4)), learning_rates=[1.0, 2.0])


@pytest.mark.parametrize("has_counts", [False, True])
def test_a_filter_admits_the_same_ids_on_the_gpu(has_counts: bool) -> None:
    rng = np.random.default_rng(6)
    spec = make_spec(3, mt.Sgd(0.5), admission=mt.SlidingHashFilter(10_000), slot_thresholds={0: 3}, deterministic=True)
    host, gpu = mt.Table(spec), GpuTable(spec)
    for step in range(12):
        ids = np.unique(rng.zipf(1.2, 3000) % 2000)
        grads = rng.standard_normal((len(ids), 3)).astype(np.float32)
        counts = rng.integers(1, 3, len(ids)).astype(np.uint32) if has_counts else None
        host.apply_gradients(ids, grads, step=step, counts=counts)
        sightings = None if counts is None else on_gpu(counts.astype(np.int64))
        gpu.apply_gradients(on_gpu(ids), on_gpu(grads), step=step, counts=sightings)
        if step == 6:  # the counts go with the rows
            moved = GpuTable(spec)
            moved.add_rows_of(gpu.to_host())
            gpu = moved
    every = np.arange(2000)
    assert 0 < len(host) < 2000
    np.testing.assert_array_equal(gpu.contains(on_gpu(every)).cpu().numpy(), host.contains(every))
    np.testing.assert_array_equal(gpu.lookup(on_gpu(every)).cpu().numpy(), host.lookup(every))


@pytest.mark.parametrize("expire_days", [5, None])
def test_touched_ids_are_those_of_the_host(expire_days: int | None) -> None:
    rng = np.random.default_rng(9)
    spec = make_spec(4, mt.Adagrad(0.1), **({} if expire_days is None else {"expire_days": expire_days}))
    host, gpu = mt.Table(spec), GpuTable(spec)
    now = 1_600_000_000
    for step in range(10):
        ids = np.unique(np.append(rng.integers(0, 10**6, 5_000), -(2**63) if step % 3 else 7))
        grads = rng.standard_normal((len(ids), 4)).astype(np.float32)
        now += 86400
        host.apply_gradients(ids, grads, step=step, time_s=now)
        gpu.apply_gradients(on_gpu(ids), on_gpu(grads), step=step, time_s=now)
        if step in (4, 7):
            assert gpu.evict() == host.evict()
        if step == 6:
            assert gpu.delete(on_gpu(ids[:50])) == host.delete(ids[:50]) == 50
        if step % 2:
            np.testing.assert_array_equal(gpu.drain_touched().cpu().numpy(), host.drain_touched())
    assert not len(gpu.drain_touched()) or len(host.drain_touched())


def test_a_host_table_follows_the_changes_of_the_gpu() -> None:
    rng = np.random.default_rng(10)
    spec = make_spec(6, mt.Adam(0.1), expire_days=5)
    gpu, twin, copy = GpuTable(spec), mt.Table(spec), mt.Table(spec)
    copied = []
    for step in range(8):
        ids = np.unique(rng.integers(0, 10**5, 4_000))
        grads = rng.standard_normal((len(ids), 6)).astype(np.float32)
        gpu.apply_gradients(on_gpu(ids), on_gpu(grads), step=step, time_s=86400 * (step + 9))
        twin.apply_gradients(ids, grads, step=step, time_s=86400 * (step + 9))
        if step == 6:
            assert gpu.evict() == twin.evict() > 0
        copied.append(gpu.copy_changes_to(copy))
        assert copy.max_time_s == twin.max_time_s
    assert max(copied[1:6]) < 4_001
    assert_equal_rows(copy, twin)


def test_times_are_numbered_again_when_stamps_run_out() -> None:
    spec = make_spec(4, mt.Sgd(0.1), expire_days=1)
    gpu, host = GpuTable(spec), mt.Table(spec)
    gpu._times.stamps = EventStamps(most=8)
    for step in range(40):
        ids = np.arange(step * 10, step * 10 + 15)
        grads = np.ones((15, 4), np.float32)
        gpu.apply_gradients(on_gpu(ids), on_gpu(grads), time_s=10_000 * (step + 1))
        host.apply_gradients(ids, grads, time_s=10_000 * (step + 1))
    assert gpu.evict(400_000) > 0
    host.evict(400_000)
    every = np.arange(420)
    left = gpu.contains(on_gpu(every)).cpu().numpy()
    assert left[host.contains(every)].all()  # none expires early
    assert left.sum() < 300


@pytest.mark.parametrize("settings", [{}, {"expire_days": 400}], ids=["steps", "times"])
def test_rows_beyond_the_budget_live_in_host_memory_and_come_back(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(12)
    spec = make_spec(16, mt.Adagrad(0.1), max_bytes=20 << 20, **settings)
    host = mt.Table(make_spec(16, mt.Adagrad(0.1), **settings))
    gpu, copy = GpuTable(spec, host_bytes=1 << 30), mt.Table(host.spec)
    for step in range(40):
        ids = rng.choice(300_000, 20_000, replace=False)
        grads = rng.standard_normal((len(ids), 16)).astype(np.float32)
        found = gpu.find(on_gpu(ids))
        np.testing.assert_array_equal(gpu.pool(found, None).cpu().numpy(), host.lookup(ids))
        host.apply_gradients(ids, grads, step=step, time_s=1000 + step)
        gpu.apply(found, None, on_gpu(grads), step=step, time_s=1000 + step)
        assert gpu.memory_bytes <= 20 << 20
        if step % 7 == 3:
            gpu.copy_changes_to(copy)
    assert gpu.rows_in_host_memory > 50_000
    assert len(gpu) == len(host)
    gpu.copy_changes_to(copy)
    for each in (gpu.to_host(), copy):
        np.testing.assert_array_equal(each.lookup(np.arange(300_000)), host.lookup(np.arange(300_000)))
    assert gpu.delete(on_gpu(np.arange(1000))) == host.delete(np.arange(1000))
    assert len(gpu) == len(host)
    assert gpu.copy_changes_to(copy) >= 1
    assert not copy.contains(np.arange(1000)).any()


def test_a_table_without_room_in_either_memory_raises_and_loses_nothing() -> None:
    gpu = GpuTable(make_spec(16, mt.Sgd(1.0), mt.Zeros(), max_bytes=20 << 20), host_bytes=8 << 20)
    done = 0

    def fill() -> None:
        nonlocal done
        for first in range(0, 2_000_000, 20_000):
            gpu.apply_gradients(torch.arange(first, first + 20_000).cuda(), torch.ones((20_000, 16)).cuda())
            done = first + 20_000

    with pytest.raises(CapacityExceeded):
        fill()
    assert done > 100_000
    rows = gpu.to_host().lookup(np.arange(done))
    assert (rows == -1).all()


def test_parts_that_a_gpu_table_lacks_are_refused() -> None:
    with pytest.raises(ConfigError, match="host_bytes"):
        GpuTable(make_spec(4, mt.Sgd(0.1)), host_bytes=1 << 20)
    with pytest.raises(ConfigError, match="FixedR8"):
        GpuTable(mt.TableSpec("t", [mt.SliceSpec(4, optimizer=mt.Sgd(0.1), compressor=mt.FixedR8())]))
    with pytest.raises(ConfigError, match="evict_oldest"):
        GpuTable(make_spec(4, mt.Sgd(0.1), max_bytes=1 << 20, when_full="evict_oldest"), host_bytes=1 << 20)
    with pytest.raises(DimensionMismatch, match="shape"):
        GpuTable(make_spec(4, mt.Sgd(0.1))).apply_gradients(on_gpu([1]), torch.ones((1, 3)))
