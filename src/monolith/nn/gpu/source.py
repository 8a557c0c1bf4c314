"""``RowLayout`` and ``kernel_text``: the words of a row on a GPU, and the CUDA C++ of a table.

A row has the values of all slices, padded to a multiple of four, then the state words, each as wide as the values, then
the state per row of each slice. A namespace per slice has its rule and its initializer.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError
from monolith.embedding import Fp16, Fp32, RandomUniform, TableSpec
from monolith.embedding.specs import SliceSpec
from monolith.nn.gpu.rules import Rule, rule_of

__all__ = ["RowLayout", "check_spec", "first_type", "first_values", "kernel_text", "read_source"]

_MOST_COLUMNS = 1024
_MOST_SLICES = 16
_U64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SliceLayout:
    """Words of one slice in a row."""

    rule: Rule
    first: int
    """First column."""
    end: int
    """Column behind the last one."""
    extra: int
    """First word of the state per row."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Words of a row: values, state words, state per row.

    >>> from monolith.embedding import Adagrad, Sgd, SliceSpec
    >>> spec = TableSpec("user", [SliceSpec(1, optimizer=Sgd()), SliceSpec(2, optimizer=Adagrad())])
    >>> RowLayout.of(spec).host_words().tolist()
    [0, 1, 2, 5, 6]
    """

    slices: tuple[SliceLayout, ...]
    padded: int
    """Columns, rounded up to a multiple of four."""
    states: int
    """State words per column: the largest number of a slice."""
    stride: int
    """Words of a row."""

    @classmethod
    def of(cls, spec: TableSpec) -> RowLayout:
        """Return the layout of a table."""
        padded = -(-spec.dim // 4) * 4
        rules = [rule_of(piece.optimizer) for piece in spec.slices]
        states = max(rule.states for rule in rules)
        word, first, slices = padded * (1 + states), 0, []
        for piece, rule in zip(spec.slices, rules, strict=True):
            slices.append(SliceLayout(rule, first, first + piece.dim, word))
            first += piece.dim
            word += rule.extra
        return cls(tuple(slices), padded, states, -(-word // 4) * 4)

    @property
    def has_passes(self) -> bool:
        """Whether a rule looks at the whole row."""
        return any(each.rule.has_passes for each in self.slices)

    @property
    def lanes(self) -> int:
        """Threads that update a row together."""
        return min(32, 1 << (self.padded // 4 - 1).bit_length())

    def host_words(self) -> NDArray[np.int64]:
        """Return for each word of a row in host memory its place in a row on the device."""
        blocks = [np.arange(self.slices[-1].end)]
        for each in self.slices:
            blocks += [np.arange(each.first, each.end) + self.padded * (1 + word) for word in range(each.rule.states)]
            blocks.append(each.extra + np.arange(each.rule.extra))
        return np.concatenate(blocks)


def kernel_text(spec: TableSpec) -> str:
    """Return the CUDA C++ of a table's kernels."""
    check_spec(spec)
    layout = RowLayout.of(spec)
    padded = layout.padded
    constants = {
        "DIM": spec.dim,
        "DIM4": padded // 4,
        "PADDED": padded,
        "STRIDE": layout.stride,
        "LANES": layout.lanes,
        "HOT": max(1, min(64, 8192 // padded)),
        "SLICES": len(layout.slices),
        "EACH_SLICE(DO)": " ".join(f"DO(slice_{number})" for number in range(len(layout.slices))),
        "MOST_STATES": layout.states,
        "HAS_PASSES": int(layout.has_passes),
        "ROUNDS": int(any(piece.optimizer.stochastic_rounding for piece in spec.slices)),
        "CHECK_FINITE": int(spec.nan_gradients != "pass"),
        "DEVICE": "__device__ __forceinline__",
    }
    text = _define(constants) + read_source("vectors.cuh") + read_source("common.cuh")
    for number, (piece, place) in enumerate(zip(spec.slices, layout.slices, strict=True)):
        own = {
            "NUMBER": number,
            "FIRST": place.first,
            "END": place.end,
            "EXTRA": place.extra,
            "IS_LAST": str(number == len(layout.slices) - 1).lower(),
            "INIT_KIND": int(isinstance(piece.initializer, RandomUniform)),
            "ROUND_HALF": int(piece.optimizer.stochastic_rounding),
            **place.rule.constants,
        }
        text += f"{_define(own)}namespace slice_{number} {{\n{read_source('rules.cuh')}{read_source('slices.cuh')}}}\n"
        text += "".join(f"#undef {name}\n" for name in (*own, "STATES", "PASSES", "SLOPE_SHARE", "MEAN_SHARE"))
    return text + read_source("kernels.cu")


def check_spec(spec: TableSpec) -> None:
    """Raise ``ConfigError`` where a table needs a part that GPU tables lack."""
    if spec.dim > _MOST_COLUMNS:
        raise ConfigError(f"dim is {spec.dim}, expected at most {_MOST_COLUMNS} on a GPU; use device='cpu'")
    if len(spec.slices) > _MOST_SLICES:
        raise ConfigError(
            f"spec has {len(spec.slices)} slices, expected at most {_MOST_SLICES} on a GPU; use device='cpu'"
        )
    for piece in spec.slices:
        if not isinstance(piece.compressor, Fp32 | Fp16):
            raise ConfigError(
                f"compressor is {piece.compressor!r}, expected Fp32 or Fp16 on a GPU: others change the rows that "
                "training reads; use device='cpu'"
            )


def first_values(spec: TableSpec) -> ctypes.Structure:
    """Return the settings of the initializers as an argument of kernels: the struct ``First`` of ``common.cuh``."""
    count = len(spec.slices)
    ranges = [_range_of(piece) for piece in spec.slices]
    seed = _table_seed(spec)
    argument = first_type(count)()
    argument.seed[:] = [_scramble((seed + number) & _U64) for number in range(count)]
    for position, name in enumerate(("low", "width", "largest")):
        getattr(argument, name)[:] = [float(each[position]) for each in ranges]
    return argument


def _range_of(piece: SliceSpec) -> tuple[np.float32, np.float32, np.float32]:
    """Return the lowest first value, the width of the range, and the largest value."""
    initializer = piece.initializer
    if isinstance(initializer, RandomUniform):
        low, high = np.float32(initializer.minval), np.float32(initializer.maxval)
        return low, np.float32(high - low), max(low, np.nextafter(high, low))
    constant = {"zeros": 0.0, "ones": 1.0}.get(initializer.kind)
    value = np.float32(initializer.settings()["constant"] if constant is None else constant)
    return value, np.float32(0), value


@cache
def first_type(count: int) -> type[ctypes.Structure]:
    """Return the struct ``First`` of ``common.cuh`` for a number of slices."""
    numbers = ctypes.c_float * count
    fields = [("seed", ctypes.c_uint64 * count), *((name, numbers) for name in ("low", "width", "largest"))]
    return type("First", (ctypes.Structure,), {"_fields_": fields})


def _define(constants: dict[str, object]) -> str:
    return "".join(f"#define {name} {value}\n" for name, value in constants.items())


def read_source(name: str) -> str:
    """Return the text of a file of kernels."""
    return (files("monolith.nn.gpu") / name).read_text()


def _table_seed(spec: TableSpec) -> int:
    seed = _scramble(spec.seed)
    for byte in spec.name.encode():
        seed = _scramble(seed ^ byte)
    return seed


def _scramble(number: int) -> int:
    number = (number + 0x9E3779B97F4A7C15) & _U64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & _U64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & _U64
    return number ^ (number >> 31)
