from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from monolith import layers
from monolith.core.errors import ConfigError


def test_din_scores_are_those_of_its_network_and_zero_where_masked() -> None:
    torch.manual_seed(1)
    layer = layers.DIN([3, 1], "tanh", mode="none")
    query, keys = torch.randn(2, 4), torch.randn(2, 5, 4)
    mask = torch.tensor([[1.0, 1.0, 0.0, 1.0, 0.5], [0.0] * 5])
    out = layer(query, keys, mask)
    q = query.unsqueeze(1).expand_as(keys)
    expected = layer.scorer(torch.cat([q, keys, q - keys, q * keys], 2)) * keys
    torch.testing.assert_close(out[0, [0, 1, 3]], expected[0, [0, 1, 3]])
    assert out[0, [2, 4]].abs().sum() == 0
    assert out[1].abs().sum() == 0


def test_din_sums_and_decays() -> None:
    torch.manual_seed(1)
    layer = layers.DIN([1])
    query, keys = torch.randn(2, 4), torch.randn(2, 5, 4)
    whole = layer(query, keys)
    layer.mode = "none"
    torch.testing.assert_close(layer(query, keys).sum(1), whole)
    layer.mode, layer.decay = "sum", True
    torch.testing.assert_close(layer(query, keys) * 2, whole)


def test_hidden_layers_of_din_are_linear_unless_named() -> None:
    assert [type(part).__name__ for part in layers.DIN([3, 1]).scorer.stack] == ["Dense", "Linear", "Dense"]


def test_the_loop_is_the_cell_step_by_step() -> None:
    torch.manual_seed(1)
    cell = layers.AGRUCell(3, "AUGRU")
    inputs, scores, state = torch.randn(2, 4, 5), torch.rand(2, 4), torch.randn(2, 3)
    outputs, final = layers.dynamic_rnn_with_attention(cell, inputs, scores, state)
    for t in range(4):
        state = cell(inputs[:, t], state, scores[:, t])
        torch.testing.assert_close(outputs[:, t], state)
    torch.testing.assert_close(final, state)


def test_a_masked_step_leaves_the_state() -> None:
    torch.manual_seed(1)
    cell = layers.AGRUCell(3)
    inputs, scores = torch.randn(1, 3, 2), torch.rand(1, 3)
    outputs, _ = layers.rnn_with_attention(cell, inputs, scores, mask=torch.tensor([[1.0, 0.0, 1.0]]))
    assert torch.equal(outputs[:, 1], outputs[:, 0])
    assert not torch.equal(outputs[:, 2], outputs[:, 1])


def test_dien_is_a_gru_an_attention_and_a_gru_under_attention() -> None:
    torch.manual_seed(1)
    layer = layers.DIEN(3, "AUGRU")
    query, keys = torch.randn(2, 3), torch.randn(2, 4, 5)
    states, _ = layers.rnn_with_attention(layer.interest, keys, None)
    scores = torch.softmax(torch.einsum("btu,uv,bv->bt", states, layer.attention_kernel, query), 1)
    _, expected = layers.rnn_with_attention(layer.evolution, states, scores)
    torch.testing.assert_close(layer(query, keys), expected)


def test_dien_obeys_its_attention_type() -> None:
    torch.manual_seed(1)
    first = layers.DIEN(3, "AGRU")
    query, keys = torch.randn(2, 3), torch.randn(2, 4, 5)
    first(query, keys)
    second = layers.DIEN(3, "AUGRU")
    second.load_state_dict(first.state_dict())
    assert not torch.allclose(first(query, keys), second(query, keys))


def test_dien_ignores_the_values_at_masked_positions() -> None:
    torch.manual_seed(1)
    layer = layers.DIEN(3)
    query, keys = torch.randn(2, 3), torch.randn(2, 4, 5)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0]])
    other = keys.clone()
    other[:, 2:] = 100.0
    torch.testing.assert_close(layer(query, keys, mask), layer(query, other, mask))
    torch.testing.assert_close(layer(query, keys, mask), layer(query, keys[:, :2]))


def test_dien_of_an_empty_history_is_zero() -> None:
    layer = layers.DIEN(3)
    keys = torch.randn(1, 4, 5, requires_grad=True)
    out = layer(torch.randn(1, 3), keys, torch.zeros(1, 4))
    assert out.abs().sum() == 0
    out.sum().backward()
    assert keys.grad is not None
    assert torch.isfinite(keys.grad).all()


def test_dmr_is_its_formula() -> None:
    torch.manual_seed(1)
    layer = layers.DMR_U2I(4, "tanh")
    item, history = torch.randn(2, 3), torch.randn(2, 6, 5)
    out = layer(item, history)
    scores = (history @ layer.embedding_kernel + layer.position + layer.bias) @ layer.score_kernel
    user = (torch.softmax(scores, 1) * history).sum(1)
    torch.testing.assert_close(out, layer.match(user) * item)
    assert layer.score_kernel.tolist() == [[1.0]] * 4


QUERY, KEYS = torch.zeros(1, 2), torch.zeros(1, 3, 2)
WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: layers.DIN([3, 2]), "the last width must be 1"),
    (lambda: layers.DIN([1], mode="mean"), "DIN.mode is 'mean'"),  # type: ignore[arg-type]
    (lambda: layers.DIN([1])(QUERY, torch.zeros(1, 3, 4)), "query width 2 and key width 4"),
    (lambda: layers.DIN([1])(KEYS, KEYS), r"query of DIN has shape \(1, 3, 2\); give \(B, H\)"),
    (lambda: layers.AGRUCell(2, "GRU"), "att_type is 'GRU'; did you mean 'AGRU'"),  # type: ignore[arg-type]
    (lambda: layers.DIEN(2, "X"), "DIEN.att_type is 'X'"),  # type: ignore[arg-type]
    (lambda: layers.DIEN(3)(QUERY, KEYS), "width 2, num_units is 3"),
    (lambda: layers.rnn_with_attention(layers.AGRUCell(2), KEYS, torch.zeros(1, 4)), "one score per step"),
    (lambda: layers.DMR_U2I(2)(QUERY, QUERY), r"give \(B, T, Eu\)"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_arguments_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_a_new_cell_takes_its_arguments_by_name() -> None:
    x, h, a = torch.randn(2, 5), torch.randn(2, 3), torch.rand(2)
    cell = layers.AGRUCell(3)
    by_name = cell(x, h=h, a=a)
    torch.testing.assert_close(cell(x, h, a), by_name)


def test_a_sequence_without_positions_leaves_the_first_state() -> None:
    outputs, state = layers.rnn_with_attention(layers.AGRUCell(3), torch.zeros(2, 0, 5), torch.zeros(2, 0))
    assert outputs.shape == (2, 0, 3)
    assert state.tolist() == [[0.0] * 3] * 2
    assert layers.DIEN(4)(torch.ones(2, 4), torch.zeros(2, 0, 3)).tolist() == [[0.0] * 4] * 2
