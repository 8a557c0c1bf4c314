from __future__ import annotations

import copy
import pickle
from typing import TypedDict, Unpack

import numpy as np
import pytest

from monolith.core.errors import ConfigError
from monolith.core.params import REQUIRED, InstantiableParams, Params, ParamsFrozen, UnknownParam, params_of


def test_errors_are_config_errors_too() -> None:
    p = Params()
    with pytest.raises(ConfigError):
        p.define("Bad", 1, "")
    with pytest.raises(ConfigError):
        _ = p.missing
    p.freeze()
    with pytest.raises(ConfigError):
        p.define("good", 1, "")


def test_frozen_nested_params_stay_frozen_when_set_from_outside() -> None:
    outer, inner = Params(), Params()
    inner.define("x", 1, "")
    inner.freeze()
    outer.define("inner", inner, "")
    with pytest.raises(ParamsFrozen):
        outer.set(**{"inner.x": 2})
    with pytest.raises(ParamsFrozen):
        outer.delete("inner.x")
    assert inner.x == 1


def test_a_misspelt_nested_name_is_compared_with_the_nested_names() -> None:
    outer, inner = Params(), Params()
    inner.define("learning_rate", 1, "")
    outer.define("inner", inner, "")
    with pytest.raises(UnknownParam, match=r"^inner\.learning_rat \(did you mean: \[learning_rate\]\)$"):
        outer.get("inner.learning_rat")


def test_params_survive_pickle_and_both_copies() -> None:
    p = InstantiableParams(dict)
    p.define("x", [1], "what it is")
    p.freeze()
    for twin in (pickle.loads(pickle.dumps(p)), copy.copy(p), copy.deepcopy(p)):
        assert type(twin) is InstantiableParams
        assert twin == p
        assert twin.is_immutable()
        assert twin.describe("x") == "what it is"


def test_the_same_nested_params_in_two_places_are_one_in_a_copy() -> None:
    outer, shared = Params(), Params()
    outer.define("a", shared, "")
    outer.define("b", shared, "")
    twin = outer.copy()
    assert twin.a is twin.b


def test_arrays_are_compared_by_all_their_values() -> None:
    def holding(value: object) -> Params:
        p = Params()
        p.define("x", value, "")
        return p

    assert holding(np.array([1, 2])) == holding(np.array([1, 2]))
    assert holding(np.array([1, 2])) != holding(np.array([1, 3]))
    assert holding(np.array([1, 1])) != holding(np.array([1]))
    assert holding(np.array([1, 1])) != holding(1)


def test_params_without_a_class_make_nothing() -> None:
    with pytest.raises(ConfigError, match="cls is None"):
        InstantiableParams().instantiate()


class Options(TypedDict, total=False):
    use_bias: bool
    scale: float


class Base:
    def __init__(self, width: int = 4, name: str | None = None) -> None:
        self.width, self.name = width, name


class Handing(Base):
    def __init__(self, units: int, **kwargs: int) -> None:
        super().__init__(**kwargs)
        self.units = units


class Closed(Base):
    def __init__(self, units: int = 1) -> None:
        super().__init__()
        self.units = units


class Typed(Base):
    def __init__(self, units: int = 1, **options: Unpack[Options]) -> None:
        super().__init__()
        self.options = options


class Empty:
    pass


def test_params_of_a_class_are_the_arguments_of_its_constructor_and_those_it_hands_on() -> None:
    p = params_of(Handing)
    assert list(p.iter_params()) == [("cls", Handing), ("units", REQUIRED), ("width", 4), ("name", None)]
    made = p.set(units=2, width=9).instantiate()
    assert (made.units, made.width) == (2, 9)


def test_an_argument_without_a_default_must_be_set_be_it_to_none() -> None:
    p = pickle.loads(pickle.dumps(params_of(Handing).copy()))
    assert "units: <required>" in str(p)
    with pytest.raises(ConfigError, match=r"Handing: units has no default; set it before instantiate\(\)"):
        p.instantiate()
    assert p.set(units=None).instantiate().units is None


def test_arguments_of_a_base_that_cannot_be_passed_are_not_params() -> None:
    assert list(params_of(Closed)) == ["cls", "units"]
    assert params_of(Closed).instantiate().units == 1
    assert list(params_of(Empty)) == ["cls"]
    assert isinstance(params_of(Empty).instantiate(), Empty)


def test_typed_options_are_params_and_are_given_only_when_set() -> None:
    p = params_of(Typed)
    assert dict(p.iter_params()) == {"cls": Typed, "units": 1, "use_bias": None, "scale": None}
    assert p.instantiate().options == {}
    assert p.set(use_bias=False).instantiate().options == {"use_bias": False}


class Private:
    def __init__(self, _token: int = 0) -> None: ...


class Capital:
    def __init__(self, X: int) -> None: ...


def test_an_argument_that_cannot_be_a_param_needs_a_default() -> None:
    assert list(params_of(Private)) == ["cls"]
    with pytest.raises(ConfigError, match="Capital's argument 'X' cannot name a parameter; give it a default"):
        params_of(Capital)


def test_defaults_are_not_shared_between_params() -> None:
    class Listed:
        def __init__(self, widths: list[int] = [1]) -> None:  # noqa: B006
            self.widths = widths

    params_of(Listed).widths.append(2)
    assert params_of(Listed).widths == [1]
