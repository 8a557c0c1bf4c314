from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from monolith.core.errors import ConfigError
from monolith.layers import MixedEmbedOpComb, layer_losses


def search(choices: list[list[int]], warmup: int = 0, pretraining: int = 0, **options: object) -> MixedEmbedOpComb:
    names = [f"slot{number}" for number in range(len(choices))]
    return MixedEmbedOpComb(names, choices, warmup, pretraining, **options)


def drawn(layer: MixedEmbedOpComb, times: int) -> list[tuple[float, ...]]:
    x = torch.ones(1, sum(layer.widths))
    return [tuple(layer(x)[0].tolist()) for _ in range(times)]


def test_weights_start_near_zero_and_steps_are_counted_in_training() -> None:
    layer = search([[1, 2], [3]])
    assert layer.arch_weights.shape == (3,)
    assert layer.arch_weights.abs().max() <= 1e-3
    drawn(layer, 3)
    layer.eval()
    drawn(layer, 2)
    assert layer.steps.item() == 3


def test_one_piece_of_each_slot_is_kept_whole() -> None:
    torch.manual_seed(1)
    pieces = {(1, 0, 0), (0, 1, 1)}
    found = drawn(search([[1, 2], [2, 1]]), 40)
    assert {row[:3] for row in found} == pieces
    assert {row[3:] for row in found} == {(1, 1, 0), (0, 0, 1)}


def test_a_width_is_drawn_by_its_weight() -> None:
    torch.manual_seed(2)
    layer = search([[1, 1]])
    with torch.no_grad():
        layer.arch_weights.copy_(torch.tensor([math.log(9.0), 0.0]))
    first = sum(row == (1, 0) for row in drawn(layer, 400))
    assert 330 < first < 390


def test_widths_are_equally_likely_during_pretraining_however_many_there_are() -> None:
    torch.manual_seed(3)
    layer = search([[1, 1, 1, 1]], pretraining=400)
    with torch.no_grad():
        layer.arch_weights[0] = 20.0
    counts = [sum(row[place] for row in drawn(layer, 100)) for place in range(4)]
    assert all(count > 10 for count in counts)
    assert layer.steps.item() == 400
    assert drawn(layer, 20) == [(1, 0, 0, 0)] * 20


def test_a_width_of_zero_is_not_drawn_during_warmup() -> None:
    layer = search([[0, 2]], warmup=30)
    with torch.no_grad():
        layer.arch_weights.copy_(torch.tensor([20.0, 0.0]))
    assert drawn(layer, 30) == [(1, 1)] * 30
    assert drawn(layer, 10) == [(0, 0)] * 10


def test_evaluation_takes_the_likeliest_width() -> None:
    layer = search([[0, 1, 2]]).eval()
    with torch.no_grad():
        layer.arch_weights.copy_(torch.tensor([0.0, 0.0, 1.0]))
    assert drawn(layer, 5) == [(0, 1, 1)] * 5


def test_the_weight_of_the_drawn_width_is_taught_and_the_output_is_not_scaled() -> None:
    layer = search([[2]])
    x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    y = layer(x)
    assert y.tolist() == [[3.0, 4.0]]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[1.0, 1.0]]
    two = search([[1, 1]], pretraining=10)
    two(torch.tensor([[5.0, 5.0]])).sum().backward()
    # d(5 w_i)/d arch = 5 w_i (1 - w_i) for the drawn one, about 5 / 4, and the negative for the other.
    torch.testing.assert_close(two.arch_weights.grad.abs(), torch.full((2,), 1.25), atol=1e-2, rtol=0)
    torch.testing.assert_close(two.arch_weights.grad.sum(), torch.tensor(0.0))


def test_a_teacher_is_mapped_per_slot_and_compared() -> None:
    layer = search([[1], [1]], teacher_embedding_sizes_list=[2, 1])
    with torch.no_grad():
        layer.teacher_kernel.copy_(torch.tensor([1.0, 10.0, 3.0]))
        layer.teacher_bias.copy_(torch.tensor([0.5, 0.0]))
    y = layer(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.0, 2.0]]))
    assert y.tolist() == [[1.0, 2.0]]
    loss = layer_losses(layer)["distillation"]
    assert loss.item() == pytest.approx(((11.5 - 1) ** 2 + (6 - 2) ** 2) / 2)
    loss.backward()
    assert layer.teacher_kernel.grad is not None


def test_the_teacher_may_be_masked_too() -> None:
    layer = search([[1, 1]], teacher_embedding_sizes_list=[1], distillation_mask=True).eval()
    with torch.no_grad():
        layer.arch_weights.copy_(torch.tensor([1.0, 0.0]))
        layer.teacher_kernel.copy_(torch.tensor([2.0, 7.0]))
    layer(torch.ones(1, 2), torch.ones(1, 1))
    assert layer_losses(layer)["distillation"].item() == pytest.approx(0.5)


def test_summaries_tell_entropy_expected_width_and_each_weight() -> None:
    layer = search([[0, 4]])
    with torch.no_grad():
        layer.arch_weights.zero_()
    told = {name: value.item() for name, value in layer.summaries().items()}
    assert told == pytest.approx(
        {"arch_entropy": math.log(2), "expected_emb_dims": 2.0, "slot0_0": 0.5, "slot0_4": 0.5}
    )


def test_copies_and_exports_work() -> None:
    layer = search([[1, 2]]).eval()
    x = torch.ones(2, 3)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(x), layer(x))
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


@pytest.mark.parametrize(
    ("choices", "options", "message"),
    [
        ([[0]], {}, r"choices_list\[0\] is \[0\]; give at least one width above 0"),
        ([[2, 0]], {}, "0 only as the first"),
        ([[-1, 2]], {}, r"choices_list\[0\]\[0\] is -1"),
        ([], {}, "give one list per slot"),
        ([[1]], {"warmup": -1}, "warmup_steps is -1"),
        ([[1]], {"teacher_embedding_sizes_list": [1, 2]}, "has 2 widths for 1 slots"),
    ],
)
def test_bad_settings_are_named(choices: list[list[int]], options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        search(choices, **options)


def test_bad_inputs_are_named() -> None:
    with pytest.raises(ConfigError, match="last dim 4, expected 3"):
        search([[1, 2]])(torch.ones(1, 4))
    with pytest.raises(ConfigError, match="needs a teacher if and only if"):
        search([[1]])(torch.ones(1, 1), torch.ones(1, 1))


def test_a_batch_without_examples_is_as_far_from_the_teacher_as_none() -> None:
    layer = search([[1, 2]], teacher_embedding_sizes_list=[4])
    layer(torch.zeros(0, 3), torch.zeros(0, 4))
    (distance,) = layer_losses(layer).values()
    assert distance.item() == 0
