from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from monolith.core.errors import ConfigError
from monolith.layers import clipping
from monolith.layers.clipping import ClippingConfig, GradClipType

DENSE = [torch.tensor([3.0, 0.0])]
SPARSE = [torch.tensor([[4.0, 0.0]])]


def clip(step: int = 0, **settings: Any) -> tuple[list[float], list[float]]:
    dense, sparse = clipping.clip_gradients(DENSE, SPARSE, ClippingConfig(**settings), step)
    return dense[0].flatten().tolist(), sparse[0].flatten().tolist()


def test_the_rules_keep_the_numbers_of_the_original() -> None:
    assert [(rule.name, rule.value) for rule in GradClipType] == [
        ("ClipByNorm", 1),
        ("ClipByGlobalNorm", 2),
        ("ClipByValue", 3),
        ("ClipByDenseAndSparse", 4),
        ("NoClip", 5),
    ]


@pytest.mark.parametrize(
    ("settings", "dense", "sparse"),
    [
        ({"clip_norm": 2.5}, [1.5, 0.0], [2.0, 0.0]),
        ({"clip_norm": 5.0}, [3.0, 0.0], [4.0, 0.0]),
        ({"clip_norm": 2.5, "sparse_clip_norm": 1.25}, [1.5, 0.0], [1.0, 0.0]),
        ({"clip_norm": None}, [3.0, 0.0], [4.0, 0.0]),
        ({"clip_type": GradClipType.NoClip, "clip_norm": 1.0}, [3.0, 0.0], [4.0, 0.0]),
        ({"clip_type": GradClipType.ClipByValue, "clip_norm": 3.5}, [3.0, 0.0], [3.5, 0.0]),
        ({"clip_type": GradClipType.ClipByNorm, "clip_norm": 3.5}, [3.0, 0.0], [3.5, 0.0]),
        ({"clip_type": GradClipType.ClipByDenseAndSparse, "clip_norm": 1.0}, [1.0, 0.0], [4.0, 0.0]),
        (
            {"clip_type": GradClipType.ClipByDenseAndSparse, "clip_norm": 1.0, "sparse_clip_norm": 2.0},
            [1.0, 0.0],
            [2.0, 0.0],
        ),
    ],
)
def test_each_rule(settings: dict[str, Any], dense: list[float], sparse: list[float]) -> None:
    assert clip(**settings) == (pytest.approx(dense), pytest.approx(sparse))


def test_the_bound_of_sparse_gradients_warms_up() -> None:
    bounds = [clip(step, clip_norm=2.5, sparse_norm_warmup_steps=4)[1][0] for step in (0, 1, 4, 9)]
    assert bounds == pytest.approx([0.0, 0.5, 2.0, 2.0])


def test_the_default_bound_is_a_thousand_over_all_gradients() -> None:
    dense, sparse = clipping.clip_gradients([torch.full((1,), 3000.0)], [torch.full((1,), 4000.0)], ClippingConfig())
    assert (dense[0].item(), sparse[0].item()) == (pytest.approx(600.0), pytest.approx(800.0))


def test_nothing_to_clip() -> None:
    assert clipping.clip_gradients([], [], ClippingConfig()) == ([], [])
    assert clipping.global_norm([]).item() == 0.0


def test_a_nan_shows_in_every_gradient() -> None:
    dense, sparse = clipping.clip_gradients([torch.tensor([float("nan")])], SPARSE, ClippingConfig())
    assert torch.isnan(dense[0]).all()
    assert torch.isnan(sparse[0]).all()


def test_features_with_a_small_embedding_get_no_gradient() -> None:
    gradients = {"uue_a": torch.ones(2), "uue_b": torch.ones(2), "c": torch.ones(2)}
    features = {"uue_a": torch.full((2,), 0.1), "uue_b": torch.ones(2), "c": torch.zeros(2)}
    kept = clipping.zero_small_features(gradients, features, 0.5)
    assert {name: value.sum().item() for name, value in kept.items()} == {"uue_a": 0.0, "uue_b": 2.0, "c": 2.0}
    named = clipping.zero_small_features(gradients, features, 0.5, ["c"])
    assert {name: value.sum().item() for name, value in named.items()} == {"uue_a": 2.0, "uue_b": 2.0, "c": 0.0}


def test_a_norm_at_the_threshold_is_small() -> None:
    kept = clipping.zero_small_features({"a": torch.ones(1)}, {"a": torch.ones(1)}, 1.0, ["a"])
    assert kept["a"].item() == 0.0


def test_decay_adds_a_share_of_the_weight() -> None:
    (decayed,) = clipping.add_weight_decay([torch.tensor([1.0])], [torch.tensor([4.0])], 0.25)
    assert decayed.item() == 2.0


RULES: list[dict[str, Any]] = [
    {},
    {"clip_norm": 1.0},
    {"clip_norm": 2.0, "sparse_clip_norm": 0.5, "sparse_norm_warmup_steps": 4},
    {"clip_type": GradClipType.ClipByNorm, "clip_norm": 0.7},
    {"clip_type": GradClipType.ClipByValue, "clip_norm": 0.3},
    {"clip_type": GradClipType.ClipByDenseAndSparse, "clip_norm": 0.5, "sparse_clip_norm": 0.6},
    {"clip_type": GradClipType.ClipByDenseAndSparse, "clip_norm": 0.5},
    {"clip_type": GradClipType.NoClip},
    {"clip_norm": None},
]


@pytest.mark.parametrize("options", RULES)
def test_processes_that_share_rows_clip_as_one_process_would(options: dict[str, Any]) -> None:
    numbers = torch.Generator().manual_seed(1)
    dense = [torch.randn(3, 2, generator=numbers), torch.randn(4, generator=numbers)]
    sparse = [torch.randn(6, 2, generator=numbers), torch.randn(5, 3, generator=numbers)]
    config = ClippingConfig(**options)
    whole_dense, whole_sparse = clipping.clip_gradients(dense, sparse, config, step=2)
    squares = [each.double().square().sum().item() for each in sparse]
    for rows in (slice(0, 2), slice(2, None)):
        own_dense, own_sparse = clipping.clip_gradients(
            dense, [each[rows] for each in sparse], config, step=2, sparse_squares=squares
        )
        for one, other in zip(own_dense, whole_dense, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
        for one, other in zip(own_sparse, whole_sparse, strict=True):
            torch.testing.assert_close(one, other[rows], rtol=0, atol=0)


def test_a_step_without_weights_and_rows_is_clipped_too() -> None:
    assert clipping.clip_gradients([], [], ClippingConfig(clip_norm=1.0), sparse_squares=[]) == ([], [])


HUGE = [
    ({"clip_norm": 1.0}, 0.5, 0.5),
    ({"clip_norm": 1.0, "clip_type": GradClipType.ClipByNorm}, 1.0, 3**-0.5),
    ({"clip_norm": 1.0, "sparse_clip_norm": 1.0, "clip_type": GradClipType.ClipByDenseAndSparse}, 1.0, 3**-0.5),
]


@pytest.mark.parametrize("number", [1e15, 2e19, 1e25, 1e38])
@pytest.mark.parametrize("knows_squares", [False, True])
@pytest.mark.parametrize(("options", "dense", "sparse"), HUGE)
def test_gradients_whose_squares_overflow_32_bits_are_clipped(
    options: dict[str, Any], dense: float, sparse: float, knows_squares: bool, number: float
) -> None:
    squares = [3 * number**2] if knows_squares else None
    weights, rows = clipping.clip_gradients(
        [torch.full((1,), number)], [torch.full((3, 1), number)], ClippingConfig(**options), sparse_squares=squares
    )
    assert weights[0].tolist() == pytest.approx([dense])
    assert rows[0].flatten().tolist() == pytest.approx([sparse] * 3)


def test_the_global_norm_has_the_type_of_the_tensors() -> None:
    assert clipping.global_norm([torch.ones(4)]).dtype == torch.float32
    assert clipping.global_norm([torch.ones(4, dtype=torch.float64)]).dtype == torch.float64
    assert clipping.global_norm([]).item() == 0.0


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: ClippingConfig(clip_norm=0.0), "clip_norm is 0.0"),
    (lambda: ClippingConfig(sparse_clip_norm=-1.0), "sparse_clip_norm is -1.0"),
    (lambda: ClippingConfig(sparse_norm_warmup_steps=0), "sparse_norm_warmup_steps is 0"),
    (lambda: ClippingConfig(clip_type="norm"), "give one of GradClipType.ClipByNorm"),  # type: ignore[arg-type]
    (lambda: clipping.clip_by_value(torch.zeros(1), -1.0), "bound is -1.0"),
    (lambda: clipping.zero_small_features({"uue": torch.ones(1)}, {}, 1.0), "'uue' has a gradient but no embedding"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments_are_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
