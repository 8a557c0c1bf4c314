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


def test_all_is_what_is_visible() -> None:
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
