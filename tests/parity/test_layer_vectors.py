"""Golden numbers of the original's layers (``native_training/layers``), with the weights fixed as stated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from monolith import layers
from monolith.layers.initializers import Constant


def close(actual: Tensor, expected: Any, *, atol: float = 1e-7) -> None:
    wanted = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, wanted.expand_as(actual), rtol=1e-6, atol=atol)


@pytest.mark.parametrize(
    ("norm", "trainable", "expected"),
    [(False, False, (7.0, 2.0)), (True, False, (1.4, 1.0)), (True, True, (7.0, 2.0))],
)
def test_dense_with_and_without_kernel_norm(norm: bool, trainable: bool, expected: tuple[float, float]) -> None:
    dense = layers.Dense(
        2,
        kernel_initializer=Constant([[3.0, 0.0], [4.0, 2.0]]),
        allow_kernel_norm=norm,
        kernel_norm_trainable=trainable,
    )
    close(dense(torch.ones(1, 2)), [expected])


def test_dense_partitions_of_294_rows() -> None:
    partitioner = layers.RowPartitioner(max_shard_bytes=131072, max_shards=5)
    dense = layers.Dense(1024, partitioner=partitioner, input_dim=294)
    assert dense.partitions() == [59, 59, 59, 59, 58]


def test_mlp_with_batch_norm_has_eleven_layers() -> None:
    tower = layers.MLP([100, 50, 10, 1], ["relu", "tanh", "sigmoid", None], enable_batch_normalization=True)
    assert len(tower.stack) == 11


@pytest.mark.parametrize(
    ("bias", "expected"),
    [(False, (0.69314718, 1.69314718, -1.0)), (True, (0.0, 0.37988549, -1.31326169))],
)
def test_logit_correction(bias: bool, expected: tuple[float, ...]) -> None:
    layer = layers.LogitCorrection(sample_bias=bias)
    close(layer(torch.tensor([0.0, 1.0, -1.0]), torch.tensor([0.5, 0.5, 1.0])), expected, atol=1e-6)


def test_layer_norm() -> None:
    close(layers.LayerNorm()(torch.tensor([[1.0, 2.0, 3.0]])), [(-1.22474395, 0.0, 1.22474395)])


@pytest.mark.parametrize(("relative", "expected"), [(False, 0.125), (True, 0.0408163)])
def test_grad_norm(relative: bool, expected: float) -> None:
    shared = torch.ones(1, 1, requires_grad=True)
    layer = layers.GradNorm(["first", "second"], relative_diff=relative)
    balance, _ = layer([3 * shared.sum(), 4 * shared.sum()], [shared])
    close(balance, expected)


def test_group_int_sums() -> None:
    left, right = [torch.ones(100, 10)] * 5, [torch.ones(100, 10)] * 3
    assert layers.GroupInt("multiply")(left, right).sum().item() == 15000
    assert layers.GroupInt("dot")(left, right).sum().item() == 15000


def test_group_int_shapes() -> None:
    left, right = torch.ones(8, 10, 4), torch.ones(8, 12, 4)
    assert layers.FFM("multiply")(left, right).shape == (8, 480)
    assert layers.FFM("dot")(left, right).shape == (8, 120)


def test_all_int() -> None:
    close(layers.AllInt(1, "ones")(torch.ones(4, 2, 3)), 6.0)


def test_can() -> None:
    item = torch.ones(128, 220)
    stacked = layers.CAN()(torch.ones(128, 10, 10), item)
    close(stacked, 111.0)
    assert stacked.sum().item() == 1_420_800
    assert layers.CAN(is_seq=True)(torch.ones(128, 10, 12, 10), item).sum().item() == 17_049_600


@pytest.mark.parametrize(
    ("kind", "depth", "settings", "expected"),
    [
        ("matrix", 1, {"initializer": "identity"}, (2.0, 6.0)),
        ("matrix", 2, {"initializer": "identity"}, (4.0, 18.0)),
        ("vector", 1, {"initializer": "ones"}, (4.0, 8.0)),
        ("vector", 2, {"initializer": "ones"}, (16.0, 32.0)),
        ("mixed", 1, {"initializer": torch.nn.init.eye_, "low_rank": 2}, (1.64201499, 3.49213600)),
    ],
)
def test_dcn(kind: str, depth: int, settings: dict[str, Any], expected: tuple[float, float]) -> None:
    close(layers.DCN(depth, kind, **settings)(torch.tensor([[1.0, 2.0]])), [expected])


def test_cin() -> None:
    close(layers.CIN([1, 1], initializer="ones")(torch.ones(1, 2, 3)), [[12.0, 24.0]])


def test_auto_int() -> None:
    out = layers.AutoInt(out_type="stack")(torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]))
    close(out, [[[0.73105858, 0.53788284], [0.01798621, 1.96402758]]])
    close(layers.AutoInt(3)(torch.ones(2, 4, 3)), 1.0)


def test_irazor() -> None:
    layer = layers.iRazor([0, 2, 5, 7, 10], initializer="zeros")
    close(layer(torch.ones(2, 3, 10)), 0.2)
    close(layer.mask(), 0.2)


def test_senet_without_compression() -> None:
    out = layers.SeNet(2, None, out_type="stack")(torch.tensor([[[1.0, 3.0], [2.0, 2.0]]]))
    close(out, [[[2.0, 6.0], [4.0, 4.0]]])


@pytest.mark.parametrize(
    ("att_type", "score", "expected"),
    [("AGRU", 0.3, 0.64567010), ("AUGRU", 0.3, 0.67145406), ("AGRU", None, 0.94873276), ("AUGRU", None, 0.94873276)],
)
def test_agru_cell(att_type: Any, score: float | None, expected: float) -> None:
    cell = layers.AGRUCell(1, att_type, initializer="ones")
    a = None if score is None else torch.tensor([score])
    close(cell(torch.ones(1, 1), torch.full((1, 1), 0.5), a), expected)


def test_mmoe_gates() -> None:
    layer = layers.MMoE(1, [2], num_experts=3, gate_type="topk", top_k=2).eval()
    layer(torch.ones(1, 1))
    with torch.no_grad():
        layer.gate_kernel.copy_(torch.tensor([[1.0, 2.0, 3.0]]))
    close(layer.gates(torch.ones(1, 1)), [[[0.0, 0.26894142, 0.73105858]]])


def test_snr_in_prediction() -> None:
    layer = layers.SNR(3, 128, "aver").eval()
    outputs = layer([torch.ones(100, 128)] * 4)
    assert len(outputs) == 3
    for out in outputs:
        close(out, 2.0)
    assert sum(out.sum().item() for out in outputs) == 76_800
    close(layers.layer_losses(layer)["l0"], 9.22005025)


@pytest.mark.parametrize(
    ("value", "step", "expected", "gradient"),
    [(1.0, 1.0, 2.0, -1.0), (1.0, 0.01, 1.01, -0.01), (1000.0, 1.0, 1000.0, 0.0)],
)
def test_fid_counter(value: float, step: float, expected: float, gradient: float) -> None:
    counter = torch.tensor([value], requires_grad=True)
    out = layers.fid_counter(counter, 1000.0, step)
    close(out.detach(), expected)
    out.sum().backward()
    assert counter.grad is not None
    close(counter.grad, gradient)
