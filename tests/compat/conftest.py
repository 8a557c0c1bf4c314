"""Starts programs of this folder in TensorFlow's interpreter, and talks with them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from monolith.testing.processes.linked_package import link_package

PYTHON = os.environ.get("TENSORFLOW_PYTHON")
Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def tensorflow_python() -> str:
    """The interpreter that has TensorFlow."""
    if PYTHON is None:
        pytest.skip("TENSORFLOW_PYTHON is not set; run `make test-compat`")
    return PYTHON


@pytest.fixture(scope="session")
def beside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which another interpreter finds this very Monolith: its files, and the extension."""
    environment = link_package(tmp_path_factory.mktemp("beside"))
    return {**environment, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="session")
def conversation(tensorflow_python: str) -> Callable[..., Any]:
    """Starts a program, which answers requests until the context ends."""

    @contextmanager
    def start(program: str, environment: dict[str, str] | None = None) -> Iterator[Ask]:
        with subprocess.Popen(
            [tensorflow_python, Path(__file__).with_name(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def ask(what: str, **arguments: Any) -> Any:
                print(json.dumps({"do": what, **arguments}), file=process.stdin, flush=True)
                answer = json.loads(process.stdout.readline())
                return answer["error"] if "error" in answer else answer["result"]

            yield ask
            process.stdin.close()

    return start
