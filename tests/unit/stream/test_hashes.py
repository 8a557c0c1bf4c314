"""Hashes agree with their vectors, so that every joiner and producer makes the same decision."""

from __future__ import annotations

import math

import pytest

from monolith.core.errors import ConfigError
from monolith.stream import choose_partition, draw_uniform
from monolith.stream.hashes import fnv1a64, mix


def test_mix_and_fnv_give_the_known_hashes() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(7) == 0x63CBE1E459320DD7
    assert fnv1a64(b"k") == 0xAF63E64C8601FD8A
    assert mix(fnv1a64(b"k")) == 0x1646A86A723DAAA3


@pytest.mark.parametrize(("key", "partitions"), [(b"k", [1, 3, 3]), (b"req-1", [0, 0, 4])])
def test_a_key_has_its_known_partitions(key: bytes, partitions: list[int]) -> None:
    assert [choose_partition(key, count) for count in (2, 4, 8)] == partitions


def test_a_topic_without_partitions_raises() -> None:
    with pytest.raises(ConfigError, match="partitions is 0"):
        choose_partition(b"k", 0)


def test_the_draws_of_impressions_are_known() -> None:
    draws = [0.878423, 0.683939, 0.432744, 0.549920, 0.018079]
    assert [round(draw_uniform(b"k", item), 6) for item in range(1, 6)] == draws


def test_the_logit_correction_undoes_the_sampling() -> None:
    chance, rate = 0.4, 0.1
    logit = math.log(chance / (1 - chance)) - math.log(rate)
    assert round(logit, 6) == 1.897120
    sampled = 1 / (1 + math.exp(-logit))
    assert sampled == pytest.approx(0.869565, abs=1e-6)
    assert sampled == pytest.approx(chance / (chance + rate * (1 - chance)))
