"""``DataReport``: the role of each column in a training, and warnings about data that will not train as expected."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from monolith.core.errors import ConfigError
from monolith.data import Schema
from monolith.data.profile import ColumnProfile, DataProfile

__all__ = ["ColumnReport", "DataReport", "Role", "log_report", "make_report"]

logger = logging.getLogger(__name__)

Role: TypeAlias = Literal["sparse", "dense", "label", "weight", "time", "not read"]
"""How a training uses a column."""

_NO_EXPIRY_DAYS = 36500


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """One column of the data."""

    name: str
    role: Role
    type: str
    missing: float
    """Share of the rows without a value."""
    first: tuple[str, ...]
    """The first values."""


@dataclass(frozen=True, slots=True)
class DataReport:
    """The columns of the first rows, and warnings."""

    rows: int
    columns: tuple[ColumnReport, ...]
    warnings: tuple[str, ...]

    def names(self, role: str) -> list[str]:
        """Return the columns of a role."""
        return [each.name for each in self.columns if each.role == role]


def make_report(
    profile: DataProfile,
    schema: Schema,
    *,
    time_column: str | None = None,
    expire_days: Mapping[str, int] | None = None,
    is_shuffled: bool = True,
    heads: int | None = None,
) -> DataReport:
    """Return the report of a training.

    Args:
        profile: The first rows.
        schema: The schema of the training.
        time_column: The column of the event time.
        expire_days: Days of expiry by table.
        is_shuffled: Whether the training shuffles the rows.
        heads: How many labels the model learns; None = unknown.
    """
    roles = _roles(schema)
    columns = [
        _describe(each, roles.get(name, "not read"), profile.rows)
        for name, each in sorted(profile.columns.items(), key=lambda item: _ORDER[roles.get(item[0], "not read")])
        if not (profile.weighted and name == schema.weight_feature)  # a column of the weights that are 0
    ]
    if profile.weighted:
        columns.append(ColumnReport(schema.weight_feature, "weight", "float", 0.0, ()))
    if profile.labelled:
        columns.insert(0, ColumnReport("(record)", "label", "float", 1 - profile.labelled / profile.rows, ()))
    if time_column is not None or profile.timed:
        missing = 1 - profile.timed / profile.rows
        columns.append(ColumnReport(time_column or "(record)", "time", "seconds", missing, ()))
    used = {name: each for name, each in profile.columns.items() if roles.get(name) in ("sparse", "dense")}
    warnings = [
        *_warn_unlearned(schema.label_features, heads),
        *_warn_leaks(profile, used, schema.label_features),
        *_warn_row_numbers(used),
        *_warn_times(used),
        *_warn_whole_reals(used, roles, profile.rows),
        *_warn_expiry(profile, expire_days or {}),
        *([] if is_shuffled else _warn_order(profile)),
    ]
    return DataReport(profile.rows, tuple(columns), tuple(warnings))


def log_report(report: DataReport, *, shuffle_buffer: int) -> None:
    """Log the columns of each role, and the warnings."""
    roles = {role: ",".join(report.names(role)) for role in ("label", "weight", "time", "sparse", "dense")}
    logger.info(
        "columns read %s not_read=%s shuffle_buffer=%d",
        " ".join(f"{role}={names or 'none'}" for role, names in roles.items()),
        ",".join(report.names("not read")) or "none",
        shuffle_buffer,
    )
    for warning in report.warnings:
        logger.warning("%s", warning)


_ORDER: Mapping[str, int] = {
    name: place for place, name in enumerate(("label", "weight", "time", "sparse", "dense", "not read"))
}


def _roles(schema: Schema) -> dict[str, Role]:
    roles: dict[str, Role] = {schema.weight_feature: "weight"}
    roles |= dict.fromkeys((each.column or each.name for each in schema.sparse_features), "sparse")
    roles |= dict.fromkeys((each.column or each.name for each in schema.dense_features), "dense")
    return roles | dict.fromkeys(schema.label_features, "label")


def _describe(column: ColumnProfile, role: Role, rows: int) -> ColumnReport:
    try:
        kind: str = column.type or "none"
    except ConfigError:
        kind = " or ".join(column.types)
    name = f"list of {kind}" if column.is_list else kind
    return ColumnReport(column.name, role, name, 1 - column.rows / rows, tuple(column.first))


def _is_plain(column: ColumnProfile) -> bool:
    return len(column.types) == 1


def _warn_unlearned(labels: Sequence[str], heads: int | None) -> list[str]:
    return [
        f"label {label!r} is not learned: the model learns {heads}; train a model with more heads, such as mmoe, or "
        "leave it out of --label-features and --exclude it"
        for label in (() if heads is None else labels[heads:])
    ]


def _warn_leaks(profile: DataProfile, used: Mapping[str, ColumnProfile], labels: Sequence[str]) -> list[str]:
    found = []
    for label in labels:
        if label not in profile.columns:
            continue
        values = {row: float(value) for row, value in profile.columns[label].values.items() if _is_number(value)}
        for name, column in used.items():
            if _is_plain(column) and column.predicts(values):
                found.append(
                    f"column {name!r} predicts label {label!r} perfectly in the first {profile.rows} rows; if it is "
                    f"known only after the event, leave it out: --exclude {name}"
                )
    return found


def _warn_row_numbers(used: Mapping[str, ColumnProfile]) -> list[str]:
    """Warn of a column that numbers the rows: a model would learn each row by heart."""
    return [
        f"column {name!r} grows by one in every row; if it numbers the rows, leave it out: --exclude {name}"
        for name, column in used.items()
        if _is_plain(column) and column.counts_rows
    ]


def _warn_times(used: Mapping[str, ColumnProfile]) -> list[str]:
    """Warn of times that are read as text: each event would get another row."""
    return [
        f"column {name!r} has times as text, and each time is another id; name it as the event time: "
        f"--time-column {name}, or leave it out: --exclude {name}"
        for name, column in used.items()
        if _is_plain(column) and column.holds_times
    ]


def _warn_whole_reals(used: Mapping[str, ColumnProfile], roles: Mapping[str, Role], rows: int) -> list[str]:
    """Warn of ids with missing values, which pandas stores as reals."""
    return [
        f"column {name!r} has whole numbers and missing values, stored as reals, and is read as a number; if it is an "
        "id, store it as integers with nulls (pandas: astype('Int64'))"
        for name, column in used.items()
        if roles[name] == "dense" and _is_plain(column) and column.is_whole and column.rows < rows
    ]


def _warn_expiry(profile: DataProfile, expire_days: Mapping[str, int]) -> list[str]:
    tables = [name for name, days in expire_days.items() if days < _NO_EXPIRY_DAYS]
    if not tables or profile.timed:
        return []
    return [
        f"tables {', '.join(tables)} have expire_days, and no row of the first {profile.rows} has an event time, so "
        "nothing expires; name the column of the time: --time-column"
    ]


def _warn_order(profile: DataProfile) -> list[str]:
    for name, column in profile.columns.items():
        if _is_plain(column) and column.is_sorted:
            return [
                f"the rows are sorted by {name!r} and not shuffled; for a file that is not a stream of events, "
                "shuffle it: --shuffle-buffer 1000000"
            ]
    return []


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
