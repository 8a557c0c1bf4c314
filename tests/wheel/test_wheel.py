"""Wheels of ``make wheel``: they install with each extra on a machine without a compiler, and run the README.

``make test-wheel`` runs these tests. They skip a Python that the machine lacks, and an extra whose packages have no
wheel for a Python; the reason is printed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from readme import python_of_readme, shell_of_readme
from scripts_of_repository import load_script

_ROOT = Path(__file__).parents[2]
_BIN = Path(sys.executable).parent
_VERSIONS = ["3.11", "3.12", "3.13"]
_TOOLS = ["bash", "curl", "kill", "cat", "sleep", "env", "uname"]
_MODULES = {  # extra: a module of each package that it brings
    "train": ["torch", "safetensors", "tensorboardX", "psutil", "grpc"],
    "export": ["onnx", "onnxscript", "onnxruntime"],
    "serve": ["onnxruntime", "grpc"],
    "avro": ["fastavro", "pyarrow"],
    "flink": ["pyflink"],
    "fsspec": ["fsspec"],
    "kafka": ["confluent_kafka"],
    "mlflow": ["mlflow"],
    "parquet": ["pyarrow"],
    "plots": ["matplotlib"],
    "ray": ["ray"],
    "s3": ["fsspec", "s3fs"],
    "wandb": ["wandb"],
    "zookeeper": ["kazoo"],
}
_README_EXTRAS = "train,export,serve,parquet"
_TABLE = """
import numpy as np, monolith as mt
table = mt.Table(mt.TableSpec("u", [mt.SliceSpec(2, optimizer=mt.Sgd(learning_rate=1.0))]))
table.apply_gradients([1], np.ones((1, 2), np.float32))
print(table.lookup([1]).tolist())
"""

set_up = load_script("set_up")
build_wheels = load_script("build_wheels")


class CleanMachine:
    """An environment of one Python outside the repository. Its PATH contains no compiler.

    Args:
        folder: Where the environment is created.
        version: Version of Python.
    """

    def __init__(self, folder: Path, version: str) -> None:
        python = build_wheels.find_python(f"python{version}")
        if python is None:
            pytest.skip(f"Python {version} is absent from this machine")
        self.folder = folder
        self.wheel = _find_wheel("cp311-cp311" if version == "3.11" else "cp312-abi3")
        subprocess.run(
            [_BIN / "uv", "venv", "--quiet", "--python", python[0], folder / "venv"], check=True, timeout=120
        )
        (folder / "bin").mkdir()
        for tool in _TOOLS:
            if path := shutil.which(tool):
                (folder / "bin" / tool).symlink_to(path)
        self._path = f"{folder / 'venv' / 'bin'}:{folder / 'bin'}"
        for compiler in ("cc", "gcc", "g++", "c++", "clang"):
            assert shutil.which(compiler, path=self._path) is None

    def install(self, extras: str = "") -> None:
        """Install the wheel with extras, all packages from wheels. Skip the test where one has none."""
        command = [
            _BIN / "uv", "pip", "install", "--quiet", "--no-build", "--python", self.folder / "venv" / "bin" / "python",
            f"monolith[{extras}] @ {self.wheel.as_uri()}",
        ]  # fmt: skip
        environment = {**set_up.read_uv_settings(Path(sys.executable)), **os.environ, "PATH": self._path}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
        if done.returncode and extras and "No solution found" in done.stderr:
            pytest.skip(f"packages of {extras!r} have no wheels: {' '.join(done.stderr.split())[:600]}")
        assert done.returncode == 0, done.stderr

    def run(self, *command: str) -> str:
        """Run a program of this machine; return its output."""
        environment = {"PATH": self._path, "HOME": str(self.folder), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def _find_wheel(tag: str) -> Path:
    wheels = list((_ROOT / "dist").glob(f"monolith-*-{tag}-manylinux*.whl"))
    if not wheels:
        pytest.skip(f"dist contains no wheel of {tag}")
    return wheels[0]


@pytest.fixture(params=_VERSIONS)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CleanMachine]:
    yield CleanMachine(tmp_path, request.param)
    shutil.rmtree(tmp_path)  # gigabytes with PyTorch


def test_every_extra_for_users_is_covered() -> None:
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(_MODULES) == set(extras) - {"bench", "dev"}


def test_the_plain_wheel_makes_a_table(machine: CleanMachine) -> None:
    machine.install()
    assert "[[" in machine.run("python", "-c", _TABLE)
    assert str(machine.folder) in machine.run("python", "-c", "import monolith._native as n; print(n.__file__)")
    assert "Usage" in machine.run("monolith", "--help")


@pytest.mark.parametrize("extra", _MODULES)
def test_an_extra_installs_from_wheels_alone(machine: CleanMachine, extra: str) -> None:
    machine.install(extra)
    machine.run("python", "-c", "; ".join(f"import {module}" for module in ["monolith", *_MODULES[extra]]))


@pytest.mark.timeout(3600)
def test_the_readme_runs_on_an_installed_wheel(machine: CleanMachine) -> None:
    machine.install(_README_EXTRAS)
    machine.run("python", "-c", python_of_readme("Use a table"))
    assert '"predictions"' in machine.run("bash", "-c", shell_of_readme("Train a model"))
