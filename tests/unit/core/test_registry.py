from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from monolith.core import registry
from monolith.core.errors import ConfigError
from monolith.core.params import InstantiableParams
from monolith.core.registry import ModelRegistry, SingleTaskModelParams, UnknownModel, load_class


class Ranker(SingleTaskModelParams):
    def task(self) -> InstantiableParams:
        p = InstantiableParams(dict)
        p.define("units", 3, "")
        return p


def made_in(module: str, name: str = "Ranker") -> type[SingleTaskModelParams]:
    return type(name, (Ranker,), {"__module__": module})


@pytest.fixture(name="models")
def _models(monkeypatch: pytest.MonkeyPatch) -> ModelRegistry:
    """A fresh registry, which load_class uses too."""
    models = ModelRegistry()
    monkeypatch.setattr(registry, "_models", models)
    return models


def test_a_model_has_its_full_name_its_short_one_and_its_own(models: ModelRegistry) -> None:
    cls = models.register(made_in("monolith.tasks.ads.params.ctr"))
    assert sorted(models.classes) == ["ads.ctr.Ranker", "monolith.tasks.ads.params.ctr.Ranker"]
    for key in (*models.classes, "Ranker"):
        assert models.get_class(key) is cls


def test_its_own_name_is_not_enough_when_two_have_it(models: ModelRegistry) -> None:
    models.register(made_in("a"))
    models.register(made_in("b"))
    with pytest.raises(UnknownModel, match=r"Model Ranker is not registered; did you mean"):
        models.get_class("Ranker")


def test_the_params_of_a_model_are_those_of_its_task(models: ModelRegistry) -> None:
    models.register(made_in("a"))
    assert models.get_params("a.Ranker").units == 3


def test_a_name_is_registered_once(models: ModelRegistry) -> None:
    models.register(made_in("a"))
    with pytest.raises(ValueError, match=r"Duplicate model registered for key a\.Ranker: a\.Ranker"):
        models.register(made_in("a"))
    with pytest.raises(ValueError, match="Duplicate model"):
        models.register(made_in("params.a"))
    assert sorted(models.classes) == ["a.Ranker"]


@pytest.mark.parametrize("thing", [int, "Ranker", Ranker()])
def test_only_model_params_are_registered(models: ModelRegistry, thing: type[Ranker]) -> None:
    with pytest.raises(TypeError, match="is not a SingleTaskModelParams!"):
        models.register(thing)


def test_a_model_without_a_task_is_abstract() -> None:
    with pytest.raises(NotImplementedError, match="Abstract method"):
        SingleTaskModelParams().task()


def test_an_unknown_model_is_a_lookup_error_and_known_ones_are_logged(
    models: ModelRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    models.register(made_in("shop.ads"))
    with (
        caplog.at_level("INFO"),
        pytest.raises(LookupError, match=r"Model shop\.ads\.Rank is not .* shop\.ads\.Ranker"),
    ):
        models.get_class("shop.ads.Rank")
    assert "Known model: shop.ads.Ranker" in caplog.messages


@pytest.fixture(name="package")
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package shop with a module that registers a model and defines a class."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(
        "from monolith.core import registry\n"
        "limit = 5\n"
        "class Tower: pass\n"
        "@registry._models.register\n"
        "class Ads(registry.SingleTaskModelParams):\n"
        "    def task(self): return 'the task'\n"
    )
    (tmp_path / "shop" / "broken.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("shop", "ranker")]:
        del sys.modules[name]


def test_a_model_is_found_by_importing_its_module(models: ModelRegistry, package: Path) -> None:
    assert models.get_params("shop.tasks.Ads") == "the task"
    with pytest.raises(UnknownModel):
        models.get_class("shop.nothing.Ads")
    with pytest.raises(UnknownModel):
        models.get_class("Tower")


@pytest.mark.usefixtures("models", "package")
def test_a_class_is_loaded_by_module_by_colon_by_its_registered_name_and_from_home() -> None:
    tower = load_class("shop.tasks.Tower")
    assert tower.__name__ == "Tower"
    assert load_class("shop.tasks:Tower") is tower
    assert load_class("Ads") is load_class("shop.tasks.Ads")
    assert load_class("Tower", homes=["shop.tasks"]) is tower


@pytest.mark.usefixtures("models", "package")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("shop.nothing.Tower", "module 'shop.nothing'"),
        ("nowhere.Tower", "module 'nowhere'"),
        ("shop.tasks.Towr", r"tasks\.py has no class called 'Towr'; did you mean Tower\?"),
        ("shop.tasks.limit", "has a int, not a class, called 'limit'"),
        ("Towr", "no class is called 'Towr'; .*or write package.module.Class or FILE.py:Class"),
        ("missing.py:Tower", "file 'missing.py'"),
        ("", "no class is called ''"),
    ],
)
def test_a_class_that_cannot_be_loaded_is_named(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_class(spec)


@pytest.mark.usefixtures("models", "package")
def test_a_module_that_lacks_another_keeps_its_own_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        load_class("shop.broken.Tower")


@pytest.mark.usefixtures("models")
def test_a_class_is_loaded_from_a_file_once(tmp_path: Path) -> None:
    file = tmp_path / "my-ranker.py"
    file.write_text("from typing import Any\nclass Ranker: pass\nclass Retriever: pass\n")
    ranker = load_class(f"{file}:Ranker")
    assert load_class(f"{tmp_path}/../{tmp_path.name}/my-ranker.py:Ranker") is ranker
    with pytest.raises(ConfigError, match=r"no class called 'Rankr'; did you mean Ranker\?"):
        load_class(f"{file}:Rankr")
    with pytest.raises(ConfigError, match=r"names no class; write .*my-ranker\.py:CLASS; known: Ranker, Retriever"):
        load_class(str(file))


@pytest.mark.usefixtures("models")
def test_several_threads_load_a_class_together(tmp_path: Path) -> None:
    file = tmp_path / "slow_ranker.py"
    file.write_text("import time\ntime.sleep(0.2)\nclass Ranker: pass\n")
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(load_class, [f"{file}:Ranker"] * 2)
    assert first is second


@pytest.mark.usefixtures("models")
def test_a_file_that_fails_can_be_repaired_and_loaded_again(tmp_path: Path) -> None:
    file = tmp_path / "ranker.py"
    file.write_text("raise RuntimeError('half written')\n")
    with pytest.raises(RuntimeError, match="half written"):
        load_class(f"{file}:Ranker")
    file.write_text("class Ranker:\n    '''Longer than before, so that no cached bytecode is taken.'''\n")
    assert load_class(f"{file}:Ranker").__name__ == "Ranker"


def test_the_originals_names_are_the_same_functions() -> None:
    assert registry.RegisterSingleTaskModel == registry.register_single_task_model
    assert registry.GetParams == registry.get_params
    assert registry.GetClass == registry.get_class
    assert registry.GetAllRegisteredClasses is registry.get_all_registered_classes
