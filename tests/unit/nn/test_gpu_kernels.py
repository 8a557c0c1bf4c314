"""Kernels of GPU tables on the processor, by the stand-in of a GPU: parts that the suite of tables does not reach."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch

import monolith as mt
from host_gpu import HostGpu, NumpyTable
from monolith.core.errors import ConfigError
from monolith.nn.gpu import GpuTableSet
from monolith.nn.host import HostTableSet
from monolith.nn.table_set import InputColumn

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")

ZEROS = [mt.SliceSpec(1, optimizer=mt.Sgd(), learning_rate=1.0)]


def test_ids_whose_first_gradients_are_not_finite_leave_no_rows_behind() -> None:
    table = NumpyTable(mt.TableSpec("t", ZEROS), HostGpu())
    ids = np.append(np.arange(20_000), -(2**63))
    table.drain_touched()
    table.apply_gradients(ids, np.full((len(ids), 1), np.nan, np.float32))
    assert len(table) == 0
    assert not table.contains(ids).any()
    assert table.drain_touched().tolist() == []
    table.apply_gradients(ids[:100], np.ones((100, 1), np.float32))  # the memory of the others is released here
    table.apply_gradients(ids[-1:], np.ones((1, 1), np.float32))
    assert len(table) == 101
    assert table.contains(ids).sum() == 101
    assert (table.lookup(ids[:100]) == -1).all()
    assert sorted(table.drain_touched().tolist()) == sorted([*range(100), -(2**63)])
    assert table.stats.nan_rows_skipped == 20_001


def test_a_row_that_was_there_survives_a_gradient_that_is_not_finite() -> None:
    table = NumpyTable(mt.TableSpec("t", ZEROS), HostGpu())
    grads = np.array([[1.0], [1.0]], np.float32)
    table.apply_gradients(np.array([1, 2]), grads)
    table.apply_gradients(np.array([1, 3, 3]), np.array([[np.nan], [np.inf], [1.0]], np.float32))
    table.apply_gradients(np.array([3, 2]), grads)
    assert table.lookup(np.array([1, 2, 3]))[:, 0].tolist() == [-1, -2, -1]
    assert len(table) == 3


@pytest.mark.parametrize("is_explicit", [False, True])
def test_columns_of_a_module_read_and_update_the_rows_of_the_host(is_explicit: bool) -> None:
    columns = [
        InputColumn("seen", "item", "mean", padding=7),
        InputColumn("liked", "item"),
        InputColumn("user", "user"),
    ]
    specs = [
        mt.TableSpec(name, [mt.SliceSpec(5, optimizer=mt.Adagrad(0.5), initializer=mt.RandomUniform(-1, 1))])
        for name in ("item", "user")
    ]
    sets: list[Any] = [HostTableSet(specs, columns), GpuTableSet(specs, columns, HostGpu())]
    random = np.random.default_rng(3)
    for _ in range(3):
        lengths = random.integers(0, 4, (3, 6))
        offsets = [torch.from_numpy(np.append(0, np.cumsum(each))) for each in lengths]
        values = [torch.from_numpy(random.integers(0, 12, int(each[-1]))) for each in offsets]
        grads = [torch.from_numpy(random.standard_normal((6, 5)).astype(np.float32)) for _ in columns]
        outputs = [tables.read_bags(values, offsets, keep_plan=True) for tables in sets]
        for expected, actual in zip(*outputs, strict=True):
            torch.testing.assert_close(actual, expected)
        for tables in sets:
            if is_explicit:
                summed = tables.plan_bags([*values, *offsets]).sum_gradients(grads)
                tables.push(summed, {"item": 0.3, "user": 0.2})
            else:
                tables.update_bags(values, offsets, grads)
    assert sets[0].row_counts() == sets[1].row_counts()


def test_modules_give_rows_of_a_full_gpu_to_host_memory_on_request() -> None:
    specs = [mt.TableSpec("t", ZEROS, max_bytes=16 << 20)]
    tables = GpuTableSet(specs, [InputColumn("x", "t")], HostGpu(), host_bytes=1 << 20)
    ids, bounds = torch.arange(3), torch.arange(4)
    tables.update_bags([ids], [bounds], [torch.ones((3, 1))])
    assert tables.tables["t"].rows_in_host_memory == 0
    with pytest.raises(ConfigError, match="host_bytes is 5"):
        mt.nn.EmbeddingBag(2, host_bytes=5)
