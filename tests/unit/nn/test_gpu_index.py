"""Growth of a GPU table's index: the arithmetic, which needs no GPU."""

from __future__ import annotations

import random
import sys
from unittest import mock

import pytest

import monolith as mt
from monolith.core.errors import ConfigError
from monolith.nn.gpu.index_memory import MOST_PAGES, SLOTS, Shape


def home_of(shape: Shape, bits: int) -> tuple[int, int]:
    """Return the partition of a hash and its pages, as the kernels compute them."""
    part, pages = bits & ((1 << shape.level) - 1), shape.pages
    if part < shape.reached:
        if pages == MOST_PAGES:
            return bits & ((2 << shape.level) - 1), 17
        return part, pages + 1
    return part, pages


def test_growth_moves_the_keys_of_one_partition_only() -> None:
    hashes = [random.Random(7).getrandbits(32) for _ in range(2000)]
    shape = Shape()
    for _ in range(400):
        source, targets = shape.next_grown()
        grown = shape.grow()
        for bits in hashes:
            before, after = home_of(shape, bits), home_of(grown, bits)
            if before[0] == source:
                assert targets[after[0]] == after[1]
            else:
                assert after == before
        shape = grown
    assert shape.level >= 3


def test_no_partition_gets_too_full() -> None:
    shape = Shape()
    for _ in range(50_000):
        fullest = shape.rows / (1 << shape.level) / (shape.pages * SLOTS)
        assert fullest < 0.93
        assert 0.86 < shape.rows / (shape.all_pages * SLOTS) < 0.88
        shape = shape.grow()


@pytest.mark.parametrize("rows", [0, 1, 10**5, 10**6, 5 * 10**8])
def test_a_shape_for_rows_holds_them_without_waste(rows: int) -> None:
    shape = Shape.for_rows(rows)
    assert shape.reached == 0
    assert shape.rows >= rows
    assert shape == Shape() or shape.rows < 1.07 * rows


def test_a_machine_without_a_gpu_refuses_the_device() -> None:
    with mock.patch("torch.cuda.is_available", return_value=False), pytest.raises(ConfigError, match="no GPU"):
        mt.nn.EmbeddingBag(4, device="cuda")


def test_importing_the_package_starts_no_gpu_library() -> None:
    assert mt.nn is not None
    assert "cupy" not in sys.modules
