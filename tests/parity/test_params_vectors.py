"""Behaviour of Params that the original's tests pin (monolith/core/hyperparams_test.py)."""

from __future__ import annotations

import enum

import pytest
import torch

from monolith.core.params import InstantiableParams, Params, copy_params_to, update_params


class Colour(enum.Enum):
    RED = 1


def params(**values: object) -> Params:
    made = Params()
    for name, value in values.items():
        made.define(name, value, "")
    return made


@pytest.mark.parametrize("name", [None, "", "_foo", "Foo", "1foo", "foo$", "_immutable", "foo\n"])
def test_illegal_names_are_assertion_errors(name: str) -> None:
    with pytest.raises(AssertionError):
        Params().define(name, 1, "")


@pytest.mark.parametrize("name", ["foo_bar", "foo9", "f"])
def test_legal_names_can_be_defined(name: str) -> None:
    assert params(**{name: 1}).get(name) == 1


def test_a_name_is_defined_once() -> None:
    with pytest.raises(AttributeError, match=r"^Parameter foo is already defined$"):
        params(foo=1).define("foo", 2, "")


def test_an_unknown_name_is_an_attribute_error_whose_text_is_the_name() -> None:
    p = params(bar=1)
    for wrong in (
        lambda: p.foo,
        lambda: p["foo"],
        lambda: p.get("foo"),
        lambda: p.set(foo=4),
        lambda: setattr(p, "foo", 4),
        lambda: p.delete("foo"),
    ):
        with pytest.raises(AttributeError, match=r"^foo$"):
            wrong()


def test_an_error_names_similar_parameters() -> None:
    p = params(activation="RELU", activations="RELU", cheesecake=None, tofu=None)
    with pytest.raises(AttributeError) as told:
        p.actuvation = 1
    assert str(told.value) == "actuvation (did you mean: [activation,activations])"


def test_the_last_piece_of_three_letters_is_ignored_by_the_hint() -> None:
    p = params(abcx=1, zbcd=1)
    with pytest.raises(AttributeError, match=r"^abcd \(did you mean: \[abcx\]\)$"):
        _ = p.abcd


def test_values_are_set_and_got_by_attribute_item_and_method() -> None:
    p = params(foo=1)
    assert (p.foo, p["foo"], p.get("foo"), "foo" in p, p.contain("foo"), len(p)) == (1, 1, 1, True, True, 1)
    assert p.set(foo=2) is p
    assert p.foo == 2
    p.foo = 3
    p["foo"] += 1
    assert p.foo == 4
    assert p.delete("foo") is p
    assert "foo" not in p


def test_paths_lead_into_nested_params_and_lists_of_them() -> None:
    inner = params(alpha=2, innermost=params(delta=22, zeta=5))
    outer = params(beta=1, inner=inner, d={"foo": "bar"}, towers=[params(units=1), params(units=2)])
    assert outer.get("inner.innermost.delta") == 22
    outer.set(**{"inner.alpha": 3, "towers[1].units": 7})
    assert (inner.alpha, outer.towers[1].units, outer.get("towers[0].units")) == (3, 7, 1)
    outer.delete("inner.innermost.zeta")
    assert "zeta" not in inner.innermost
    for path in ("inner.gamma", "inner.innermost.bad"):
        with pytest.raises(AttributeError, match=f"^{path}$"):
            outer.set(**{path: 5})
    with pytest.raises(AttributeError, match=r"^nowhere$"):
        outer.get("nowhere.x")
    for path in ("towers[5].units", "towers[x].units", "beta[0].units"):
        with pytest.raises(AttributeError):
            outer.get(path)
    with pytest.raises(AssertionError, match=r"^Cannot introspect <class 'dict'> for d$"):
        outer.set(**{"d.foo": "baz"})


def test_frozen_params_refuse_all_changes_but_those_of_nested_params() -> None:
    p = params(foo=1, nested=params(foo=1))
    p.freeze()
    assert p.is_immutable()
    for change in (
        lambda: setattr(p, "foo", 3),
        lambda: p.delete("foo"),
        lambda: p.define("bar", 1, ""),
        lambda: setattr(p, "_immutable", False),
    ):
        with pytest.raises(TypeError, match=r"^This Params instance is immutable\.$"):
            change()
    with pytest.raises(TypeError, match=r"^This Params instance is immutable: \{\n  foo: 1"):
        p.set(foo=2)
    p.nested.foo = 2
    assert (p.foo, p.nested.foo) == (1, 2)
    with pytest.raises(TypeError):
        p.copy().set(foo=2)


def test_a_copy_is_deep_and_shares_tensors() -> None:
    outer = params(beta=[1], inner=params(alpha=2, tensor=torch.zeros(1)))
    twin = outer.copy()
    assert twin == outer
    assert twin is not outer
    assert twin.inner is not outer.inner
    assert twin.beta is not outer.beta
    assert twin.inner.tensor is outer.inner.tensor


def test_equality_is_by_names_and_values_and_ignores_descriptions() -> None:
    one, other, thing = Params(), Params(), object()
    assert one == other
    one.define("first", thing, "a")
    assert one != other
    other.define("first", thing, "b")
    assert one == other
    one.define("third", params(fourth="x"), "")
    other.define("third", params(fourth="y"), "")
    assert one != other
    other.third.fourth = "x"
    assert one == other
    assert one != 3


def test_the_text_is_sorted_and_indented() -> None:
    inner = params(bar=2)
    outer = params(foo=1, inner=inner, text="hi", empty=Params())
    outer.define("list", [1, inner, 2], "")
    outer.define("dict", {"b": inner, "a": 1}, "")
    outer.define("enum", Colour.RED, "")
    outer.define("pair", ("x", (1,)), "")
    assert (
        str(outer)
        == """{
  dict: {'a': 1, 'b': {'bar': 2}}
  empty: {

  }
  enum: Colour.RED
  foo: 1
  inner: {
    bar: 2
  }
  list: [1, {'bar': 2}, 2]
  pair: ('x', (1,))
  text: "hi"
}"""
    )


def test_names_are_listed_sorted_and_walked_in_the_order_of_definition() -> None:
    p = params(b=1, a=None)
    assert dir(p) == ["a", "b"]
    assert list(p.iter_params()) == [("b", 1), ("a", None)]


def test_params_are_copied_to_others_except_for_those_skipped() -> None:
    source, target = params(a="a", b="b", inner=params(x=1)), params(a="", inner=None)
    assert copy_params_to(source, target, skip=["b"]) is target
    assert target.a == "a"
    assert "b" not in target
    assert target.inner == source.inner
    assert target.inner is not source.inner


def test_an_update_takes_the_matching_arguments() -> None:
    p = params(a=1, inner=params(b=2, c=3))
    left = {"b": 20, "a": 10, "other": 5}
    update_params(p, left)
    assert (p.a, p.inner.b, p.inner.c, left) == (10, 20, 3, {"other": 5})


class TakesParams:
    @classmethod
    def params(cls) -> InstantiableParams:
        p = InstantiableParams(cls)
        p.define("name", "n", "")
        return p

    def __init__(self, params: Params) -> None:
        self.p = params


class TakesArguments:
    def __init__(self, units: int, rate: float = 0.5, *args: int, **kwargs: object) -> None:
        self.got = {"units": units, "rate": rate, **kwargs}


def test_a_class_that_takes_params_gets_them() -> None:
    p = TakesParams.params()
    assert p.instantiate().p is p
    assert p.copy().cls is TakesParams


def test_another_class_gets_the_arguments_of_its_constructor_from_the_whole_tree() -> None:
    p = InstantiableParams(TakesArguments)
    p.define("rate", 0.1, "")
    p.define("deep", params(units=3, rate=9.0, other=1, name="tower", weights=None), "")
    assert p.instantiate().got == {"units": 3, "rate": 0.1, "name": "tower"}
