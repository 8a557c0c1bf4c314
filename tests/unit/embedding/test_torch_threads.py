"""The engine runs its calls on the threads of torch where both have the same number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from monolith import _native
from monolith.core.errors import CapacityExceeded
from monolith.embedding import Adagrad, SliceSpec, Table, TableSpec, set_threads, torch_threads

IDS = np.arange(100_000)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = _native.threads()
    set_threads(2)
    yield
    set_threads(before)


def make_table(max_bytes: int | None = None) -> Table:
    return Table(TableSpec("t", [SliceSpec(4, optimizer=Adagrad(0.1))], max_bytes=max_bytes))


def train(table: Table) -> None:
    table.lookup(IDS)
    table.apply_gradients(IDS, np.ones((len(IDS), 4), np.float32))


def test_calls_on_the_threads_of_torch_give_the_same_rows() -> None:
    tables = [make_table() for _ in range(2)]
    train(tables[0])
    with torch_threads(2) as is_shared:
        assert is_shared, "torch is loaded and has a team"
        train(tables[1])
        torch.ones(1000, 1000).sum()
        train(tables[1])
    train(tables[0])
    assert np.array_equal(tables[0].lookup(IDS), tables[1].lookup(IDS))


def test_a_team_of_another_size_is_left_alone() -> None:
    with torch_threads(3) as is_shared:
        assert not is_shared


def test_an_error_of_a_call_reaches_the_caller() -> None:
    with torch_threads(2), pytest.raises(CapacityExceeded, match="max_bytes 2000000"):
        train(make_table(max_bytes=2_000_000))
