from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from monolith import layers
from monolith.core.errors import ConfigError


def test_pairs_are_left_major() -> None:
    left, right = torch.tensor([[1.0, 2.0]]), torch.tensor([[10.0, 20.0, 30.0]])
    assert layers.ffm(left, right, 1).tolist() == [[10, 20, 30, 20, 40, 60]]
    assert layers.ffm(left, right, 1, "dot").tolist() == [[10, 20, 30, 20, 40, 60]]


def test_the_gradient_of_a_pair_is_the_other_side() -> None:
    left = torch.ones(1, 4, requires_grad=True)
    right = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    layers.ffm(left, right, 2).sum().backward()
    assert left.grad is not None
    assert left.grad.tolist() == [[4.0, 6.0, 4.0, 6.0]]


def test_fm_is_the_sum_over_pairs() -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    pairs = sum(x[:, i] * x[:, j] for i in range(4) for j in range(i))
    torch.testing.assert_close(layers.FM(pooled=False)(x), pairs)
    torch.testing.assert_close(layers.FM()(list(x.unbind(1))), pairs.sum(1, keepdim=True))


@pytest.mark.parametrize("pooled", [True, False])
def test_fm_has_the_gradients_of_its_formula(pooled: bool) -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    layer = layers.FM(pooled)
    assert torch.autograd.gradcheck(layer, x)
    assert torch.autograd.gradgradcheck(layer, x)
    (others,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(others, x.sum(dim=1, keepdim=True) - x)
    by_transform = torch.func.grad(lambda each: layer(each).sum())(x.detach())
    torch.testing.assert_close(by_transform, others)


@pytest.mark.parametrize("pooled", [True, False])
def test_fm_of_half_precision_sums_in_single_precision(pooled: bool) -> None:
    x = torch.randn(3, 40, 5).bfloat16()
    pairs = layers.FM(pooled)(x)
    assert pairs.dtype == torch.bfloat16
    torch.testing.assert_close(pairs, layers.FM(pooled)(x.float()).bfloat16(), rtol=0.01, atol=0.0)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("shape", [(3, 4, 5), (300, 26, 16), (7, 3, 21), (2, 1, 1), (0, 4, 8), (4, 0, 8)])
def test_fm_of_the_engine_is_that_of_torch(pooled: bool, shape: tuple[int, int, int]) -> None:
    layer = layers.FM(pooled)
    exact = torch.randn(shape, dtype=torch.float64).transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    x = exact.detach().float().requires_grad_()
    expected, pairs = layer(exact), layer(x)
    torch.testing.assert_close(pairs.double(), expected, rtol=1e-4, atol=1e-4)
    weights = torch.randn_like(expected)
    (grad,) = torch.autograd.grad(pairs, x, weights.float())
    torch.testing.assert_close(grad.double(), torch.autograd.grad(expected, exact, weights)[0], rtol=1e-4, atol=1e-4)


def test_the_gradient_of_the_features_of_fm_has_that_of_all_layers() -> None:
    x = torch.randn(6, 4, 5, requires_grad=True)
    weights = torch.randn(20, 1)
    layer = layers.FM()
    pairs, features = layer.with_features(x)
    torch.testing.assert_close(features, x)
    (grad,) = torch.autograd.grad((pairs + features.flatten(1) @ weights).square().sum(), x)
    (expected,) = torch.autograd.grad((layer(x) + x.flatten(1) @ weights).square().sum(), x)
    torch.testing.assert_close(grad, expected)
    (alone,) = torch.autograd.grad(layer.with_features(x)[1].sum(), x)
    assert alone.eq(1).all()


def test_transforms_and_tracers_of_torch_see_fm() -> None:
    layer, x = layers.FM(), torch.randn(3, 6, 4, 5)
    expected = torch.stack([layer(each) for each in x])
    torch.testing.assert_close(torch.func.vmap(layer)(x), expected)
    traced = make_fx(layer)(x[0])
    torch.testing.assert_close(traced(x[1]), expected[1])
    first = x[0].clone().requires_grad_()
    (grad,) = torch.autograd.grad(layer(first).square().sum(), first, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), first)
    wide = x[0].double().requires_grad_()
    (wide_grad,) = torch.autograd.grad(layer(wide).square().sum(), wide, create_graph=True)
    torch.testing.assert_close(second.double(), torch.autograd.grad(wide_grad.sum(), wide)[0], rtol=1e-4, atol=1e-3)
    batched = torch.autograd.grad(layer(first), first, torch.eye(6).unsqueeze(2), is_grads_batched=True)[0]
    torch.testing.assert_close(batched.sum(0), torch.autograd.grad(layer(first).sum(), first)[0])
    with FakeTensorMode():
        assert layer(torch.empty(6, 4, 5)).shape == (6, 1)


def test_lists_and_stacks_are_the_same_input() -> None:
    x = torch.randn(2, 3, 4)
    layer = layers.AllInt(2)
    torch.testing.assert_close(layer(x), layer(list(x.unbind(1))))


@pytest.mark.parametrize(("out_type", "shape"), [("concat", (2, 12)), ("stack", (2, 3, 4))])
def test_outputs_are_merged_as_asked(out_type: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, 4)
    assert layers.AutoInt(out_type=out_type)(x).shape == shape
    assert layers.IRazor([0, 4], out_type=out_type)(x).shape == shape
    assert layers.SeNet(3, 2, out_type=out_type)(x).shape == shape


def test_outputs_may_be_lists() -> None:
    x = torch.randn(2, 3, 4)
    assert [part.shape for part in layers.AutoInt(out_type=None)(x)] == [(2, 4)] * 3
    assert [part.shape for part in layers.AutoInt(keep_list=True)(x)] == [(2, 12)]


def test_merging_a_flat_tensor() -> None:
    x = torch.arange(6.0).reshape(1, 6)
    assert layers.merge_tensor_list(x, "concat", num_feature=3) is x
    stacked = layers.merge_tensor_list(x, layers.MergeType.STACK, num_feature=3)
    assert isinstance(stacked, torch.Tensor)
    assert stacked.shape == (1, 3, 2)
    parts = layers.merge_tensor_list(x, None, num_feature=3)
    assert [part.tolist() for part in parts] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    assert layers.merge_tensor_list([x], None) == [x]


def test_cdot_is_its_formula() -> None:
    torch.manual_seed(1)
    layer, x = layers.CDot(2, [3]), torch.randn(4, 3, 5)
    out = layer(x)
    compressed = layer.expand(layer.hidden((x.transpose(1, 2) @ layer.projection).reshape(4, 10)))
    crossed = torch.einsum("bnk,bkp->bnp", x, compressed.reshape(4, 5, 2)).reshape(4, 6)
    torch.testing.assert_close(out, torch.cat([crossed, compressed], 1))


def test_cdot_without_hidden_layers() -> None:
    assert layers.CDot(2, [])(torch.randn(4, 3, 5)).shape == (4, 16)


def test_can_keeps_a_batch_of_one() -> None:
    assert layers.CAN(1, is_stacked=False)(torch.ones(1, 2), torch.ones(1, 6)).shape == (1, 2)


def test_can_layers_use_their_own_part_of_the_row() -> None:
    # d = 1: the row is w1, b1, w2, b2.
    item = torch.tensor([[2.0, 1.0, 3.0, -5.0]])
    assert layers.CAN(2, is_stacked=False)(torch.tensor([[4.0]]), item).item() == 22.0


def test_experts_of_a_mixed_cross_are_weighed_by_a_softmax() -> None:
    torch.manual_seed(1)
    layer, x = layers.DCN(1, "mixed", num_experts=3, low_rank=2), torch.randn(4, 5)
    out = layer(x)
    scores = torch.cat([x @ getattr(layer, f"gate_0_{e}") for e in range(3)], 1)
    gates = torch.softmax(scores, 1)
    expected = x.clone()
    for e in range(3):
        v, c, u = (getattr(layer, f"{part}_0_{e}") for part in "vcu")
        expected = expected + gates[:, e : e + 1] * x * (torch.tanh(torch.tanh(x @ v) @ c) @ u.t() + layer.bias_0)
    torch.testing.assert_close(out, expected)


def test_biases_of_a_normalised_cross_are_trained() -> None:
    layer = layers.DCN(1, "matrix", allow_kernel_norm=True)
    layer(torch.randn(4, 3)).sum().backward()
    assert layer.bias_0.grad.abs().sum() > 0
    assert "bias_0_scale" not in dict(layer.named_parameters())


def test_a_normalised_cross_starts_as_the_plain_one() -> None:
    torch.manual_seed(1)
    plain, normal = layers.DCN(2), layers.DCN(2, allow_kernel_norm=True)
    x = torch.randn(4, 3)
    plain(x)
    normal.load_state_dict(plain.state_dict(), strict=False)
    torch.testing.assert_close(normal(x), plain(x))


def test_dropout_is_for_training_only() -> None:
    torch.manual_seed(1)
    layer, x = layers.DCN(1, use_dropout=True, keep_prob=0.5), torch.randn(50, 4)
    dropped = (layer(x) == 0).float().mean().item()
    assert 0.3 < dropped < 0.7
    torch.testing.assert_close(layer.eval()(x), layer.eval()(x))
    assert (layer(x) == 0).sum() == 0


def test_cin_orders_its_outer_product_by_state_then_input() -> None:
    layer = layers.CIN([1], initializer=lambda w: w.copy_(torch.tensor([[0.0], [1.0], [0.0], [0.0]])))
    x = torch.tensor([[[2.0], [5.0]]])
    assert layer(x).item() == 10.0
    assert layer.kernel_0.shape == (4, 1)


def test_irazor_mask_of_a_sharp_choice() -> None:
    layer = layers.IRazor([0, 1, 3], initializer=lambda w: w.copy_(torch.tensor([[0.0, 0.0, 9.0], [9.0, 0.0, 0.0]])))
    layer(torch.ones(1, 2, 3))
    torch.testing.assert_close(layer.mask(), torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]]))


def test_irazor_charges_for_expected_widths() -> None:
    layer = layers.IRazor([0, 1, 3], initializer="zeros", feature_weight=[1.0, 2.0])
    assert layers.layer_losses(layer) == {}
    layer(torch.ones(1, 2, 3))
    assert layers.layer_losses(layer)["expected_width"].item() == pytest.approx(3.0)


def test_senet_excites_by_a_small_network() -> None:
    torch.manual_seed(1)
    layer, x = layers.SeNet(3, 2, out_type="stack"), torch.randn(4, 3, 5)
    weights = layer.excite(x.mean(2))
    assert ((weights > 0) & (weights < 1)).all()
    torch.testing.assert_close(layer(x), x * weights.unsqueeze(2))


X = torch.zeros(1, 2, 3)
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: layers.GroupInt("product"), "interaction_type is 'product'"),  # type: ignore[arg-type]
    (lambda: layers.GroupInt("dot", use_attention=True, attention_units=[1]), "needs interaction_type 'multiply'"),
    (lambda: layers.GroupInt(use_attention=True), "attention_units is None"),
    (lambda: layers.GroupInt(use_attention=True, attention_units=[4]), "the last width must be 1"),
    (lambda: layers.GroupInt()([], X), "left of GroupInt is an empty list"),
    (lambda: layers.GroupInt()(X, torch.zeros(1, 2, 4)), "widths 3 .left. and 4 .right."),
    (lambda: layers.GroupInt()([torch.zeros(1, 2), torch.zeros(1, 3)], X), r"widths \[2, 3\]"),
    (lambda: layers.ffm(torch.zeros(1, 3), torch.zeros(1, 2), 2), "left has width 3, no multiple of dim_size 2"),
    (lambda: layers.AllInt(2)(torch.zeros(1, 2)), r"shape \(1, 2\); give \(B, n, k\)"),
    (lambda: layers.AllInt(2, out_type="sum"), "AllInt.out_type is 'sum'"),
    (lambda: layers.CAN()(X, torch.zeros(1, 5)), "layer_num = 24"),
    (lambda: layers.CAN(is_seq=True)(X, torch.zeros(1, 5)), r"give \(B, n, T, d\)"),
    (lambda: layers.DCN(1, "tensor"), "dcn_type is 'tensor'"),
    (lambda: layers.DCN(1, "mixed"), "DCN.low_rank is 0; give a whole number of at least 1"),
    (lambda: layers.DCN(keep_prob=0.0), "DCN.keep_prob is 0.0"),
    (lambda: layers.DCN()(X), r"give \(B, d\)"),
    (lambda: layers.CIN([]), "CIN.hidden_units"),
    (lambda: layers.IRazor([1, 2]), "give rising widths from 0"),
    (lambda: layers.IRazor([0, 2])(X), "width 3; nas_space ends in 2"),
    (lambda: layers.IRazor([0, 3], feature_weight=[1.0])(X), "1 numbers for 2 features"),
    (lambda: layers.SeNet(3, 2)(X), "2 features, num_feature is 3"),
    (lambda: layers.merge_tensor_list([]), "empty list"),
    (lambda: layers.merge_tensor_list(torch.zeros(1, 5), "stack", num_feature=2), "width 5 into num_feature 2"),
    (lambda: layers.extend_as_list([1, 2, 3], 2), "3 entries was given where 2"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
