from __future__ import annotations

import json
import subprocess
import sys

import pytest

import monolith


def in_a_fresh_interpreter(code: str) -> object:
    """Run ``code``, which prints JSON, in a new process."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_the_package_loads_no_framework_and_no_array_library() -> None:
    loaded = in_a_fresh_interpreter("import json, sys, monolith; print(json.dumps(sorted(sys.modules)))")
    assert isinstance(loaded, list)
    assert not {"torch", "grpc", "numpy", "typer", "monolith.embedding", "monolith._native"} & set(loaded)


def test_using_a_table_loads_neither_torch_nor_grpc() -> None:
    loaded = in_a_fresh_interpreter(
        "import json, sys, monolith; monolith.Table; print(json.dumps(sorted(sys.modules)))"
    )
    assert isinstance(loaded, list)
    assert "monolith.embedding" in loaded
    assert not {"torch", "grpc"} & set(loaded)


def test_all_names_the_visible_names() -> None:
    assert sorted(dir(monolith)) == sorted(monolith.__all__)
    assert len(set(monolith.__all__)) == len(monolith.__all__)
    visible = in_a_fresh_interpreter("import json, monolith; print(json.dumps(list(vars(monolith))))")
    assert isinstance(visible, list)
    machinery = {"annotations", "importlib", "TYPE_CHECKING", "Any"}
    assert {name for name in visible if not name.startswith("_")} - machinery <= set(monolith.__all__)


@pytest.mark.parametrize("name", monolith.__all__)
def test_every_name_can_be_used(name: str) -> None:
    assert getattr(monolith, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'nothing'"):
        monolith.nothing  # noqa: B018


def test_the_embedding_names_are_those_of_the_embedding_package() -> None:
    assert monolith.Adagrad is monolith.embedding.Adagrad


@pytest.mark.parametrize("namespace", ["admit", "compress", "init", "optim"])
def test_a_namespace_of_parts_holds_the_root_names(namespace: str) -> None:
    module = getattr(monolith, namespace)
    shared = [name for name in module.__all__ if name in monolith.__all__]
    assert shared
    assert [name for name in shared if getattr(module, name) is not getattr(monolith, name)] == []


def test_every_part_with_a_root_name_is_in_one_namespace() -> None:
    spaces = [set(getattr(monolith, name).__all__) for name in ("admit", "compress", "init", "optim")]
    tables = {"EmbeddingStore", "MultiTable", "RowPlan", "SliceSpec", "Table", "TableSpec"}
    others = tables | {"Batch", "Estimator", "Model", "Output", "RunConfig"}
    parts = [name for name in monolith.__all__ if name[0].isupper() and name not in others]
    assert [name for name in parts if sum(name in space for space in spaces) != 1] == []


@pytest.mark.parametrize("namespace", ["errors", "export", "hooks", "ps", "serving", "sync", "testing", "training"])
def test_a_namespace_reaches_every_name_that_it_lists(namespace: str) -> None:
    module = getattr(monolith, namespace)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []


def test_namespaces_of_servers_load_no_torch() -> None:
    names = ["errors", "ps", "sync", "testing", "serving", "optim"]
    guilty = in_a_fresh_interpreter(
        f"import json, sys, monolith; print(json.dumps([name for name in {names} if (getattr(monolith, name), "
        "'torch' in sys.modules)[1]]))"
    )
    assert guilty == []
