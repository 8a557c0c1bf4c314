"""Specs of tables: slices, expiry, admission, budget. Plain values, no engine.

The JSON form and the merging of equal tables are here too, because both cover every field.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from monolith.core.errors import ConfigError
from monolith.embedding._part import check_bool, check_keys, check_whole, decode_part, encode_part, fields_of
from monolith.embedding.admission import FILTERS, AdmissionFilter, NoFilter
from monolith.embedding.compressors import COMPRESSORS, Compressor, Fp16, Fp32
from monolith.embedding.initializers import INITIALIZERS, Initializer, Zeros
from monolith.embedding.learning_rates import (
    LEARNING_RATES,
    ConstantRate,
    LearningRate,
    LearningRateFunction,
    PolynomialDecay,
    as_rate_function,
)
from monolith.embedding.optimizers import OPTIMIZERS, BatchSoftmax, Optimizer

__all__ = [
    "JOB_TABLES",
    "MAX_COLUMNS",
    "MAX_SLOTS",
    "NEVER_EXPIRES_DAYS",
    "SliceSpec",
    "TableSpec",
    "WhenFull",
    "merge_specs",
]

JOB_TABLES = "monolith."
"""Prefix of tables that belong to a training job, not to its model; the engine has the same."""

NEVER_EXPIRES_DAYS = 36500
"""Default expiry of a row, a hundred years: the row stays. The engine has the same default."""

MAX_COLUMNS = 1 << 18
"""Columns of all slices of a table together; the engine has the same bound."""

MAX_SLOTS = 1 << 15
"""Slots of the second id layout: 15 bits."""

WhenFull: TypeAlias = Literal["refuse", "evict_oldest"]
"""Reaction of a table at its memory limit: refuse new ids, or evict the least recently updated rows."""

_OLD_SLOT_NAME = re.compile(r"^fc_slot_[0-9]*$")


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """One run of columns with its own optimizer, first values, serving form and learning rate."""

    dim: int
    """Columns."""
    _: KW_ONLY
    optimizer: Optimizer
    """The update rule."""
    initializer: Initializer = field(default_factory=Zeros)
    """First values of a new row."""
    compressor: Compressor = field(default_factory=Fp32)
    """The form the slice takes when it is served."""
    learning_rate: LearningRate | None = None
    """Rate per step: number, function or schedule. None = from the optimizer, with its warm-up."""
    rate: LearningRateFunction = field(init=False, repr=False, compare=False)
    """The schedule of this slice: its own, or the one its optimizer asks for."""

    def __post_init__(self) -> None:
        check_whole(self, "dim", at_least=1)
        if self.dim > MAX_COLUMNS:
            raise ConfigError(f"SliceSpec.dim is {self.dim}; give at most {MAX_COLUMNS} (2^18) columns")
        for name, family in (("optimizer", Optimizer), ("initializer", Initializer), ("compressor", Compressor)):
            value = getattr(self, name)
            if not isinstance(value, family):
                raise ConfigError(f"SliceSpec.{name} is {value!r}; give an instance of monolith.embedding.{name}s")
        if isinstance(self.optimizer.base, BatchSoftmax) and self.dim != 1:
            raise ConfigError(f"SliceSpec.dim is {self.dim} with BatchSoftmax; that optimizer needs dim 1")
        object.__setattr__(self, "rate", self._rate())

    def _rate(self) -> LearningRateFunction:
        if self.learning_rate is not None:
            return as_rate_function(self.learning_rate)
        base = self.optimizer.base
        rate = float(getattr(base, "learning_rate", 0.0))
        warmup_steps = int(getattr(base, "warmup_steps", 0))
        return PolynomialDecay(0.0, warmup_steps, rate) if warmup_steps else ConstantRate(rate)

    def encode(self) -> dict[str, Any]:
        """Return the JSON form.

        Raises:
            ConfigError: The learning rate is a bare callable, which has no text form.
        """
        rate = self.learning_rate
        if rate is not None and not isinstance(rate, int | float):
            function = as_rate_function(rate)
            if not isinstance(function, tuple(LEARNING_RATES.values())):
                raise ConfigError(f"learning_rate is {rate!r}, which has no JSON form; use a number or PolynomialDecay")
            rate = encode_part(function)  # type: ignore[assignment, arg-type]
        return {
            "dim": self.dim,
            "optimizer": encode_part(self.optimizer),
            "initializer": encode_part(self.initializer),
            "compressor": encode_part(self.compressor),
            "learning_rate": rate,
        }

    @classmethod
    def decode(cls, encoded: Any, where: str) -> SliceSpec:
        """Return the slice that ``encode`` wrote; errors call it ``where``."""
        if not isinstance(encoded, Mapping):
            raise ConfigError(f"{where} is {encoded!r}; give an object with 'dim' and 'optimizer'")
        encoded = {"initializer": {"kind": Zeros.kind}, "compressor": {"kind": Fp32.kind}, **encoded}
        check_keys(where, encoded, cls.__dataclass_fields__.keys() - {"_", "rate"}, ("dim", "optimizer"))
        rate = encoded.get("learning_rate")
        if isinstance(rate, Mapping):
            rate = decode_part(rate, LEARNING_RATES, f"{where}.learning_rate")
        return cls(
            encoded["dim"],
            optimizer=decode_part(encoded["optimizer"], OPTIMIZERS, f"{where}.optimizer"),
            initializer=decode_part(encoded["initializer"], INITIALIZERS, f"{where}.initializer"),
            compressor=decode_part(encoded["compressor"], COMPRESSORS, f"{where}.compressor"),
            learning_rate=rate,
        )


@dataclass(frozen=True, slots=True)
class TableSpec:
    """Declaration of a table.

    >>> from monolith.embedding.optimizers import Sgd
    >>> TableSpec("user", [SliceSpec(1, optimizer=Sgd()), SliceSpec(16, optimizer=Sgd())]).dim
    17
    """

    name: str
    """Unique among the tables of a model."""
    slices: Sequence[SliceSpec]
    """The columns from left to right; kept as a tuple."""
    _: KW_ONLY
    expire_days: int = NEVER_EXPIRES_DAYS
    """Days without an update after which a row is expired, for slots not named below."""
    slot_expire_days: Mapping[int, int] = field(default_factory=dict, hash=False)
    """Days by slot (0 to 32767) of the id."""
    admission: AdmissionFilter = field(default_factory=NoFilter)
    """Filter that decides whether an absent id gets a row."""
    occurrence_threshold: int = 0
    """Sightings before an absent id gets a row, for slots not named below."""
    slot_thresholds: Mapping[int, int] = field(default_factory=dict, hash=False)
    """Sightings by slot before an absent id gets a row."""
    on_miss: Literal["zeros", "initial"] = "zeros"
    """Result of a lookup of an absent id."""
    max_bytes: int | None = None
    """Hard budget; None = unbounded."""
    when_full: WhenFull = "refuse"
    """A full table refuses new rows with CapacityExceeded, or evicts its least recently updated rows."""
    seed: int = 0
    """Seed of first values and of random filters."""
    deterministic: bool = False
    """Same bytes for every number of threads."""
    nan_gradients: Literal["error", "skip", "pass"] = "skip"
    """Handling of a gradient with NaN or Inf: refuse the call, leave out (and count) the id, or apply it."""
    touched_capacity: int | None = None
    """Largest number of remembered changed ids; one more drops and counts all. None = unbounded."""
    extra_restore_names: tuple[str, ...] = ()
    """Older names under which a checkpoint may hold this table."""

    def __post_init__(self) -> None:
        name: Any = self.name
        if not isinstance(name, str) or not name:
            raise ConfigError(f"TableSpec.name is {name!r}; give a non-empty string")
        self._check_slices()
        check_whole(self, "expire_days", below=1 << 32)
        self._check_slots("slot_expire_days")
        check_whole(self, "occurrence_threshold", below=1 << 32)
        self._check_slots("slot_thresholds")
        admission: Any = self.admission
        if not isinstance(admission, AdmissionFilter):
            raise ConfigError(f"TableSpec.admission is {admission!r}; give a filter such as NoFilter()")
        self._check_choice("on_miss", ("zeros", "initial"))
        self._check_choice("when_full", get_args(WhenFull))
        self._check_choice("nan_gradients", ("error", "skip", "pass"))
        for name in ("max_bytes", "touched_capacity"):
            if getattr(self, name) is not None:
                check_whole(self, name, at_least=1, below=1 << 64)
        check_whole(self, "seed")
        if self.seed >= 1 << 64:
            raise ConfigError(f"TableSpec.seed is {self.seed}; give a number below 2^64")
        check_bool(self, "deterministic")
        self._check_restore_names()

    def _check_slices(self) -> None:
        slices: Any = self.slices
        if not isinstance(slices, list | tuple) or not slices:
            raise ConfigError(f"TableSpec.slices is {slices!r}; give a list with at least one SliceSpec")
        for position, piece in enumerate(slices):
            if not isinstance(piece, SliceSpec):
                raise ConfigError(f"TableSpec.slices[{position}] is {piece!r}; give a SliceSpec")
        if (columns := sum(piece.dim for piece in slices)) > MAX_COLUMNS:
            raise ConfigError(f"TableSpec.slices have {columns} columns together; give at most {MAX_COLUMNS} (2^18)")
        object.__setattr__(self, "slices", tuple(slices))

    def _check_slots(self, name: str) -> None:
        by_slot = getattr(self, name)
        if not isinstance(by_slot, Mapping):
            raise ConfigError(f"TableSpec.{name} is {by_slot!r}; give a mapping of slot to number")
        for slot, value in by_slot.items():
            if isinstance(slot, bool) or not isinstance(slot, int) or not 0 <= slot < MAX_SLOTS:
                raise ConfigError(f"TableSpec.{name} has the slot {slot!r}; slots go from 0 to {MAX_SLOTS - 1}")
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32:
                raise ConfigError(f"TableSpec.{name}[{slot}] is {value!r}; give a whole number from 0 to below 2^32")
        object.__setattr__(self, name, dict(sorted(by_slot.items())))

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ConfigError(f"TableSpec.{name} is {value!r}; choose one of {', '.join(map(repr, choices))}")

    def _check_restore_names(self) -> None:
        names: Any = self.extra_restore_names
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"TableSpec.extra_restore_names is {names!r}; give a tuple of non-empty strings")
        object.__setattr__(self, "extra_restore_names", tuple(names))

    @property
    def dim(self) -> int:
        """Columns of a row: the sum over the slices."""
        return sum(piece.dim for piece in self.slices)

    def expire_days_of(self, slot: int) -> int:
        """Return the days after which an idle row of ``slot`` is expired."""
        return self.slot_expire_days.get(slot, self.expire_days)

    def threshold_of(self, slot: int) -> int:
        """Return the sightings of an absent id of ``slot`` before it gets a row."""
        return self.slot_thresholds.get(slot, self.occurrence_threshold)

    def learning_rates_at(self, step: int) -> NDArray[np.float32]:
        """Return the rate of every slice at ``step``. Shapes: (slices,)."""
        return np.array([piece.rate(step) for piece in self.slices], dtype=np.float32)

    def for_serving(self, full_precision: bool = False) -> TableSpec:
        """Return the spec without rates, admission and eviction of a full table, which only training needs.

        Args:
            full_precision: Whether half precision becomes full; coarser forms stay, because training has seen them.
        """
        slices = [
            replace(
                piece,
                learning_rate=None,
                compressor=Fp32() if full_precision and isinstance(piece.compressor, Fp16) else piece.compressor,
            )
            for piece in self.slices
        ]
        return replace(
            self,
            slices=slices,
            admission=NoFilter(),
            occurrence_threshold=0,
            slot_thresholds={},
            when_full="refuse",
        )

    def config_key(self) -> str:
        """Return a text that is equal for two tables exactly if they differ only in their names."""
        encoded = _encode_scalars(self)
        del encoded["name"], encoded["extra_restore_names"]
        encoded["slices"] = [
            {**replace(piece, learning_rate=None).encode(), "learning_rate": str(piece.rate)} for piece in self.slices
        ]
        return json.dumps(encoded, sort_keys=True)

    def to_json(self) -> str:
        """Return the spec as JSON text that ``from_json`` turns back into an equal spec.

        Raises:
            ConfigError: a slice's learning rate is a bare callable, which has no text form.
        """
        encoded = _encode_scalars(self)
        encoded["slices"] = [piece.encode() for piece in self.slices]
        return json.dumps(encoded, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> TableSpec:
        """Return the spec that ``to_json`` wrote.

        Raises:
            ConfigError: the text is not JSON, or has an unknown, missing or wrong key.
        """
        try:
            encoded = json.loads(text)
        except ValueError as exc:
            raise ConfigError(f"a table spec is not JSON ({exc}); give the text of TableSpec.to_json") from exc
        if not isinstance(encoded, dict):
            raise ConfigError(f"a table spec is {encoded!r}; give a JSON object")
        where = f"table spec {encoded.get('name', '')!r}"
        check_keys(where, encoded, cls.__dataclass_fields__.keys() - {"_"}, ("name", "slices"))
        if not isinstance(encoded["slices"], list):
            raise ConfigError(f"{where}.slices is {encoded['slices']!r}; give a list")
        encoded["slices"] = [
            SliceSpec.decode(piece, f"{where}.slices[{position}]") for position, piece in enumerate(encoded["slices"])
        ]
        for name in ("slot_expire_days", "slot_thresholds"):
            if name in encoded:
                encoded[name] = _decode_slots(encoded[name], f"{where}.{name}")
        if "admission" in encoded:
            encoded["admission"] = decode_part(encoded["admission"], FILTERS, f"{where}.admission")
        return cls(**encoded)


def _encode_scalars(spec: TableSpec) -> dict[str, Any]:
    """Return the JSON form of everything but the slices."""
    encoded = fields_of(spec)
    del encoded["slices"]
    # Older releases refuse these keys.
    if not spec.occurrence_threshold:
        del encoded["occurrence_threshold"]
    if spec.when_full == "refuse":
        del encoded["when_full"]
    encoded["admission"] = encode_part(spec.admission)
    for name in ("slot_expire_days", "slot_thresholds"):
        encoded[name] = {str(slot): value for slot, value in encoded[name].items()}
    encoded["extra_restore_names"] = list(spec.extra_restore_names)
    return encoded


def _decode_slots(encoded: Any, where: str) -> dict[int, int]:
    try:
        return {int(slot): value for slot, value in encoded.items()}
    except (AttributeError, ValueError) as exc:
        raise ConfigError(f"{where} is {encoded!r}; give an object of slot to number") from exc


def merge_specs(specs: Iterable[TableSpec]) -> dict[str, tuple[TableSpec, tuple[str, ...]]]:
    """Group tables that differ only in name into one table each.

    Returns:
        Merged name to (spec of the merged table, names of its members), in sorted order. The merged name is the md5 of
        the sorted member names joined by commas. Members called ``fc_slot_<n>`` were once called ``slot_<n>``; the
        merged name of that time goes into ``extra_restore_names``, so that old checkpoints still restore.

    Raises:
        ConfigError: two specs have the same name.
    """
    groups: dict[str, dict[str, TableSpec]] = {}
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise ConfigError(f"two tables are called {spec.name!r}; rename one")
        seen.add(spec.name)
        groups.setdefault(spec.config_key(), {})[spec.name] = spec
    merged = {}
    for members in groups.values():
        names = tuple(sorted(members))
        merged_name = _md5_name(names)
        restore_names = [name for member in names for name in members[member].extra_restore_names]
        restore_names += _old_merged_names(names)
        spec = replace(members[names[0]], name=merged_name, extra_restore_names=tuple(dict.fromkeys(restore_names)))
        merged[merged_name] = (spec, names)
    return dict(sorted(merged.items()))


def _md5_name(names: Iterable[str]) -> str:
    return hashlib.md5(",".join(names).encode(), usedforsecurity=False).hexdigest()


def _old_merged_names(names: tuple[str, ...]) -> list[str]:
    old = [name.removeprefix("fc_") if _OLD_SLOT_NAME.match(name) else name for name in names]
    if tuple(old) == names:
        return []
    # The list may have been sorted again after renaming, so both names are offered.
    return list(dict.fromkeys([_md5_name(old), _md5_name(sorted(old))]))
