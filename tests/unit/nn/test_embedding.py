"""The modules against those of torch: same inputs, equal weights, equal outputs and gradients."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import monolith as mt
from monolith.core.errors import ConfigError, DimensionMismatch

IDS = 50
DIM = 5
IDS_FLAT = torch.tensor([3, 7, 7, 0, 49, 3, 12, 12, 12, 8])


def make_pair(**settings: Any) -> tuple[mt.nn.EmbeddingBag, torch.nn.EmbeddingBag]:
    theirs = torch.nn.EmbeddingBag(IDS, DIM, **settings)
    ours = mt.nn.EmbeddingBag(DIM, optimizer=mt.Sgd(1.0), **settings)
    ours.table.assign(range(IDS), theirs.weight.detach().numpy())
    return ours, theirs


def rows_of(module: mt.nn.Embedding | mt.nn.EmbeddingBag) -> Tensor:
    return torch.from_numpy(module.table.lookup(range(IDS)))


def check_step(ours: Any, theirs: Any, *inputs: Any) -> None:
    """Compare the outputs, then the rows after a step of plain descent with rate 1."""
    before = rows_of(ours)
    scale = torch.linspace(-1, 1, DIM)
    expected, actual = theirs(*inputs), ours(*inputs)
    torch.testing.assert_close(actual, expected)
    (expected * scale).sum().backward()
    (actual * scale).sum().backward()
    torch.testing.assert_close(before - rows_of(ours), theirs.weight.grad.to_dense())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("include_last", [False, True])
@pytest.mark.parametrize("padding", [None, 12])
@pytest.mark.parametrize("offsets", [[0, 4, 4, 9], [0, 0, 10], [0]])
def test_bag_equals_torch_on_flat_ids(mode: str, include_last: bool, padding: int | None, offsets: list[int]) -> None:
    ours, theirs = make_pair(mode=mode, include_last_offset=include_last, padding_idx=padding)
    bounds = torch.tensor([*offsets, len(IDS_FLAT)] if include_last else offsets)
    check_step(ours, theirs, IDS_FLAT, bounds)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bag_equals_torch_on_a_matrix(mode: str) -> None:
    ours, theirs = make_pair(mode=mode)
    check_step(ours, theirs, IDS_FLAT.reshape(5, 2))


@pytest.mark.parametrize(("mode", "is_weighted"), [("sum", False), ("mean", False), ("max", False), ("sum", True)])
@pytest.mark.parametrize("offsets", [[0, 5, 2], [0, 11], [1, 2], []])
def test_offsets_that_divide_no_ids_are_refused(mode: Any, is_weighted: bool, offsets: list[int]) -> None:
    bag = mt.nn.EmbeddingBag(DIM, mode=mode)
    weights = torch.ones(len(IDS_FLAT)) if is_weighted else None
    with pytest.raises(DimensionMismatch, match="expected rising numbers from 0 to 10"):
        bag(IDS_FLAT, torch.tensor(offsets, dtype=torch.int64), weights)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_bag_takes_both_integer_types(dtype: torch.dtype) -> None:
    ours, theirs = make_pair(mode="sum")
    check_step(ours, theirs, IDS_FLAT.to(dtype), torch.tensor([0, 3], dtype=dtype))


@pytest.mark.parametrize("padding", [None, 7])
def test_weights_and_their_gradient_equal_torch(padding: int | None) -> None:
    ours, theirs = make_pair(mode="sum", padding_idx=padding)
    weights = torch.rand(len(IDS_FLAT))
    ours_weights, their_weights = weights.clone().requires_grad_(), weights.clone().requires_grad_()
    offsets = torch.tensor([0, 2, 2, 6])
    before = rows_of(ours)
    ours(IDS_FLAT, offsets, ours_weights).square().sum().backward()
    theirs(IDS_FLAT, offsets, their_weights).square().sum().backward()
    torch.testing.assert_close(ours_weights.grad, their_weights.grad)
    torch.testing.assert_close(before - rows_of(ours), theirs.weight.grad.to_dense())


def test_gradient_of_weights_passes_gradcheck() -> None:
    ours, _ = make_pair(mode="sum")
    mt.nn.TableOptimizer(ours)  # backward leaves the rows as they are
    weights = torch.rand(len(IDS_FLAT), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda each: ours(IDS_FLAT, torch.tensor([0, 4]), each), [weights])


@pytest.mark.parametrize("shape", [(10,), (5, 2), (1, 5, 2), (2, 1, 5)])
@pytest.mark.parametrize("padding", [None, 12])
def test_embedding_equals_torch(shape: tuple[int, ...], padding: int | None) -> None:
    theirs = torch.nn.Embedding(IDS, DIM, padding_idx=padding)
    ours = mt.nn.Embedding(DIM, optimizer=mt.Sgd(1.0), padding_idx=padding)
    ours.table.assign(
        [i for i in range(IDS) if i != padding], theirs.weight.detach()[[i for i in range(IDS) if i != padding]]
    )
    check_step(ours, theirs, IDS_FLAT.reshape(shape))


def test_every_64_bit_id_has_its_own_row() -> None:
    module = mt.nn.Embedding(4)
    ids = torch.tensor([2**62, 2**62 + 1, -(2**63), 2**63 - 1, 0, -1])
    rows = module(ids)
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(rows.detach(), 2))
    rows.sum().backward()
    assert len(module.table) == 6


def test_a_new_id_is_updated_from_the_values_that_the_forward_pass_showed() -> None:
    module = mt.nn.EmbeddingBag(3, optimizer=mt.Sgd(0.5), mode="sum")
    first = module(torch.tensor([[99]]))
    first.sum().backward()
    torch.testing.assert_close(module(torch.tensor([[99]])), first - 0.5)


def test_two_equal_ids_in_a_batch_take_one_step_of_the_optimizer() -> None:
    module = mt.nn.EmbeddingBag(1, optimizer=mt.Adagrad(1.0), initializer=mt.Zeros(), mode="sum")
    reference = mt.Table(module.table.spec)
    module(torch.tensor([7, 7, 8]), torch.tensor([0, 1])).sum().backward()
    reference.apply_gradients([7, 8], [[2.0], [1.0]])
    torch.testing.assert_close(module.table.lookup([7, 8]), reference.lookup([7, 8]))


@pytest.mark.parametrize("freeze", ["eval", "requires_grad_", "no_grad", "inference"])
def test_reading_changes_nothing_outside_training(freeze: str) -> None:
    module = mt.nn.EmbeddingBag(2, mode="sum")
    ids = torch.tensor([[1, 2]])
    if freeze == "eval":
        assert not module.eval()(ids).requires_grad
    elif freeze == "requires_grad_":
        assert not module.requires_grad_(False).train()(ids).requires_grad
    else:
        with torch.no_grad() if freeze == "no_grad" else torch.inference_mode():
            assert not module(ids).requires_grad
    assert len(module.table) == 0
    assert module.steps == 0


def test_frozen_rows_stay_while_the_rest_of_the_model_learns_and_learn_again_later() -> None:
    module = mt.nn.Embedding(1, optimizer=mt.Sgd(1.0), initializer=mt.Zeros()).requires_grad_(False)
    top = torch.nn.Linear(1, 1)
    top(module(torch.tensor([7]))).sum().backward()
    assert top.bias.grad is not None
    assert len(module.table) == 0
    module.requires_grad_()(torch.tensor([7])).sum().backward()
    assert module.table.lookup([7]).tolist() == [[-1.0]]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", [mt.nn.Embedding, mt.nn.EmbeddingBag])
def test_programs_of_torch_export_are_refused_because_they_would_hold_no_rows(kind: Any, strict: bool) -> None:
    with pytest.raises(Exception, match="export_module"):
        torch.export.export(kind(1).eval(), (torch.tensor([[1], [2]]),), strict=strict)


def test_two_forward_passes_before_their_backward_passes_both_update() -> None:
    module = mt.nn.EmbeddingBag(1, optimizer=mt.Sgd(1.0), initializer=mt.Zeros(), mode="sum")
    losses = [module(torch.tensor([[number]])).sum() for number in range(9)]
    for loss in losses:
        loss.backward()
    assert module.table.lookup(range(9)).ravel().tolist() == [-1.0] * 9


def test_ids_that_change_in_place_after_the_forward_pass_are_refused() -> None:
    module = mt.nn.EmbeddingBag(1, mode="sum")
    ids = torch.tensor([1, 2])
    loss = module(ids, torch.tensor([0])).sum()
    ids[0] = 5
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    assert len(module.table) == 0


def test_the_time_of_an_update_reaches_its_rows() -> None:
    module = mt.nn.EmbeddingBag(1, mode="sum")
    module.event_time_s = 86_400
    module(torch.tensor([[4]])).sum().backward()
    entry = module.table.entry(4)
    assert entry is not None
    assert entry.time_s == 86_400


def test_views_of_one_tensor_have_separate_plans() -> None:
    """Compiled modules find the plan of a forward pass by the memory of its inputs."""
    module = mt.nn.Embedding(1, optimizer=mt.Sgd(1.0), initializer=mt.Zeros())
    ids = torch.arange(8)
    views = [ids[::2], ids[:4], ids.view(torch.int32)[:4]]
    for view in views:
        module.table_set.read_rows([view], keep_plan=True)
    module.table_set.update_rows(views[:1], [torch.ones(4, 1)])
    assert module.table.lookup(range(8)).ravel().tolist() == [-1, 0] * 4


@pytest.mark.parametrize("compiled", ["embedding", "bag", "max"])
def test_compiled_module_has_one_graph_and_equal_results(compiled: str) -> None:
    def make() -> Any:
        settings = {"optimizer": mt.Sgd(0.5)}
        if compiled == "embedding":
            return mt.nn.Embedding(DIM, **settings)
        return mt.nn.EmbeddingBag(DIM, mode="sum" if compiled == "bag" else "max", **settings)

    eager, other = make(), make()
    graph = torch.compile(other, fullgraph=True, backend="aot_eager")
    for ids in (torch.tensor([[1, 2], [2, 3]]), torch.tensor([[4, 4], [1, 9]])):
        expected, actual = eager(ids), graph(ids)
        torch.testing.assert_close(actual, expected)
        expected.square().sum().backward()
        actual.square().sum().backward()
    torch.testing.assert_close(rows_of(other), rows_of(eager))
    assert other.steps == 2


@pytest.mark.parametrize(
    ("kind", "backend", "same", "expected"),
    [
        (mt.nn.Embedding, "aot_eager", True, [-1, -1, 1]),
        (mt.nn.EmbeddingBag, "aot_eager", True, [-1, -1, 1]),
        pytest.param(
            mt.nn.Embedding,
            "inductor",
            False,
            [0, -1, 0],
            marks=[
                pytest.mark.slow,
                pytest.mark.filterwarnings("ignore:.*torch.jit.script_method.*:DeprecationWarning"),
            ],
        ),
    ],
)
def test_a_compiled_module_that_is_called_twice_takes_the_gradients_of_both_calls(
    kind: Any, backend: str, same: bool, expected: list[float]
) -> None:
    """A compiler must neither drop an update nor merge two equal ones."""
    module = kind(1, optimizer=mt.Sgd(1.0), initializer=mt.Ones())
    graph = torch.compile(lambda one, two: (module(one) * module(two)).sum(), fullgraph=True, backend=backend)
    first = torch.tensor([[1], [2]])
    graph(first, first if same else first + 1).backward()
    assert module.table.lookup([1, 2, 3]).ravel().tolist() == expected
    assert module.steps == 2


@pytest.mark.parametrize(
    ("inputs", "error", "match"),
    [
        ((torch.tensor([1.5]), torch.tensor([0])), ConfigError, "float32"),
        (([1, 2], torch.tensor([0])), ConfigError, "list"),
        ((torch.tensor([1, 2]), None), DimensionMismatch, "offsets None"),
        ((torch.tensor([[1, 2]]), torch.tensor([0])), ConfigError, "a bag per row"),
        ((torch.tensor([1, 2]), torch.tensor([1])), DimensionMismatch, r"\[1, 2\]"),
        ((torch.tensor([1, 2]), torch.tensor([0, 3])), DimensionMismatch, "2"),
        ((torch.tensor([1, 2]), torch.tensor([0]), torch.ones(3)), ConfigError, r"\(3,\)"),
    ],
)
def test_bad_input_is_refused_by_name_and_value(inputs: Any, error: type[Exception], match: str) -> None:
    module = mt.nn.EmbeddingBag(2, mode="sum")
    with pytest.raises(error, match=match):
        module(*inputs)
    assert len(module.table) == 0


def test_settings_that_contradict_each_other_are_refused() -> None:
    spec = mt.TableSpec("user", [mt.SliceSpec(2, optimizer=mt.Sgd(0.1))])
    with pytest.raises(ConfigError, match="spec"):
        mt.nn.Embedding(2, spec=spec, optimizer=mt.Sgd(0.2))
    with pytest.raises(ConfigError, match="embedding_dim"):
        mt.nn.Embedding()
    with pytest.raises(ConfigError, match="'median'"):
        mt.nn.EmbeddingBag(2, mode="median")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'meta'"):
        mt.nn.EmbeddingBag(2, device="meta")
    assert mt.nn.Embedding(spec=spec).embedding_dim == 2


@pytest.mark.parametrize("copier", [copy.deepcopy, copy.copy, pickle.dumps])
def test_copies_and_pickles_name_the_remedy(copier: Any) -> None:
    with pytest.raises(ConfigError, match=r"mt\.nn\.save"):
        copier(mt.nn.Embedding(2))


def test_torch_save_of_a_model_with_tables_names_the_remedy(tmp_path: Any) -> None:
    model = torch.nn.Sequential(mt.nn.Embedding(2), torch.nn.Linear(2, 1))
    with pytest.raises(ConfigError, match=r"mt\.nn\.save"):
        torch.save(model, tmp_path / "model.pt")
