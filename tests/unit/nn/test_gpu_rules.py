"""The update rules of GPU tables, compiled for the host, against those of the engine: the same bits, state included."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import monolith as mt
from monolith.embedding.optimizers import OPTIMIZERS
from monolith.nn.gpu.rules import rule_of
from rule_choices import CHOICES

HARNESS = """
extern "C" void first_{number}(float* row, int dim) {{
  for (int word = 0; word < STATES; ++word)
    for (int i = 0; i < dim; ++i) row[(1 + word) * dim + i] = rule_{number}::first_state(word);
  rule_{number}::first_extra(row + (1 + STATES) * dim);
}}
extern "C" void update_{number}(float* row, const float* g, int dim, float rate, long long step) {{
  using namespace rule_{number};
  float* last = row + (1 + STATES) * dim;
  Extra extra = load_extra(last, rate, step);
#if PASSES
  for (int pass_number = 0; pass_number < PASSES; ++pass_number) {{
    for (int i = 0; i < dim; ++i)
      add(pass_number, extra, pass(pass_number, row[i], row + dim + i, dim, g[i], rate, extra));
    finish(pass_number, extra, rate);
  }}
#else
  for (int i = 0; i < dim; ++i) rule_{number}::step(row[i], row + dim + i, dim, g[i], rate, extra);
#endif
  store_extra(last, extra, step);
}}
"""


MACROS = ("STATES", "PASSES", "SLOPE_SHARE", "MEAN_SHARE", "LARGEST", "LEAST_RATE")


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All choices in one library: the text of the kernels, compiled for the host."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    text = "#include <cmath>\n#define DEVICE static inline\n"
    for number, optimizer in enumerate(CHOICES):
        constants = rule_of(optimizer).constants
        text += "".join(f"#define {name} {value}\n" for name, value in constants.items())
        text += f'namespace rule_{number} {{\n#include "rules.cuh"\n}}\n'
        text += HARNESS.format(number=number)
        text += "".join(f"#undef {name}\n" for name in (*constants, *MACROS))
    folder = tmp_path_factory.mktemp("rules")
    (folder / "rules.cc").write_text(text)
    library = folder / "rules.so"
    options = ["-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-unused-function"]
    include = str(Path(str(files("monolith.nn.gpu"))))
    subprocess.run([compiler, *options, f"-I{include}", str(folder / "rules.cc"), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def address(array: np.ndarray[Any, Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.mark.parametrize("number", range(len(CHOICES)), ids=lambda number: f"{CHOICES[number].base.kind}-{number}")
@pytest.mark.parametrize("dim", [1, 7])
def test_a_rule_gives_the_bits_of_the_engine(rules: ctypes.CDLL, number: int, dim: int) -> None:
    optimizer = CHOICES[number]
    if optimizer.base.kind == "batch_softmax" and dim != 1:
        pytest.skip("batch_softmax has one column")
    spec = mt.TableSpec("t", [mt.SliceSpec(dim, optimizer=optimizer, initializer=mt.RandomUniform(-1, 1))])
    table = mt.Table(spec)
    ids = np.arange(20)
    table.reinitialize(ids)
    rule = rule_of(optimizer)
    rows = np.zeros((len(ids), dim * (1 + rule.states) + rule.extra), np.float32)
    rows[:, :dim] = table.lookup(ids)
    first, update = getattr(rules, f"first_{number}"), getattr(rules, f"update_{number}")
    for row in rows:
        first(address(row), dim)
    random = np.random.default_rng(number)
    for step in (0, 1, 2, 7, 8, 30):
        grads = (random.standard_normal((len(ids), dim)) * 10.0 ** random.integers(-2, 2, (len(ids), 1))).astype(
            np.float32
        )
        grads[step % len(ids)] = 0
        grads[(step + 5) % len(ids)] *= 1e19  # a float may not hold its square
        grads[(step + 9) % len(ids)] *= 1e-30
        rate = float(np.float32(spec.learning_rates_at(step)[0]))
        table.apply_gradients(ids, grads, step=step)
        for row, gradient in zip(rows, grads, strict=True):
            update(address(row), address(gradient), dim, ctypes.c_float(rate), ctypes.c_longlong(step))
    order, _, expected = (np.concatenate(each) for each in zip(*table.export_entries(), strict=True))
    np.testing.assert_array_equal(rows[order].view(np.uint32), expected.view(np.uint32))


def test_every_optimizer_has_a_rule() -> None:
    wrappers = {"dc", "stochastic_rounding_float16"}
    assert {each.base.kind for each in CHOICES} == set(OPTIMIZERS) - wrappers
